"""Readers that Spark makes of one call of `load()`."""

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from logmark.errors import UserError
from logmark.spark.source import query_tokens
from logmark.spark.source.query_tokens import check_only_reader, make_load_token, make_query_token


@pytest.fixture
def other() -> Iterator[subprocess.Popen[str]]:
    """Another process, which lives until its standard input is closed."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, text=True)
    yield process
    process.kill()
    process.wait()


def token_of(pid: int, load: str) -> str:
    return make_query_token(load).replace(f"-{os.getpid()}-", f"-{pid}-")


def test_a_live_reader_of_the_same_load_is_a_mistake_and_any_other_query_is_none(
    other: "subprocess.Popen[str]", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(query_tokens, "ENDS_WITHIN_S", 0.0)
    load = make_load_token()

    check_only_reader([], load, group="g")
    check_only_reader([make_query_token(load), token_of(other.pid, make_load_token())], load, group="g")
    check_only_reader(["elsewhere-1-" + load + "-0", "host-4711-1c4849a3", "odd"], load, group="g")
    with pytest.raises(UserError, match=r"reads in the group g: .* Nothing was read by this one.* share_source"):
        check_only_reader([token_of(other.pid, load)], load, group="g")


def test_a_reader_that_ends_is_waited_for(other: "subprocess.Popen[str]") -> None:
    load = make_load_token()
    token = token_of(other.pid, load)
    assert other.stdin is not None
    other.stdin.close()
    other.wait()

    check_only_reader([token], load, group="g")


def test_two_queries_of_one_process_have_two_tokens() -> None:
    load = make_load_token()

    assert make_query_token(load) != make_query_token(load)
