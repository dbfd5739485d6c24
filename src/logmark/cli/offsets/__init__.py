"""`logmark offsets`: moving a group's committed offsets with a plan that is shown first, and taking it back."""

from logmark.cli.offsets import delete, export_import, history, journal, reset, spark
from logmark.cli.offsets.app import app

__all__ = ["app", "delete", "export_import", "history", "journal", "reset", "spark"]

_ORDER = ("reset", "undo", "finish", "history", "show", "export", "import", "delete", "spark", "journal")
app.registered_commands.sort(key=lambda command: _ORDER.index(command.name or ""))
