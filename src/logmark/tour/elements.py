"""What a chapter consists of, as values: a face writes them to a terminal, as plain text or as Markdown."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Cover:
    """The title of the whole."""

    text: str


@dataclass(frozen=True, slots=True)
class Title:
    """The beginning of a chapter; `name` chooses it on the command line, and what is no chapter has none."""

    text: str
    name: str = ""


@dataclass(frozen=True, slots=True)
class Prose:
    """Paragraphs and lists, in the small part of Markdown that reads well as it is."""

    text: str


@dataclass(frozen=True, slots=True)
class Code:
    """Python that is about to run, as it stands in the source."""

    text: str


@dataclass(frozen=True, slots=True)
class Command:
    """A command line that is about to run."""

    text: str


@dataclass(frozen=True, slots=True)
class Steps:
    """Command lines for the reader to run later."""

    lines: Sequence[str]


@dataclass(frozen=True, slots=True)
class Output:
    """What the code or the command before it wrote."""

    text: str


@dataclass(frozen=True, slots=True)
class Picture:
    """Logs with committed offsets and positions under them."""

    lines: Sequence[str]


@dataclass(frozen=True, slots=True)
class Keep:
    """The one sentence to keep of a chapter."""

    text: str


@dataclass(frozen=True, slots=True)
class Pause:
    """A pause for the reader; nothing where nobody waits."""


Element = Cover | Title | Prose | Code | Command | Steps | Output | Picture | Keep | Pause
