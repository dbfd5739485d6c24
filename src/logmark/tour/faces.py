"""How a tour looks: as Markdown for the documents and as plain text for what is no terminal."""

import textwrap
from collections.abc import Callable

from logmark.tour.elements import Code, Command, Cover, Element, Keep, Output, Pause, Picture, Prose, Steps, Title

MARKDOWN_WIDTH = 120
PLAIN_WIDTH = 88
_ORIGIN = (
    "This page is what `logmark tour` showed; `logmark tour --no-pause --markdown docs/tour.md` writes it, and a test\n"
    "keeps the two equal. The same without a story, on one page: [offsets.md](offsets.md)."
)


class Markdown:
    """Writes a document; a command and what it wrote stand in one block, as in a terminal."""

    def __init__(self, write: Callable[[str], object]) -> None:
        self._write = write
        self._command = ""

    def __call__(self, element: Element) -> None:
        match element:
            case Cover(text):
                self._write(f"# {text}\n\n{_ORIGIN}\n\n")
            case Title(text):
                self._write(f"## {text}\n\n")
            case Prose(text):
                self._write(f"{wrapped(text, MARKDOWN_WIDTH)}\n\n")
            case Code(text):
                self._fenced("python", text)
            case Command(text):
                self._command = text
            case Steps(lines):
                self._fenced("console", "\n".join(f"$ {line}" for line in lines))
            case Output(text) if self._command:
                self._fenced("console", f"$ {self._command}\n{text}")
                self._command = ""
            case Output(text):
                self._fenced("text", text)
            case Picture(lines):
                self._fenced("text", "\n".join(lines))
            case Keep(text):
                self._write(f"{wrapped(f'**{text}**', MARKDOWN_WIDTH)}\n\n")
            case Pause():
                pass

    def _fenced(self, language: str, text: str) -> None:
        self._write(f"```{language}\n{text}\n```\n\n")


class Plain:
    """Writes text without colours: code four columns in, output behind a bar."""

    def __init__(self, write: Callable[[str], object]) -> None:
        self._write = write

    def __call__(self, element: Element) -> None:
        match element:
            case Cover(text):
                self._write(f"{text.upper()}\n\n")
            case Title(text):
                self._write(f"{text}\n{'=' * len(text)}\n\n")
            case Prose(text):
                self._write(f"{wrapped(text, PLAIN_WIDTH)}\n\n")
            case Code(text):
                self._indented("    ", text)
            case Command(text):
                self._indented("    ", f"$ {text}")
            case Steps(lines):
                self._indented("    ", "\n".join(f"$ {line}" for line in lines))
            case Output(text):
                self._indented("  | ", text)
            case Picture(lines):
                self._indented("  ", "\n".join(lines))
            case Keep(text):
                self._write(f"=> {wrapped(text, PLAIN_WIDTH - 3)}".replace("\n", "\n   ") + "\n\n")
            case Pause():
                pass

    def _indented(self, margin: str, text: str) -> None:
        self._write("\n".join(f"{margin}{line}".rstrip() for line in text.splitlines()) + "\n\n")


def wrapped(text: str, width: int) -> str:
    """Paragraphs and list items of a source text, folded anew; lines that begin with "- " begin an item."""
    found: list[str] = []
    for paragraph in textwrap.dedent(text).strip().split("\n\n"):
        items: list[str] = []
        for line in paragraph.splitlines():
            if line.startswith("- ") or not items:
                items.append(line)
            else:
                items[-1] += f" {line.strip()}"
        found.append(
            "\n".join(
                textwrap.fill(
                    item, width, subsequent_indent="  " if item.startswith("- ") else "",
                    break_long_words=False, break_on_hyphens=False,
                )
                for item in items
            )
        )  # fmt: skip
    return "\n\n".join(found)
