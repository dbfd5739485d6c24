"""The record that a pipeline fails on is found by halving, and nothing is named that does not fail alone."""

import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from logmark.names import TopicPartition
from logmark.spark.errors import FailureKind
from logmark.spark.pipelines.failed_record import (
    FailedPart,
    Ranges,
    count_offsets,
    describe_part,
    failed_ranges,
    find_failed_part,
    is_same_failure,
    split_in_half,
)
from logmark.spark.pipelines.failures import classify_failure

P0, P1, P2 = (TopicPartition("clicks", number) for number in range(3))
WHOLE: Ranges = {P0: (100, 164), P1: (0, 1), P2: (7, 1000)}


def on(*bad: tuple[TopicPartition, int]) -> Callable[[Ranges], bool]:
    """Fails on a part that holds one of these records."""
    return lambda part: any(
        partition in part and part[partition][0] <= offset < part[partition][1] for partition, offset in bad
    )


def never() -> bool:
    return False


@pytest.mark.parametrize("bad", [(P0, 100), (P0, 163), (P1, 0), (P2, 7), (P2, 500), (P2, 999)])
def test_the_only_record_that_fails_is_named_after_few_tries(bad: tuple[TopicPartition, int]) -> None:
    found = find_failed_part(WHOLE, on(bad), is_late=never)

    assert bad == found.record
    assert found.tries <= 12
    assert f"It fails on the record {bad[0]} offset {bad[1]}." == describe_part(found, WHOLE)


def test_of_several_records_that_fail_one_is_named() -> None:
    bad = (P0, 130), (P2, 8), (P2, 900)

    assert find_failed_part(WHOLE, on(*bad), is_late=never).record in bad


def test_what_fails_only_together_is_not_named_as_one() -> None:
    def both(part: Ranges) -> bool:
        return on((P0, 120))(part) and on((P0, 140))(part)

    found = find_failed_part(WHOLE, both, is_late=never)

    assert None is found.record
    assert both(found.ranges)
    assert count_offsets(found.ranges) < count_offsets(WHOLE)
    assert describe_part(found, WHOLE).startswith("It fails on a record among clicks-0 offsets 1")


def test_what_does_not_fail_again_leaves_the_whole_batch() -> None:
    found = find_failed_part(WHOLE, lambda part: False, is_late=never)

    assert WHOLE == found.ranges
    assert (
        "The batch that failed has clicks-0 offsets 100 to 163, clicks-1 offsets 0 to 0, clicks-2 offsets 7 to 999."
        == describe_part(found, WHOLE)
    )


def test_a_batch_of_one_record_needs_no_try() -> None:
    assert FailedPart(ranges={P1: (5, 6)}, tries=0) == find_failed_part({P1: (5, 6)}, lambda part: False, is_late=never)


def test_the_search_ends_when_its_time_or_its_tries_are_up_with_what_it_knows() -> None:
    tries = [0]

    def slow(part: Ranges) -> bool:
        tries[0] += 1
        if tries[0] > 3:
            raise TimeoutError
        return on((P2, 500))(part)

    cut_short = find_failed_part(WHOLE, slow, is_late=never)
    few = find_failed_part(WHOLE, on((P0, 100)), tries_max=3, is_late=never)
    late = find_failed_part(WHOLE, on((P0, 100)), is_late=lambda: True)

    assert on((P2, 500))(cut_short.ranges)
    assert 3 == few.tries
    assert 0 < count_offsets(few.ranges) < count_offsets(WHOLE) / 4
    assert FailedPart(ranges=WHOLE, tries=0) == late


def test_halves_are_disjoint_and_whole() -> None:
    chance = random.Random(3)
    for _ in range(300):
        ranges = {
            TopicPartition("t", number): (first := chance.randint(0, 50), first + chance.randint(1, 9))
            for number in range(chance.randint(1, 5))
        }
        if count_offsets(ranges) < 2:
            continue
        left, right = split_in_half(ranges)

        def records(part: Ranges) -> list[tuple[TopicPartition, int]]:
            return [(partition, offset) for partition, (first, stop) in part.items() for offset in range(first, stop)]

        assert sorted(records(ranges)) == sorted(records(left) + records(right))
        assert abs(count_offsets(left) - count_offsets(right)) <= 1


