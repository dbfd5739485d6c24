"""`logmark tour`: a walk through offsets, with a broker of its own."""

import contextlib
import io
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from logmark.cli.main import app
from logmark.cli.progress import bar
from logmark.cli.tables import Column, print_table, say
from logmark.errors import UserError
from logmark.tour import touring
from logmark.tour.chapters import CHAPTERS, Chapter
from logmark.tour.elements import Element, Keep
from logmark.tour.faces import Markdown, Plain
from logmark.tour.pictures import writable
from logmark.tour.stage import Show
from logmark.tour.terminal import Left, Terminal


def complete_chapter(incomplete: str) -> list[str]:
    """Return the names of the chapters that start with the typed text."""

    return [chapter.name for chapter in CHAPTERS if chapter.name.startswith(incomplete)]


def tour(
    chapters: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="CHAPTER", help="Chapters; none means all.", autocompletion=complete_chapter, show_default=False
        ),
    ] = None,
    list_: Annotated[bool, typer.Option("--list", help="Show the chapters and stop.")] = False,
    no_pause: Annotated[bool, typer.Option("--no-pause", help="Do not wait for Enter.")] = False,
    markdown: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a document instead of showing the tour.")
    ] = None,
) -> None:
    """Learn offsets with real clients and a broker of its own; nothing of yours is touched."""

    wanted = touring.chosen(chapters or [])
    if list_:
        print_table([Column("CHAPTER"), Column("TITLE")], [(one.name, one.title) for one in wanted])
        return
    if markdown is not None:
        _save(markdown, _document(wanted))
        return
    try:
        touring.tell(wanted, _face(has_pauses=not no_pause), run_logmark)
    except Left:
        say("Come back with `logmark tour CHAPTER`; `logmark tour --list` shows them all.")


def run_logmark(arguments: Sequence[str]) -> tuple[int, str]:
    """Run a command in this process; return its exit code and its output on both streams."""

    written = io.StringIO()
    with contextlib.redirect_stdout(written), contextlib.redirect_stderr(written):
        code = app(list(arguments), standalone_mode=False)
    return code or 0, written.getvalue()


def _face(*, has_pauses: bool) -> Show:
    if sys.stdout.isatty():
        return Terminal(Console(), has_pauses=has_pauses and sys.stdin.isatty())

    # The stream is looked up now: while a chapter's code runs, standard output is another one.
    out = sys.stdout
    return Plain(lambda text: print(writable(text, out.encoding), file=out, end="", flush=True))


def _document(chapters: Sequence[Chapter]) -> str:

    text = io.StringIO()
    write = Markdown(text.write)
    with bar("Chapters", is_bytes=False) as progress:
        progress.expect(len(chapters))

        def show(element: Element) -> None:
            write(element)
            # The sentence to keep ends a chapter.
            progress.advance(isinstance(element, Keep))

        touring.tell(chapters, show, run_logmark)
    return text.getvalue().rstrip() + "\n"


def _save(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror}.") from None
    say(f"Wrote {path}.")
