"""The watchdog of the event loop names the work that held the loop for long, once, and by its own share of the time."""

import asyncio
import functools
import gc
import logging
import struct
import threading
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from logmark.broker.api import api_versions, create_topics, fetch
from logmark.broker.loop_watchdog import (
    GARBAGE_COLLECTION,
    MANY_SHORT,
    NOT_RUNNING,
    SENDING,
    LoopWatchdog,
    TimedCoroutine,
    describe_work,
)
from logmark.broker.server import Broker
from logmark.broker.timers import Timers
from logmark.clock import ManualClock
from logmark.wire.messages import encode_request
from logmark.wire.schema import create_topics as create_topics_schema


class FakeTime:
    """A clock that moves only when a test says so, and the processor time that the loop's thread had."""

    def __init__(self) -> None:
        self.seconds = time.monotonic()
        self.processor_seconds = 0.0

    def now(self) -> float:
        return self.seconds

    def work(self, seconds: float) -> None:
        self.seconds += seconds
        self.processor_seconds += seconds

    def wait(self, seconds: float) -> None:
        self.seconds += seconds


@pytest.fixture
def fake() -> FakeTime:
    return FakeTime()


@pytest.fixture
def watchdog(fake: FakeTime) -> LoopWatchdog:
    return LoopWatchdog(now=fake.now, processor=lambda: fake.processor_seconds, clock=ManualClock(now_ms=5000))


def events(caplog: pytest.LogCaptureFixture) -> list[tuple[str, int]]:
    """What this test's watchdog has logged: brokers of other tests may run in other threads of this process."""
    return [
        (record.work, record.ms)  # type: ignore[attr-defined]
        for record in caplog.records
        if hasattr(record, "work") and record.thread == threading.get_ident()
    ]


def longest_ms(watchdog: LoopWatchdog) -> dict[str, int]:
    return {work: round(turns.longest_seconds * 1000) for work, turns in watchdog.turns.items()}


# What is kept and what is logged


def test_a_turn_above_50_ms_is_logged_with_its_work_and_its_length(
    watchdog: LoopWatchdog, fake: FakeTime, caplog: pytest.LogCaptureFixture
) -> None:
    watchdog.measure("Metadata", lambda: fake.work(0.083))

    assert [("Metadata", 83)] == events(caplog)
    assert "held for 83 ms" in caplog.messages[0]
    assert "Metadata" in caplog.messages[0]
    assert logging.WARNING == caplog.records[0].levelno


def test_a_shorter_turn_is_kept_but_not_logged_and_a_very_short_one_is_neither(
    watchdog: LoopWatchdog, fake: FakeTime, caplog: pytest.LogCaptureFixture
) -> None:
    watchdog.measure("Metadata", lambda: fake.work(0.049))
    watchdog.measure("Fetch", lambda: fake.work(0.004))

    assert [] == events(caplog)
    assert {"Metadata": 49} == longest_ms(watchdog)


def test_only_the_longest_turn_of_each_work_is_kept_with_the_time_of_day(
    fake: FakeTime,
) -> None:
    clock = ManualClock(now_ms=1000)
    watchdog = LoopWatchdog(now=fake.now, processor=lambda: 0.0, clock=clock)
    for seconds in (0.02, 0.04, 0.03):
        clock.advance(seconds=1)
        watchdog.measure("Fetch", functools.partial(fake.work, seconds))

    assert {"Fetch": 40} == longest_ms(watchdog)
    assert 3000 == watchdog.turns["Fetch"].longest_at_ms


