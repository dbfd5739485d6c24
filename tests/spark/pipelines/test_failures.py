"""Whether a failed query is started again, by the very texts that Spark makes of failures."""

import pytest

from logmark.client.errors import AuthenticationFailed, BrokerUnreachable, NoCoordinator
from logmark.errors import ErrorCode, UserError
from logmark.spark.errors import BuildInterrupted, Contended, FailureKind, Superseded
from logmark.spark.pipelines.failures import classify_exception, classify_failure
from logmark.spark.pipelines.restart_policy import CALM_AFTER_S, PAUSE_S_MAX, RestartPolicy

_QUERY = """
=== Streaming Query ===
Identifier: [id = 03bd6cb9-3a65-4e75-a851-0402f99ef3a0, runId = 048ddb02-d64d-4f25-ae42-2da57166ba19]
Current State: ACTIVE
"""
_PROXY = """\
An exception was raised by the Python Proxy. Return Message: Traceback (most recent call last):
  File "/env/lib/python3.11/site-packages/py4j/clientserver.py", line 644, in _call_proxy
    return_value = getattr(self.pool[obj_id], method)(*params)
  File "/env/lib/python3.11/site-packages/logmark/spark/tables/table.py", line 76, in write
    is_computed = put(table, batch, rows.schema.json(), lambda folder: _stage(rows, folder), rules)
"""


def ours(name: str, message: str) -> str:
    """An error message of ours, as Spark wraps it."""
    return f"{_PROXY}logmark.{name}: {message}\n{_QUERY}"


IN_CODE = f"""{_PROXY}\
  File "/home/ann/billing.py", line 21, in price
    raise ValueError("boom "+str(v))
pyspark.errors.exceptions.captured.PythonException: An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "/home/ann/billing.py", line 21, in price
    raise ValueError("boom "+str(v))
ValueError: boom b'v1'
{_QUERY}"""
IN_A_LIBRARY_THAT_CODE_CALLS = f"""{_PROXY}\
pyspark.errors.exceptions.captured.PythonException: An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "/home/ann/shop/prices.py", line 7, in parsed
    return json.loads(text)
  File "/usr/lib/python3.11/json/__init__.py", line 346, in loads
    return _default_decoder.decode(s)
json.decoder.JSONDecodeError: Expecting value: line 1 column 1 (char 0)
{_QUERY}"""
IN_OUR_OWN = f"""{_PROXY}\
pyspark.errors.exceptions.captured.PythonException: An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "/env/lib/python3.11/site-packages/logmark/spark/source/range_reader.py", line 36, in connect
    return Client(options.bootstrap_servers)
AttributeError: 'Options' object has no attribute 'client'
{_QUERY}"""
IN_AN_EXPRESSION = f"""{_PROXY}\
  File "/env/lib/python3.11/site-packages/pyspark/errors/exceptions/captured.py", line 262, in deco
    raise converted from None
pyspark.errors.exceptions.captured.NumberFormatException: [CAST_INVALID_INPUT] The value 'v1' of the type "STRING" \
cannot be cast to "INT" because it is malformed. Use `try_cast` to tolerate malformed input. SQLSTATE: 22018
== SQL (line 1, position 1) ==
cast(cast(value as string) as int) as x
{_QUERY}"""
A_DEAD_WORKER_UNDER_A_TABLE = """Traceback (most recent call last):
  File "/opt/pipelines/lib/python3.11/site-packages/logmark/spark/tables/table.py", line 160, in _stage
    writer.parquet(str(directory))
py4j.protocol.Py4JJavaError: An error occurred while calling o314.parquet.
: org.apache.spark.SparkException: [TASK_WRITE_FAILED] Task failed while writing rows.
\tat org.apache.spark.sql.errors.QueryExecutionErrors$.taskFailedWhileWritingRowsError(QueryExecutionErrors.scala:776)
Caused by: org.apache.spark.SparkException: Python worker exited unexpectedly (crashed)
\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handleException(PythonRunner.scala:680)
Caused by: java.io.EOFException
\tat java.base/java.io.DataInputStream.readInt(DataInputStream.java:398)
"""
A_DEAD_WORKER = f"""{_PROXY}\
  File "/env/lib/python3.11/site-packages/pyspark/errors/exceptions/captured.py", line 262, in deco
    raise converted from None
pyspark.errors.exceptions.captured.SparkException: Job aborted due to stage failure: Task 0 in stage 3.0 failed 1 \
times: org.apache.spark.SparkException: Python worker exited unexpectedly (crashed)
{_QUERY}"""


