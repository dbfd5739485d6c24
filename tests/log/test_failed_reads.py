"""Reads that the disk fails: each is refused, and few of them are logged."""

import errno
from types import SimpleNamespace
from typing import Any, cast

import pytest

from logmark.errors import ErrorCode, Refused
from logmark.log.log_state import LogState
from logmark.log.reader import Reader


def test_a_client_that_reads_again_and_again_does_not_fill_the_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    reader = Reader(cast(LogState, SimpleNamespace(name="orders-0", segments=[])))
    failures = [errno.EIO] * 1000 + [errno.EMFILE]

    def fail(*_: Any) -> None:
        raise OSError(failures.pop(0), "on purpose")

    monkeypatch.setattr(Reader, "_search", fail)
    for _ in range(1001):
        with pytest.raises(Refused) as refused:
            reader.max_timestamp()
        assert ErrorCode.KAFKA_STORAGE_ERROR is refused.value.code

    assert [*(2**power for power in range(10)), 1] == [record.__dict__["failures"] for record in caplog.records]
    assert "orders-0 cannot be read: [Errno 24] on purpose" == caplog.records[-1].getMessage()