def test_many_long_turns_of_one_work_are_one_event_in_ten_seconds_which_counts_the_others(
    watchdog: LoopWatchdog, fake: FakeTime, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(4):
        watchdog.measure("Fetch", lambda: fake.work(0.06))
    watchdog.measure("Produce", lambda: fake.work(0.07))
    assert [("Fetch", 60), ("Produce", 70)] == events(caplog)

    fake.wait(10)
    watchdog.measure("Fetch", lambda: fake.work(0.08))

    assert ("Fetch", 80) == events(caplog)[-1]
    assert 3 == caplog.records[-1].left_out  # type: ignore[attr-defined]
    assert 5 == watchdog.turns["Fetch"].long_count


def test_the_event_says_how_much_processor_time_the_turn_can_have_had(
    watchdog: LoopWatchdog, fake: FakeTime, caplog: pytest.LogCaptureFixture
) -> None:
    def read_a_slow_disk() -> None:
        fake.work(0.01)
        fake.wait(0.2)

    watchdog.measure("Fetch", read_a_slow_disk)

    assert [("Fetch", 210)] == events(caplog)
    assert 10 == caplog.records[0].processor_ms_max  # type: ignore[attr-defined]


# Work inside other work


def test_work_inside_other_work_counts_once_and_as_the_inner_one(watchdog: LoopWatchdog, fake: FakeTime) -> None:
    def outer() -> None:
        fake.work(0.01)
        watchdog.measure("inner", lambda: fake.work(0.06))
        watchdog.measure("inner", lambda: fake.work(0.02))

    def outermost() -> None:
        watchdog.measure("outer", outer)
        fake.work(0.02)

    watchdog.measure("outermost", outermost)

    assert {"inner": 60, "outer": 10, "outermost": 20} == longest_ms(watchdog)


def test_a_garbage_collection_inside_a_request_is_named_instead_of_the_request(
    watchdog: LoopWatchdog, fake: FakeTime, caplog: pytest.LogCaptureFixture
) -> None:
    def take_long(phase: str, info: object) -> None:
        if phase == "start":
            fake.work(0.08)

    async def run() -> None:
        watchdog.watch_loop(asyncio.get_running_loop())
        gc.callbacks.append(take_long)
        try:
            watchdog.measure("Metadata", gc.collect)  # type: ignore[arg-type]
        finally:
            gc.callbacks.remove(take_long)
        assert [] == events(caplog), "nothing is logged inside a collection"
        watchdog.beat()
        watchdog.stop()

    asyncio.run(run())

    assert [(GARBAGE_COLLECTION, 80)] == events(caplog)
    assert {GARBAGE_COLLECTION: 80} == longest_ms(watchdog)


# The heartbeat


def beat_after(watchdog: LoopWatchdog, happens: Callable[[], None]) -> None:
    async def run() -> None:
        watchdog.watch_loop(asyncio.get_running_loop())
        happens()
        watchdog.beat()
        watchdog.stop()

    asyncio.run(run())


def test_a_late_heartbeat_tells_many_short_turns_from_a_process_that_did_not_run(
    watchdog: LoopWatchdog, fake: FakeTime, caplog: pytest.LogCaptureFixture
) -> None:
    beat_after(watchdog, lambda: fake.work(0.125))
    beat_after(watchdog, lambda: fake.wait(0.225))

    assert [(MANY_SHORT, 100), (NOT_RUNNING, 200)] == events(caplog)


def test_a_late_heartbeat_that_noted_work_explains_is_no_event_of_its_own(
    watchdog: LoopWatchdog, fake: FakeTime, caplog: pytest.LogCaptureFixture
) -> None:
    def happens() -> None:
        fake.work(0.025)
        watchdog.measure("Fetch", lambda: fake.work(0.09))
        fake.work(0.04)

    beat_after(watchdog, happens)

    assert [("Fetch", 90)] == events(caplog)


def test_the_heartbeat_slows_down_while_the_loop_has_nothing_to_do_and_is_quick_again_when_it_works(
    watchdog: LoopWatchdog, fake: FakeTime
) -> None:
    intervals: list[float] = []

    async def run() -> None:
        watchdog.watch_loop(asyncio.get_running_loop())
        for seconds in (0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.03, 0.03):
            fake.processor_seconds += seconds
            fake.seconds = watchdog._due
            watchdog.beat()
            intervals.append(round(watchdog._due - fake.now(), 3))
        watchdog.stop()

    asyncio.run(run())

    assert [0.05, 0.1, 0.2, 0.4, 0.4, 0.4, 0.025, 0.025] == intervals
    assert {} == watchdog.turns


def test_a_heartbeat_in_time_is_no_event(watchdog: LoopWatchdog, fake: FakeTime) -> None:
    beat_after(watchdog, lambda: fake.wait(0.025))

    assert {} == watchdog.turns


# Tasks, callbacks, timers


def test_a_step_of_a_task_is_measured_and_its_waits_are_not(watchdog: LoopWatchdog, fake: FakeTime) -> None:
    async def work() -> str:
        fake.work(0.03)
        await asyncio.sleep(0)
        fake.work(0.06)
        await asyncio.sleep(0)
        return "done"

    async def run() -> None:
        watchdog.watch_loop(asyncio.get_running_loop())
        task = asyncio.create_task(work())
        await asyncio.sleep(0)
        fake.wait(3600)
        assert "done" == await task
        watchdog.stop()

    asyncio.run(run())

    (name,) = watchdog.turns
    assert name.endswith("work")
    assert 60 == longest_ms(watchdog)[name]


def test_a_task_that_fails_or_is_cancelled_does_so_as_without_a_watchdog(watchdog: LoopWatchdog) -> None:
    ended: list[str] = []

    async def fail() -> None:
        raise ValueError("as it was")

    async def wait() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("cancelled")

    async def run() -> None:
        watchdog.watch_loop(asyncio.get_running_loop())
        with pytest.raises(ValueError, match="as it was"):
            await asyncio.create_task(fail())
        waiting = asyncio.create_task(wait())
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        watchdog.stop()

    asyncio.run(run())

    assert ["cancelled"] == ended


def test_callbacks_through_the_watched_loop_are_measured_under_their_own_name(
    watchdog: LoopWatchdog, fake: FakeTime
) -> None:
    class Flusher:
        def __init__(self) -> None:
            self.name = "logmark-flush"

        def begin(self, seconds: float) -> None:
            fake.work(seconds)

        def end(self, seconds: float) -> None:
            fake.work(seconds)

        def wait(self, seconds: float) -> None:
            fake.work(seconds)

    async def run() -> None:
        loop = watchdog.watch_loop(asyncio.get_running_loop())
        loop.call_soon(Flusher().begin, 0.01)
        loop.call_soon_threadsafe(functools.partial(Flusher().end, 0.02))
        loop.call_later(0, Flusher().wait, 0.03)
        came = asyncio.Event()
        loop.call_later(0.001, came.set)
        await came.wait()
        watchdog.stop()

    asyncio.run(run())

    found = {work.rpartition("Flusher.")[2]: ms for work, ms in longest_ms(watchdog).items()}
    assert {"begin (logmark-flush)": 10, "end (logmark-flush)": 20, "wait (logmark-flush)": 30} == found


def test_a_repeated_timer_is_named_by_what_it_calls(watchdog: LoopWatchdog, fake: FakeTime) -> None:
    class Retention:
        def apply(self) -> None:
            fake.work(0.06)

    async def run() -> None:
        clock = ManualClock(now_ms=1000)
        timers = Timers(asyncio.get_running_loop(), clock, run=watchdog.run)
        timers.every(1000, Retention().apply)
        clock.advance(seconds=1)
        timers.wake()
        timers.close()

    asyncio.run(run())

    (name,) = watchdog.turns
    assert name.endswith("Retention.apply")


def test_a_callback_of_an_api_has_the_name_of_the_api() -> None:
    assert "Fetch" == describe_work(fetch._DelayedFetch._look_again)
    assert "Fetch" == describe_work(
        functools.partial(fetch._DelayedFetch._look_again, None, False)  # type: ignore[call-arg]
    )


def test_a_watchdog_that_stops_leaves_the_loop_and_the_collector_as_they_were(watchdog: LoopWatchdog) -> None:
    async def run() -> None:
        loop, callbacks = asyncio.get_running_loop(), list(gc.callbacks)
        watchdog.watch_loop(loop)
        assert callbacks != gc.callbacks
        watchdog.stop()
        assert callbacks == gc.callbacks
        assert loop.get_task_factory() is None

        async def nothing() -> None:
            pass

        task = asyncio.create_task(nothing())
        assert not isinstance(task.get_coro(), TimedCoroutine)
        await task

    asyncio.run(run())


# A real broker

HEADER = struct.Struct(">hhih")


def request(key: int, version: int, body: bytes = b"") -> bytes:
    frame = HEADER.pack(key, version, 7, 4) + b"hand" + body
    return len(frame).to_bytes(4, "big") + frame


async def read_answer(reader: asyncio.StreamReader) -> bytes:
    return await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))