@pytest.mark.parametrize(
    ("failure", "kind"),
    [
        (ours("errors.UserError", "There is no topic clicks. Nothing was read."), FailureKind.PERMANENT),
        (ours("client.errors.BadProperties", "ssl.key is no key."), FailureKind.PERMANENT),
        (ours("client.errors.AuthenticationFailed", "Wrong password."), FailureKind.PERMANENT),
        (ours("client.errors.BrokerUnreachable", "Nobody answers at kafka:9092."), FailureKind.TRANSIENT),
        (ours("client.errors.NoCoordinator", "Nobody keeps the group."), FailureKind.TRANSIENT),
        (ours("client.errors.RefusedByBroker", "The leader is being elected."), FailureKind.TRANSIENT),
        (ours("spark.errors.PermanentlyRefused", "You are not allowed to read this topic."), FailureKind.PERMANENT),
        (ours("spark.errors.Contended", "Others change the table all the time."), FailureKind.TRANSIENT),
        (ours("spark.errors.Superseded", "Group billing was taken over."), FailureKind.SUPERSEDED),
        (IN_CODE, FailureKind.PERMANENT),
        (IN_A_LIBRARY_THAT_CODE_CALLS, FailureKind.PERMANENT),
        (IN_AN_EXPRESSION, FailureKind.PERMANENT),
        (IN_OUR_OWN, FailureKind.UNKNOWN),
        (A_DEAD_WORKER, FailureKind.TRANSIENT),
        ("Python worker failed to connect back.", FailureKind.TRANSIENT),
        ("Something that nobody has seen before.", FailureKind.UNKNOWN),
        ("", FailureKind.UNKNOWN),
    ],
)
def test_what_is_transient_is_tried_again_and_what_stays_is_not(failure: str, kind: FailureKind) -> None:
    assert kind is classify_failure(failure).kind


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (ErrorCode.GROUP_AUTHORIZATION_FAILED, FailureKind.PERMANENT),
        (ErrorCode.COORDINATOR_NOT_AVAILABLE, FailureKind.TRANSIENT),
    ],
)
def test_a_missing_right_is_not_tried_again_and_a_missing_coordinator_is(code: ErrorCode, kind: FailureKind) -> None:
    assert kind is classify_exception(NoCoordinator("billing", code, "It cannot be used.")).kind


@pytest.mark.parametrize("name", ["pyspark", "pandas", "projects/logmark/spark", "lib/python3.11", "env/lib"])
def test_code_of_users_is_theirs_whatever_its_folder_is_called(name: str) -> None:
    folder = f"/home/ann/{name}"
    file = f"{folder}/billing.py"
    for found in (
        classify_failure(IN_CODE.replace("/home/ann/billing.py", file), folder=folder),
        classify_exception(_raised_by(file, ValueError("boom")), folder=folder),
    ):
        assert (FailureKind.PERMANENT, True) == (found.kind, found.is_of_code)
        assert file in found.message


@pytest.mark.parametrize("name", ["pyspark", "pandas", "projects/logmark/spark"])
def test_code_of_users_is_theirs_also_where_it_is_not_known_where_the_pipeline_was_declared(name: str) -> None:
    assert classify_failure(IN_CODE.replace("/home/ann/", f"/home/ann/{name}/")).is_of_code


@pytest.mark.parametrize(
    "file",
    [
        "/env/lib/python3.11/site-packages/pyspark/worker.py",
        "/home/ann/env/lib/python3.11/site-packages/pandas/core/frame.py",
        "/usr/lib/python3/dist-packages/pyarrow/array.py",
        "/opt/spark/python/pyspark/worker.py",
        "/opt/spark-4.1.0-bin-hadoop3/python/lib/pyspark.zip/pyspark/worker.py",
        "/yarn/container_1/py4j-0.10.9.9-src.zip/py4j/protocol.py",
        "/usr/lib64/python3.11/socket.py",
        "<frozen importlib._bootstrap>",
        "/executor/app-1/0/logmark/logmark/spark/source/range_reader.py",  # as executors unpack a wheel
        "/home/ann/src/logmark/spark/source/range_reader.py",
        "src/logmark/wire/columns.py",
    ],
)
@pytest.mark.parametrize("folder", [None, "/home/ann"])
def test_what_packages_and_python_itself_raise_is_not_of_the_users_code(file: str, folder: str | None) -> None:
    text = f'{_PROXY}  File "{file}", line 7, in work\n    call()\nAttributeError: no such thing\n{_QUERY}'

    assert (FailureKind.UNKNOWN, False) == (
        classify_failure(text, folder=folder).kind,
        classify_failure(text, folder=folder).is_of_code,
    )


def test_an_error_of_ours_is_described_as_it_is() -> None:
    assert (
        "Group billing was taken over."
        == classify_failure(ours("spark.errors.Superseded", "Group billing was taken over.")).describe()
    )


