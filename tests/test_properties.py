"""Java properties are read as Java reads them."""

from pathlib import Path

import pytest

from logmark import properties
from logmark.errors import UserError


def test_a_properties_file_is_read_as_java_reads_it() -> None:
    text = (
        "# a comment\n! another\n\nplain=value\n  spaced : other value  \nlong=one \\\n    two\n"
        "escaped\\:name=a\\tb\\u0041\nempty=\nwindows=c:\\\\dir\nbare\n"
    )
    expected = {
        "plain": "value",
        "spaced": "other value",
        "long": "one two",
        "escaped:name": "a\tbA",
        "empty": "",
        "windows": "c:\\dir",
        "bare": "",
    }
    assert expected == properties.parse(text)


def test_a_file_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be read: No such file"):
        properties.read(tmp_path / "absent.properties")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match="not text in UTF-8"):
        properties.read(tmp_path / "binary")
