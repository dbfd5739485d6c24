"""docs/promises.md names tests that exist, and the documents link to files that do."""

import re
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
PROMISES = REPOSITORY / "docs" / "promises.md"
DOCUMENTS = sorted([*REPOSITORY.glob("*.md"), *(REPOSITORY / "docs").glob("*.md")])


def test_every_promise_names_a_test_and_every_named_test_exists() -> None:
    rows = [line for line in PROMISES.read_text().splitlines() if line.startswith("| ") and "---" not in line]
    promises = [row for row in rows if not row.startswith("| promise")]
    assert promises

    for row in promises:
        named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", row)
        assert named, f"no test holds this promise: {row}"
        for path, function in named:
            assert (REPOSITORY / path).is_file(), f"{path} does not exist: {row}"
            source = (REPOSITORY / path).read_text()
            test = rf"\bdef {function}\(" if function else r"\bdef test_|^Test"
            assert re.search(test, source, re.MULTILINE), f"{path} has no {function or 'test'}: {row}"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_link_leads_somewhere(document: Path) -> None:
    for target in re.findall(r"\]\((?!https?:)([^)#\s]+)[^)]*\)", document.read_text()):
        assert (document.parent / target).exists(), f"{document.name} links to {target}"