def test_the_batch_that_failed_is_the_one_that_was_planned_and_not_finished(tmp_path: Path) -> None:
    position = {"group": "g", "q": "q", "g": 1, "f": {"clicks": {"0": 3}}, "t": {"clicks": {"0": 9}}}
    for kind in ("offsets", "commits"):
        (tmp_path / kind).mkdir()
    for number in (9, 10):
        (tmp_path / "offsets" / str(number)).write_text(f"v1\n{{}}\n{json.dumps(position)}")
    (tmp_path / "commits" / "9").touch()
    (tmp_path / "offsets" / ".11.crc").touch()

    assert {P0: (3, 9)} == failed_ranges(tmp_path)
    (tmp_path / "commits" / "10").touch()
    assert {} == failed_ranges(tmp_path)


@pytest.mark.parametrize(
    ("raised", "kind", "said"),
    [
        (
            "ZeroDivisionError: division by zero",
            FailureKind.PERMANENT,
            "code failed: ZeroDivisionError: division by zero (/home",
        ),
        (
            "MemoryError",
            FailureKind.TRANSIENT,
            "another try may succeed: MemoryError (/home/ann/logmark/billing.py, line 7, in price)",
        ),
        ("requests.exceptions.ConnectionError: refused", FailureKind.TRANSIENT, "ConnectionError: refused"),
        ("socket.gaierror: [Errno -2] Name or service not known", FailureKind.TRANSIENT, "gaierror"),
        ("KeyError", FailureKind.PERMANENT, "code failed: KeyError (/home/ann/logmark/billing.py"),
        ("shop.errors.NoPrice: none", FailureKind.PERMANENT, "NoPrice: none"),
    ],
)
def test_an_exception_in_the_pipelines_code_ends_it_unless_it_is_one_that_passes(
    raised: str, kind: FailureKind, said: str
) -> None:
    trace = f"""Job aborted.
Traceback (most recent call last):
  File "/opt/lib/python3.11/site-packages/pyspark/worker.py", line 99, in main
    process()
  File "/home/ann/logmark/billing.py", line 7, in price
    return 100 // value
           ~~~~^^~~~~~~
{raised}

\tat org.apache.spark.api.python.BasePythonRunner.compute(PythonRunner.scala:1)
"""

    found = classify_failure(trace)

    assert kind is found.kind
    assert said in found.message


@pytest.mark.parametrize(
    ("told", "where"),
    [
        ('== DataFrame ==\n"__truediv__" was called from\n/home/ann/billing.py:3', "(/home/ann/billing.py, line 3)"),
        ("== SQL (line 1, position 1) ==\n100 / price as share\n^^^^^^^^^^^", "(in 100 / price as share)"),
        ("", "instead."),
    ],
)
def test_an_expression_that_cannot_be_computed_is_named_by_its_line_or_its_words(told: str, where: str) -> None:
    trace = f"""terminated with exception: Traceback (most recent call last):
  File "/opt/lib/python3.11/site-packages/logmark/spark/tables/table.py", line 155, in _stage
pyspark.errors.exceptions.captured.ArithmeticException: [DIVIDE_BY_ZERO] Division by zero. Use `try_divide` instead. \
SQLSTATE: 22012
{told}

 SQLSTATE: 39000 SQLSTATE: XXKST
=== Streaming Query ===
Identifier: [id = 1]
"""

    found = classify_failure(trace)

    assert (FailureKind.PERMANENT, True) == (found.kind, found.is_of_code)
    assert found.message.startswith("Spark refused what the pipeline asks for (DIVIDE_BY_ZERO): Division by zero.")
    assert found.message.endswith(where)


def test_another_mistake_than_the_one_that_ended_the_pipeline_names_no_record() -> None:
    code = "The pipeline's own code failed: {} (/home/ann/billing.py, line {}, in price)."
    refused = "Spark refused what the pipeline asks for ({}): some words (/home/ann/billing.py, line 3)"

    assert is_same_failure(code.format("ValueError: 'a'", 7), code.format("ValueError: 'b' (or so)", 7))
    assert not is_same_failure(code.format("ValueError: 'a'", 7), code.format("KeyError: 'a'", 7))
    assert not is_same_failure(code.format("ValueError: 'a'", 8), code.format("ValueError: 'a'", 7))
    assert is_same_failure(refused.format("DIVIDE_BY_ZERO"), refused.format("DIVIDE_BY_ZERO"))
    assert not is_same_failure(refused.format("UNSUPPORTED_STREAMING"), refused.format("DIVIDE_BY_ZERO"))
    assert not is_same_failure("A broker is away.", code.format("ValueError: 'a'", 7))
    assert is_same_failure("anything", "")
