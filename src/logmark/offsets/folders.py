"""Where the tools keep what is the user's: settings, the journal of changes, the history of lag."""

import os
from pathlib import Path


def state_folder() -> Path:
    """The folder of what the tools remember; it need not exist yet."""
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "logmark"


def config_file() -> Path:
    """The file of named contexts; it need not exist."""
    named = os.environ.get("LOGMARK_CONFIG")
    return Path(named) if named else Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "logmark.toml"
