"""The whole tour runs by itself, shows the same every time, and docs/tour.md is what it shows."""

import io
import os
import pty
import re
import signal
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import pytest

from logmark.cli.tour import run_logmark
from logmark.tour import touring
from logmark.tour.chapters import CHAPTERS
from logmark.tour.elements import Code, Command, Element, Keep, Output, Pause, Picture, Prose, Title
from logmark.tour.faces import Markdown
from tests.cli.conftest import run
from tests.harness.terminals import read_until

REPOSITORY = Path(__file__).resolve().parents[2]
COMMAND = [sys.executable, "-c", "from logmark.cli.main import run; run()"]
CODE_WIDTH = 92
QUESTION = b"Enter goes on, q leaves: "


@pytest.fixture(scope="module")
def tour_elements() -> list[Element]:
    """One run of the whole tour."""
    elements: list[Element] = []
    touring.tell(CHAPTERS, elements.append, run_logmark)
    return elements


def chapters_of(tour_elements: list[Element]) -> dict[str, list[Element]]:
    name = ""
    found: dict[str, list[Element]] = {}
    for element in tour_elements:
        if isinstance(element, Title):
            name = element.name
        found.setdefault(name, []).append(element)
    return found


def test_the_document_is_what_the_tour_shows(tour_elements: list[Element]) -> None:
    shown = io.StringIO()
    show = Markdown(shown.write)
    for element in tour_elements:
        show(element)

    written = (REPOSITORY / "docs" / "tour.md").read_text(encoding="utf-8")
    assert written == shown.getvalue().rstrip() + "\n", (
        "docs/tour.md is not what the tour shows now. Look at the difference; if it is meant, write the document "
        "again: logmark tour --no-pause --markdown docs/tour.md"
    )


@pytest.mark.parametrize("name", [chapter.name for chapter in CHAPTERS])
def test_a_chapter_says_something_runs_something_draws_it_and_leaves_one_sentence(
    tour_elements: list[Element], name: str
) -> None:
    elements = chapters_of(tour_elements)[name]

    kinds = {type(element) for element in elements}
    assert {Title, Prose, Code, Output, Picture, Keep} <= kinds
    assert [Keep, Pause] == [type(element) for element in elements[-2:]]
    assert 1 == sum(isinstance(element, Keep) for element in elements)


def test_the_story_has_its_three_readers(tour_elements: list[Element]) -> None:
    drawn = "\n".join(line for element in tour_elements if isinstance(element, Picture) for line in element.lines)

    for group in ("billing", "fraud", "ml-features"):
        assert re.search(rf"^{group} .*committed \d+ \((last processed|nothing processed)", drawn, re.MULTILINE)


def test_nothing_is_shown_that_differs_from_run_to_run(tour_elements: list[Element]) -> None:
    shown = "\n".join(_text(element) for element in tour_elements if isinstance(element, Output | Picture))

    assert not re.search(r"127\.0\.0\.1:\d+|/tmp/|rdkafka-[0-9a-f]{8}|\b[0-9a-f]{8}-[0-9a-f]{4}-", shown)
    assert not re.search(rf"\b{time.gmtime().tm_year}-\d\d-\d\d", shown)


def _text(element: Element) -> str:
    return "\n".join(element.lines) if isinstance(element, Picture) else getattr(element, "text", "")


def test_code_and_pictures_fit_a_terminal(tour_elements: list[Element]) -> None:
    for element in tour_elements:
        if isinstance(element, Code | Picture | Command):
            for line in _text(element).splitlines():
                assert len(line) <= CODE_WIDTH, line


def test_code_needs_no_rule_of_a_linter_to_be_silenced(tour_elements: list[Element]) -> None:
    shown = "\n".join(element.text for element in tour_elements if isinstance(element, Code))

    assert "noqa" not in shown and "type: ignore" not in shown


def test_output_follows_what_made_it(tour_elements: list[Element]) -> None:
    for before, after in pairwise(tour_elements):
        if isinstance(after, Output):
            assert isinstance(before, Code | Command), after


# -- the command -------------------------------------------------------------------------------


def test_the_chapters_are_listed() -> None:
    shown = run("tour", "--list")

    assert [chapter.name for chapter in CHAPTERS] == [words[0] for words in shown.words[1:]]


def test_the_help_has_an_example_that_runs() -> None:
    shown = run("tour", "--help")

    assert "Example: logmark tour lag crash --no-pause" in shown.out
    assert ["lag", "crash"] == [chapter.name for chapter in touring.chosen(["lag", "crash"])]


def test_chapters_are_played_in_the_order_asked_for() -> None:
    shown = run("tour", "partitions", "offset")

    assert 0 == shown.exit_code
    assert ["2. Partitions, and a record's full name", "1. What an offset is"] == [
        line for line in shown.lines if re.match(r"\d+\. ", line)
    ]
    assert "fresh install" not in shown.out


def test_a_misspelt_chapter_is_an_error_with_a_suggestion() -> None:
    refused = run("tour", "crush")

    assert (2, "") == (refused.exit_code, refused.out)
    assert "There is no chapter 'crush'. Did you mean crash? `logmark tour --list` shows them all." in refused.error


def test_a_document_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    refused = run("tour", "partitions", "--markdown", str(tmp_path / "absent" / "tour.md"))

    assert 1 == refused.exit_code
    assert "tour.md cannot be written: No such file or directory." in refused.error


def test_chosen_chapters_become_a_document(tmp_path: Path) -> None:
    written = run("tour", "offset", "--no-pause", "--markdown", str(tmp_path / "tour.md"))

    assert (0, "") == (written.exit_code, written.out)
    chapter = (tmp_path / "tour.md").read_text(encoding="utf-8")
    assert chapter.strip() in (REPOSITORY / "docs" / "tour.md").read_text(encoding="utf-8")


def test_what_is_no_terminal_gets_plain_text_without_a_question() -> None:
    done = subprocess.run(
        [*COMMAND, "tour", "offset", "partitions"], stdin=subprocess.PIPE, capture_output=True, text=True, timeout=120,
        check=True, env={**os.environ, "PYTHONIOENCODING": "ascii"},
    )  # fmt: skip

    assert "" == done.stderr
    assert "clicks-0     | 0 | 1 | 2 | 3 | 4" in done.stdout
    assert "\x1b" not in done.stdout and "Enter" not in done.stdout


def test_in_a_terminal_enter_goes_on_and_q_leaves_quietly_in_the_middle_of_a_chapter() -> None:
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [*COMMAND, "tour", "offset", "workers"], stdin=theirs, stdout=theirs, stderr=subprocess.PIPE, text=True
    ) as child:
        os.close(theirs)
        first = read_until(ours, QUESTION).decode()
        os.write(ours, b"\n")
        second = read_until(ours, QUESTION).decode()
        os.write(ours, b"q\n")
        _, said = child.communicate(timeout=120)
    os.close(ours)

    assert "1. What an offset is" in first and "Workers and assignment" not in first
    assert "5. Workers and assignment" in second and "goes home" not in second
    # Not a word of the consumers that were left behind.
    assert (0, "Come back with `logmark tour CHAPTER`; `logmark tour --list` shows them all.\n") == (
        child.returncode,
        said,
    )


def test_an_interrupt_ends_the_tour_quietly_with_130() -> None:
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [*COMMAND, "tour", "workers"], stdin=theirs, stdout=theirs, stderr=subprocess.PIPE, text=True
    ) as child:
        os.close(theirs)
        read_until(ours, QUESTION)
        child.send_signal(signal.SIGINT)
        _, said = child.communicate(timeout=120)
    os.close(ours)

    assert (130, "") == (child.returncode, said)