def with_broker(
    tmp_path: Path,
    watchdog: LoopWatchdog,
    test: Callable[[Broker, asyncio.StreamReader, asyncio.StreamWriter], Coroutine[Any, Any, None]],
) -> None:
    async def run() -> None:
        broker = Broker(data_dir=str(tmp_path), durability="os", watchdog=watchdog)
        await broker.start()
        reader, writer = await asyncio.open_connection("127.0.0.1", broker.listeners[0].port)
        try:
            await test(broker, reader, writer)
        finally:
            writer.close()
            await broker.stop()

    asyncio.run(asyncio.wait_for(run(), 60))


def test_a_slow_request_is_named_by_its_api(
    tmp_path: Path, watchdog: LoopWatchdog, fake: FakeTime, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    handle = api_versions.handle

    def slow(*args: Any) -> Any:
        fake.work(0.06)
        return handle(*args)

    monkeypatch.setattr(api_versions, "handle", slow)

    async def test(broker: Broker, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(request(api_versions.KEY, 0))
        await read_answer(reader)

    with_broker(tmp_path, watchdog, test)

    assert [("ApiVersions", 60)] == events(caplog)


def test_a_large_request_is_named_by_its_api_too(
    tmp_path: Path, watchdog: LoopWatchdog, fake: FakeTime, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = api_versions.handle

    def slow(*args: Any) -> Any:
        fake.work(0.06)
        return handle(*args)

    monkeypatch.setattr(api_versions, "handle", slow)

    async def test(broker: Broker, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        padding = 20_000
        body = b"\x00\x05hand\x02" + b"1" + b"\x00"
        # A tagged field that nobody knows makes the header large.
        tagged = b"\x01\x63" + bytes([padding & 127 | 128, padding >> 7 & 127 | 128, padding >> 14]) + bytes(padding)
        writer.write(request(api_versions.KEY, 3, tagged + body[1:]))
        await read_answer(reader)

    with_broker(tmp_path, watchdog, test)

    assert {"ApiVersions": 60} == longest_ms(watchdog)


def test_requests_that_came_together_are_named_together(
    tmp_path: Path, watchdog: LoopWatchdog, fake: FakeTime, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = api_versions.handle

    def slow(*args: Any) -> Any:
        fake.work(0.06)
        return handle(*args)

    monkeypatch.setattr(api_versions, "handle", slow)
    describe_all = request(3, 1, (-1).to_bytes(4, "big", signed=True))

    async def test(broker: Broker, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(request(api_versions.KEY, 0) + describe_all)
        await read_answer(reader)
        await read_answer(reader)

    with_broker(tmp_path, watchdog, test)

    assert {"ApiVersions or Metadata": 60} == longest_ms(watchdog)


def test_a_slow_step_of_a_request_that_is_answered_later_is_named_by_its_api(
    tmp_path: Path, watchdog: LoopWatchdog, fake: FakeTime, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = create_topics.handle

    async def slow(*args: Any) -> Any:
        await asyncio.sleep(0)
        fake.work(0.06)
        return await handle(*args).work

    monkeypatch.setattr(create_topics, "handle", slow)

    async def test(broker: Broker, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        topic = create_topics_schema.RequestTopic(name="t", num_partitions=1, replication_factor=1)
        message = create_topics_schema.Request(topics=[topic], timeout_ms=1000)
        writer.write(request(create_topics.KEY, 4, encode_request(create_topics_schema, 4, message)))
        await read_answer(reader)

    with_broker(tmp_path, watchdog, test)

    assert {"CreateTopics": 60} == longest_ms(watchdog)


def test_reading_records_for_responses_is_named(tmp_path: Path, watchdog: LoopWatchdog, fake: FakeTime) -> None:
    async def test(broker: Broker, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        (connection,) = broker.connections
        connection.send = functools.partial(fake.work, 0.06)  # type: ignore[method-assign]
        broker.unsent_bytes = 1
        broker.send_soon(connection)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        del connection.send

    async def settled(broker: Broker, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(request(api_versions.KEY, 0))
        await read_answer(reader)
        await test(broker, reader, writer)

    with_broker(tmp_path, watchdog, settled)

    assert {SENDING: 60} == longest_ms(watchdog)
