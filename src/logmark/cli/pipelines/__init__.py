"""`logmark pipelines`: Spark pipelines that are consumer groups, run, shown and replayed."""

from logmark.cli.pipelines import dead_letters, replay, run, status, versions
from logmark.cli.pipelines.app import app

__all__ = ["app", "dead_letters", "replay", "run", "status", "versions"]

_ORDER = ("run", "list", "status", "dead-letters", "replay", "versions", "rollback", "drop")
app.registered_commands.sort(key=lambda command: _ORDER.index(command.name or ""))
