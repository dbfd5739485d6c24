"""The group of commands that the modules beside this one add themselves to."""

from typing import Annotated, Any, ClassVar

import typer
from typer.core import TyperCommand

from logmark.cli.clusters import complete_group, complete_topic

app = typer.Typer(help="Reset a group's committed offsets, and undo it.", no_args_is_help=True)

Group = Annotated[str, typer.Argument(metavar="GROUP", help="The group.", autocompletion=complete_group)]
Topic = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME[:P,...]",
        help="A topic, or some of its partitions; may be repeated.",
        autocompletion=complete_topic,
        show_default=False,
    ),
]
AllTopics = Annotated[bool, typer.Option("--all-topics", help="Every partition in which the group has committed.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show the plan and change nothing.")]
ForceStateful = Annotated[
    bool, typer.Option("--force", help="Reset also a group whose query keeps state: start it with a new checkpoint.")
]
Reason = Annotated[str, typer.Option(metavar="TEXT", help="Why; it is kept in the journal.", show_default=False)]
Force = Annotated[bool, typer.Option("--force", help="Also where the group has moved since.")]
WaitEmpty = Annotated[
    str | None,
    typer.Option(
        "--wait-empty", metavar="[D]", help="Wait so long (60s) for the group's members to stop.", show_default=False
    ),
]
WAIT_EMPTY = "60s"


@app.callback()
def offsets() -> None:
    """Reset a group's committed offsets, and undo it."""


class WithOptionalValues(TyperCommand):
    """A command with options that may stand alone: `--wait-empty` means `--wait-empty 60s`."""

    optional: ClassVar[dict[str, str]] = {"--wait-empty": WAIT_EMPTY}

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        filled: list[str] = []
        for at, here in enumerate(args, 1):
            filled.append(here)
            if here in self.optional and not self._is_value(here, args[at] if at < len(args) else "-"):
                filled.append(self.optional[here])
        return super().parse_args(ctx, filled)

    def _is_value(self, option: str, text: str) -> bool:
        """Return whether the text is a duration: it starts with a digit or with ISO's P."""
        return text[:1].isdigit() or (text[:1] in "Pp" and text[1:2].isalnum() and any(map(str.isdigit, text)))
