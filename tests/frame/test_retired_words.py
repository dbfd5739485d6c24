"""`make lint` refuses words that were retired for Kafka's and Spark's own, and lets ordinary uses of them pass."""

import subprocess
import sys
from pathlib import Path

import pytest

from scripts import retired_words

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("line", "word"),
    [
        ("The group keeps its place in the topic.", "place"),
        ("places = client.committed(group)", "places"),
        ("last_place = 3", "place"),
        ("class LastPlace:", "place"),
        ("PLACES = ()", "places"),
        ("The replay is gone on with by the same command.", "gone on with"),
        ("def test_a_topic_made_anew(): ...", "made anew"),
        ("A wrong port is a sentence.", "is a sentence"),
        ("Raises a sentence if the group is unknown.", "raises a sentence"),
        ("letters = read_letters(topic)", "letters"),
        ("The files were let go.", "let go"),
    ],
)
def test_a_retired_word_is_refused_and_another_is_suggested(line: str, word: str) -> None:
    found = retired_words.find_retired(line)

    assert found is not None
    assert word == found[0]
    assert "" != found[1]


@pytest.mark.parametrize(
    "line",
    [
        "The table is rewritten in place, and the swap takes place at once.",
        "text.replace(old, new); placeholder = REPLACED",
        "in_place_replay.py",
        "The new folder takes the place of the old one.",
        "A name has letters, digits, dots and hyphens.",
        "dead_letters = DeadLetters('dead-letter topic')",
        "def show(sentence: str) -> None:",
        "It goes on to the next batch.",
        '_FIELD = "places"  # a stored name: journals have it',
    ],
)
def test_an_ordinary_use_of_the_same_word_passes(line: str) -> None:
    assert retired_words.find_retired(line) is None


def test_the_words_are_refused_in_every_folder_that_is_not_named() -> None:
    checked = [path.relative_to(ROOT).as_posix() for path in retired_words.checked_files(ROOT)]

    assert {"src/logmark/log/partition.py", "docs/design.md", "bench/log.py", "examples/clicks/truth.py"} <= {*checked}
    assert "tests/frame/test_promises.py" in checked
    assert {"README.md", "CONTRIBUTING.md"} <= {*checked}


def test_the_project_has_no_retired_word() -> None:
    done = subprocess.run(
        [sys.executable, "scripts/retired_words.py"], cwd=ROOT, capture_output=True, text=True, check=False
    )

    assert (0, "") == (done.returncode, done.stdout)
