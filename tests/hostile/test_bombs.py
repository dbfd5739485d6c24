"""A batch of a few kilobytes that unpacks to much more costs less than twice the limit, wherever it is unpacked."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.hostile.bombs import KINDS, LIMIT

REPOSITORY = Path(__file__).resolve().parents[2]


def opened_at(site: str) -> dict[str, dict[str, object]]:
    """What each bomb did in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.hostile.bombs", site],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert 0 == done.returncode, done.stderr[-2000:]
    seen: dict[str, dict[str, object]] = json.loads(done.stdout)
    assert set(KINDS) == set(seen)
    for kind, what in seen.items():
        grew = int(str(what["grew_bytes"]))
        assert grew < 2 * LIMIT, f"{kind} took {grew} bytes where {LIMIT} are allowed"
    return seen


@pytest.mark.parametrize(("site", "error"), [("produce", "Refused: MESSAGE_TOO_LARGE"), ("compact", "TooLarge")])
def test_a_bomb_is_refused_with_its_reason(site: str, error: str) -> None:
    for kind, what in opened_at(site).items():
        answer = str(what["answer"])
        assert answer.startswith(error), (kind, answer)
        assert "decompresses to more" in answer or "declares" in answer


def test_a_look_up_by_time_finds_a_record_in_a_bomb_without_unpacking_it() -> None:
    seen = opened_at("look_up")

    # The one form that cannot be unpacked piece by piece is refused, with its position.
    block = str(seen.pop("snappy in one block")["answer"])
    assert block.startswith("Refused: CORRUPT_MESSAGE") and "byte 0 of" in block and "declares" in block
    assert {"done: (0, 1700000000000)"} == {str(what["answer"]) for what in seen.values()}
