"""Errors of the offset tools: typed, and without a word of the command line."""

import ast
import re
from pathlib import Path

import pytest

import logmark.offsets

SOURCES = sorted(Path(logmark.offsets.__file__).parent.rglob("*.py"))
# The drop-in for Kafka's tool is a command line of its own; an alert's command is an example of one.
COMMAND_LINES = ("kafka_consumer_groups", "alert_file.py")


@pytest.mark.parametrize("path", [one for one in SOURCES if not set(COMMAND_LINES) & set(one.parts)], ids=str)
def test_no_text_of_the_library_names_an_option_or_a_command(path: Path) -> None:
    texts = [one.value for one in ast.walk(ast.parse(path.read_text())) if isinstance(one, ast.Constant)]

    found = [
        one
        for one in texts
        if isinstance(one, str) and re.search(r"(^|[ (`])--[a-z]|logmark (offsets|lag|replay)", one)
    ]
    assert [] == [one for one in found if "kafka-consumer-groups.sh" not in one]
