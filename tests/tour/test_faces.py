"""The same chapter as Markdown, as plain text and in a terminal that waits for its reader."""

import io
from pathlib import Path

import pytest
from rich.console import Console

from logmark.tour.elements import Code, Command, Cover, Element, Keep, Output, Pause, Picture, Prose, Steps, Title
from logmark.tour.faces import Markdown, Plain, wrapped
from logmark.tour.terminal import Left, Terminal

CHAPTER: list[Element] = [
    Title("7. Current and committed", "committed"),
    Prose("\n  Two numbers, and\n  `poll`.\n"),
    Code("x = 1\n\nprint(x)"),
    Output("1"),
    Command("logmark lag billing"),
    Output("no lag"),
    Picture(["clicks-0 │ 0 │", "billing    ▲ committed 0"]),
    Keep("Mind the gap."),
    Pause(),
]


def render(face: type[Markdown] | type[Plain], *elements: Element) -> str:
    written = io.StringIO()
    show = face(written.write)
    for element in elements:
        show(element)
    return written.getvalue()


def in_terminal(*elements: Element, has_pauses: bool = False, encoding: str = "utf-8", width: int = 100) -> str:
    written = io.BytesIO()
    file = io.TextIOWrapper(written, encoding=encoding)
    show = Terminal(Console(file=file, force_terminal=True, color_system=None, width=width), has_pauses=has_pauses)
    for element in elements:
        show(element)
    file.flush()
    return written.getvalue().decode(encoding)


def test_markdown_has_headings_and_fenced_blocks() -> None:
    assert (
        "## 7. Current and committed\n\nTwo numbers, and `poll`.\n\n```python\nx = 1\n\nprint(x)\n```\n\n"
        "```text\n1\n```\n\n```console\n$ logmark lag billing\nno lag\n```\n\n"
        "```text\nclicks-0 │ 0 │\nbilling    ▲ committed 0\n```\n\n**Mind the gap.**\n\n"
    ) == render(Markdown, *CHAPTER)


def test_plain_text_has_neither_colours_nor_trailing_spaces_nor_a_question() -> None:
    assert (
        "7. Current and committed\n========================\n\nTwo numbers, and `poll`.\n\n"
        "    x = 1\n\n    print(x)\n\n  | 1\n\n    $ logmark lag billing\n\n  | no lag\n\n"
        "  clicks-0 │ 0 │\n  billing    ▲ committed 0\n\n=> Mind the gap.\n\n"
    ) == render(Plain, *CHAPTER)


def test_the_cover_of_the_document_says_where_it_comes_from() -> None:
    assert render(Markdown, Cover("A tour")).startswith("# A tour\n\nThis page is what `logmark tour` showed;")
    assert "A TOUR\n\n" == render(Plain, Cover("A tour"))


@pytest.mark.parametrize("face", [Markdown, Plain])
def test_commands_for_the_reader_are_listed(face: type[Markdown] | type[Plain]) -> None:
    assert ["$ one", "$ two"] == [
        line.strip() for line in render(face, Steps(["one", "two"])).splitlines() if "$" in line
    ]


def test_paragraphs_are_wrapped_again_and_list_items_are_indented() -> None:
    text = """
        One two three
        four.

        - five six
          seven
        - eight
        """

    assert "One two\nthree four.\n\n- five six\n  seven\n- eight" == wrapped(text, 12)


def test_the_terminal_shows_all_of_it() -> None:
    shown = in_terminal(*CHAPTER)

    for text in ("7. Current and committed", "committed ──", "Two numbers, and poll.", "    print(x)", "  │ 1",
                 "    $ logmark lag billing", "  billing    ▲ committed 0", "Mind the gap."):  # fmt: skip
        assert text in shown
    assert "Enter goes on" not in shown


def test_a_narrow_terminal_loses_no_code() -> None:
    shown = in_terminal(Code("value = " + " + ".join(str(number) for number in range(100, 130))), width=40)

    assert all(str(number) in shown for number in range(100, 130))


def test_a_terminal_without_unicode_gets_ascii() -> None:
    shown = in_terminal(*CHAPTER, encoding="ascii")

    assert "billing    ^ committed 0" in shown
    assert "  | 1" in shown


@pytest.mark.parametrize(
    ("typed", "leaves"), [("\n", False), ("yes\n", False), ("q\n", True), (" Quit\n", True), ("", True)]
)
def test_enter_goes_on_and_q_or_the_end_of_the_input_leaves(
    typed: str, leaves: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    keyboard = tmp_path / "keyboard"
    keyboard.write_text(typed)
    monkeypatch.setattr("sys.stdin", keyboard.open())
    if leaves:
        with pytest.raises(Left):
            in_terminal(Pause(), has_pauses=True)
    else:
        assert "Enter goes on, q leaves: " in in_terminal(Pause(), has_pauses=True)
