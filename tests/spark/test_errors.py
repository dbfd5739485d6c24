"""Exceptions that Spark has turned into text are found again as the classes that they were."""

import inspect

import pytest

from logmark.client import errors as client_errors
from logmark.client.errors import BrokerUnreachable, CommitRefused, NoCoordinator, RefusedByBroker
from logmark.errors import UserError
from logmark.spark import errors
from logmark.spark.errors import (
    BuildFailed,
    BuildInterrupted,
    Contended,
    FailureKind,
    Superseded,
    failure_kind,
    find_exception,
    find_message,
)

UNKNOWN = {BuildFailed}
TRANSIENT = {BrokerUnreachable, NoCoordinator, RefusedByBroker, CommitRefused, Contended, BuildInterrupted}
OURS = sorted(
    {
        one
        for module in (errors, client_errors)
        for _, one in inspect.getmembers(module, inspect.isclass)
        if issubclass(one, UserError)
    },
    key=lambda one: one.__name__,
)


def as_spark_writes_it(exception: type[BaseException], message: str) -> str:
    return (
        "An exception was raised by the Python Proxy. Return Message: Traceback (most recent call last):\n"
        '  File "/env/lib/python3.11/site-packages/logmark/spark/tables/table.py", line 76, in write\n'
        f"    put(table)\n{exception.__module__}.{exception.__qualname__}: {message}\n\n=== Streaming Query ===\n"
    )


@pytest.mark.parametrize("exception", OURS)
def test_every_exception_of_ours_is_found_by_its_class_in_the_text_of_spark(exception: type[UserError]) -> None:
    text = as_spark_writes_it(exception, "Nothing was read.")

    assert (exception, "Nothing was read.") == find_exception(text)
    assert "Nothing was read." == find_message(text)
    kind = FailureKind.TRANSIENT if exception in TRANSIENT else FailureKind.PERMANENT
    kind = FailureKind.UNKNOWN if exception in UNKNOWN else kind
    assert (FailureKind.SUPERSEDED if issubclass(exception, Superseded) else kind) is failure_kind(exception)


def test_the_last_of_several_exceptions_counts() -> None:
    text = as_spark_writes_it(UserError, "first") + as_spark_writes_it(Superseded, "second")

    assert (Superseded, "second") == find_exception(text)


@pytest.mark.parametrize("name", ["logmark.spark.errors.NoSuchError", "logmark.nowhere.errors.UserError"])
def test_a_class_that_only_an_executor_knows_is_a_permanent_failure(name: str) -> None:
    found = find_exception(f"{name}: Nothing was read.")

    assert (UserError, "Nothing was read.") == found
    assert FailureKind.PERMANENT is failure_kind(UserError)


def test_a_text_without_an_exception_of_ours_has_none() -> None:
    assert None is find_exception("java.lang.IllegalStateException: boom")
    assert None is find_message("")