@pytest.mark.parametrize(
    ("failure", "said"),
    [
        (IN_CODE, "ValueError: boom b'v1' (/home/ann/billing.py, line 21, in price)"),
        (
            IN_A_LIBRARY_THAT_CODE_CALLS,
            "JSONDecodeError: Expecting value: line 1 column 1 (char 0) (/home/ann/shop/prices",
        ),
        (IN_AN_EXPRESSION, "(CAST_INVALID_INPUT): The value 'v1' of the type"),
        (A_DEAD_WORKER, "Python worker exited unexpectedly (crashed)"),
        (A_DEAD_WORKER_UNDER_A_TABLE, "SparkException: Python worker exited unexpectedly (crashed)"),
    ],
)
def test_a_failure_is_told_in_one_line_that_says_where(failure: str, said: str) -> None:
    told = classify_failure(failure).describe()

    assert said in told
    assert "\n" not in told


def test_the_record_that_code_fails_on_is_named_before_what_to_do_about_it() -> None:
    told = classify_failure(IN_CODE).describe("It fails on the record clicks-0 offset 7.")

    assert told.index("boom") < told.index("clicks-0 offset 7") < told.index("Nothing of this batch was written")


def _raised_by(transform: str, error: BaseException) -> BaseException:
    """An exception that code in a file of that name has raised."""
    code = compile("def transform(error):\n    raise error\n", transform, "exec")
    names: dict[str, object] = {}
    exec(code, names)
    with pytest.raises(type(error)) as raised:
        names["transform"](error)  # type: ignore[operator]
    return raised.value


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (UserError("There is no topic clicks."), FailureKind.PERMANENT),
        (AuthenticationFailed("Wrong password."), FailureKind.PERMANENT),
        (BrokerUnreachable("Nobody answers."), FailureKind.TRANSIENT),
        (Superseded("Group billing was taken over."), FailureKind.SUPERSEDED),
        (Contended("Others change the table."), FailureKind.TRANSIENT),
        (BuildInterrupted("Python worker failed to connect back."), FailureKind.TRANSIENT),
        (ValueError("no column price"), FailureKind.PERMANENT),
    ],
)
def test_what_is_raised_before_there_is_a_query_is_classified_alike(error: Exception, kind: FailureKind) -> None:
    found = classify_exception(_raised_by("/home/ann/billing.py", error))

    assert kind is found.kind
    assert str(error) in found.describe()


def test_the_line_of_the_pipelines_file_that_raised_is_named() -> None:
    found = classify_exception(_raised_by("/home/ann/billing.py", ValueError("no column price")))

    assert "ValueError: no column price (/home/ann/billing.py, line 2, in transform)" in found.describe()


def pauses(restarts: RestartPolicy, failures: int) -> list[float]:
    found = []
    for number in range(failures):
        restarts = restarts.after_failure(number)
        found.append(restarts.pause_s(lambda: 0.5))
    return found


def test_pauses_double_from_a_second_to_a_minute() -> None:
    assert [1, 2, 4, 8, 16, 32, 60, 60] == pauses(RestartPolicy(), 8)
    assert PAUSE_S_MAX == pauses(RestartPolicy(), 200)[-1]


def test_pauses_are_spread_so_that_many_pipelines_do_not_start_in_step() -> None:
    once = RestartPolicy().after_failure(0)

    assert pytest.approx(0.8) == once.pause_s(lambda: 0.0)
    assert pytest.approx(1.2) == once.pause_s(lambda: 1.0)


def test_a_query_that_worked_for_a_while_begins_with_a_short_pause_again() -> None:
    calm_ms = round(CALM_AFTER_S * 1000)
    restarts = RestartPolicy()
    for _ in range(5):
        restarts = restarts.after_failure(0)
    worked = restarts.after_batch()

    assert 32 == worked.after_failure(calm_ms - 1).pause_s(lambda: 0.5)
    assert 1 == worked.after_failure(calm_ms).pause_s(lambda: 0.5)
    assert 1 == worked.while_active(calm_ms).after_failure(calm_ms + 1).pause_s(lambda: 0.5)
    assert 6 == worked.after_failure(calm_ms).count


def test_tries_that_take_long_and_finish_no_batch_are_failures_in_a_row() -> None:
    calm_ms = round(CALM_AFTER_S * 1000)
    restarts = RestartPolicy().after_batch()
    for number in range(1, 12):
        restarts = restarts.while_active(number * 2 * calm_ms - 1).after_failure(number * 2 * calm_ms)

    assert (11, PAUSE_S_MAX) == (restarts.in_a_row, restarts.pause_s(lambda: 0.5))
