"""How a tour looks in a terminal: colours, pictures, and a pause where the reader wants one."""

import select
import sys

from rich.console import Console
from rich.markdown import Markdown
from rich.padding import Padding
from rich.rule import Rule
from rich.syntax import Syntax
from rich.text import Text

from logmark.tour import pictures
from logmark.tour.elements import Code, Command, Cover, Element, Keep, Output, Pause, Picture, Prose, Steps, Title
from logmark.tour.faces import wrapped

_WIDTH_MAX = 100
_UNFOLDED = 10_000
_QUESTION = "Enter goes on, q leaves: "
_LOOK_EVERY_S = 0.1


class Left(Exception):
    """The reader has seen enough."""


class Terminal:
    """Writes to a terminal; at a pause it waits for Enter, and q leaves."""

    def __init__(self, console: Console, *, has_pauses: bool) -> None:
        self._console = console
        self._has_pauses = has_pauses
        self._width = min(console.width, _WIDTH_MAX)

    def __call__(self, element: Element) -> None:
        match element:
            case Cover(text):
                self._print(Text(text, style="bold reverse"))
            case Title(text, name):
                self._console.print(Rule(Text(text, style="bold").append(f"  {name}", style="dim"), align="left"))
                self._console.print()
            case Prose(text):
                self._print(Markdown(self._writable(wrapped(text, _UNFOLDED))))
            case Code(text):
                code = Syntax(text, "python", theme="ansi_dark", background_color="default", word_wrap=True)
                self._print(Padding(code, (0, 0, 0, 4)))
            case Command(text):
                self._lines(f"$ {text}", margin="    ", style="bold")
            case Steps(lines):
                self._lines("\n".join(f"$ {line}" for line in lines), margin="    ", style="bold")
            case Output(text):
                self._lines(text, margin="  │ ", style="green")
            case Picture(lines):
                self._picture("\n".join(lines))
            case Keep(text):
                self._print(Text(text, style="bold yellow"))
            case Pause():
                self._pause()

    def _print(self, what: Markdown | Padding | Text) -> None:
        self._console.print(what, width=self._width)
        self._console.print()

    def _lines(self, text: str, *, margin: str, style: str) -> None:
        for line in text.splitlines():
            self._console.print(Text.assemble((self._writable(margin), "dim"), (line, style)), soft_wrap=True)
        self._console.print()

    def _picture(self, text: str) -> None:
        for line in self._writable(text).splitlines():
            has_mark = any(sign in line for sign in "▲△^*")
            self._console.print(Text(f"  {line}", style="bold cyan" if has_mark else ""), soft_wrap=True)
        self._console.print()

    def _writable(self, text: str) -> str:
        return pictures.writable(text, self._console.encoding)

    def _pause(self) -> None:
        if not self._has_pauses:
            return
        self._console.print(f"[dim]{_QUESTION}[/dim]", end="")
        answer = _typed_line()
        if not answer or answer.strip().lower().startswith("q"):
            raise Left
        self._console.print()


def _typed_line() -> str:
    """Return the next line of standard input, empty at its end."""
    # Not by a read that waits: an interrupt between the question and such a read would not end it.
    while not select.select([sys.stdin], [], [], _LOOK_EVERY_S)[0]:
        pass
    return sys.stdin.readline()
