"""Groups of commands that import a command's module when the command is run, so that each starts fast."""

import importlib
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup

from logmark.cli.options import example


class CommandSource(NamedTuple):
    """Where a command is defined (`module:name`), and its line in the list of commands."""

    target: str
    help: str
    example: str = ""


class LazyGroup(TyperGroup):
    """A group whose subclass names the commands and the package of their modules."""

    package: ClassVar[str]
    sources: ClassVar[Mapping[str, CommandSource]]

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of all commands in the order of the table."""
        return list(self.sources)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a stand-in with the command's help, for the list of commands."""
        source = self.sources.get(cmd_name)
        return None if source is None else TyperCommand(cmd_name, help=source.help)

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """Return the command that is to be run."""
        if args and args[0] in self.sources:
            return args[0], self.load_command(args[0]), args[1:]
        return super().resolve_command(ctx, args)

    def load_command(self, name: str) -> Any:
        """Import the module of a command and return the command."""
        source = self.sources[name]
        module, _, attribute = source.target.partition(":")
        target = getattr(importlib.import_module(f"{self.package}.{module}"), attribute)
        if isinstance(target, typer.Typer):
            return typer.main.get_group(target)
        command = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
        # What a function leaves to its decorator: another class of command.
        options = {"cls": target.command_class} if hasattr(target, "command_class") else {}
        epilog = example(source.example) if source.example else None
        command.command(name, epilog=epilog, **options)(target)
        return typer.main.get_command(command)
