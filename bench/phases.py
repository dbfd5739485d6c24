"""Where a scan's time goes: processor time of each process, and of each step of reading without Spark."""

import contextlib
import os
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

CLOCK_TICKS = os.sysconf("SC_CLK_TCK")
PHASES = ("fetch", "decode", "lay out as Arrow", "write as Arrow's stream")
PROCESSES = ("JVM", "Python", "broker")


class Processors:
    """Processor time that Spark's processes and a broker have used since their start."""

    def __init__(self, broker_pid: int) -> None:
        self._broker_pid = broker_pid

    def seconds(self) -> dict[str, float]:
        """By JVM, Python (Spark's planners and workers, ended ones too) and broker."""
        stats = dict(_stats())
        children: dict[int, list[int]] = defaultdict(list)
        for pid, one in stats.items():
            children[one.parent].append(pid)
        used = dict.fromkeys(PROCESSES, 0.0)
        used["broker"] = stats[self._broker_pid].own if self._broker_pid in stats else 0.0
        below = [pid for pid in children[os.getpid()] if pid != self._broker_pid]
        while below:
            pid = below.pop()
            below += children[pid]
            is_java = stats[pid].command.startswith("java")
            used["JVM" if is_java else "Python"] += stats[pid].own
            used["Python"] += stats[pid].waited_for
        return used


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stat:
    parent: int
    command: str
    own: float
    waited_for: float  # children that have ended


def _stats() -> Iterator[tuple[int, _Stat]]:
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it ended meanwhile
            before, _, after = path.read_text().rpartition(") ")
            fields = after.split()
            own, waited_for = (int(fields[at]) + int(fields[at + 1]) for at in (11, 13))
            command = before.partition("(")[2]
            yield (
                int(path.parent.name),
                _Stat(
                    parent=int(fields[1]), command=command, own=own / CLOCK_TICKS, waited_for=waited_for / CLOCK_TICKS
                ),
            )


@dataclass(slots=True)
class Steps:
    """Processor seconds of each step of reading a topic into Arrow, in one process without Spark."""

    records: int = 0
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PHASES, 0.0))

    def per_million(self, phase: str) -> float:
        """Milliseconds for a million records."""
        return 1e9 * self.seconds[phase] / max(1, self.records)

    @contextlib.contextmanager
    def counted(self, phase: str) -> Iterator[None]:
        """Adds what is done inside to a phase."""
        begin = time.process_time()
        yield
        self.seconds[phase] += time.process_time() - begin


def steps_of(address: str, topic: str) -> Steps:
    """Reads a topic as an executor does and counts what each step takes."""
    import pyarrow as pa

    from logmark.memory import keep_freed_buffers
    from logmark.spark.source.arrow import split_batch, to_arrow
    from logmark.spark.source.batch_ranges import plan_batch_ranges
    from logmark.spark.source.options import parse_source_options
    from logmark.spark.source.range_reader import DECOMPRESSED_BYTES_MAX, Expansion, connect_source, split_windows
    from logmark.wire import columns

    keep_freed_buffers()
    options = parse_source_options(
        {"bootstrap.servers": address, "subscribe": topic, "startingOffsets": "earliest"}, is_stream=False
    )
    steps = Steps()
    with connect_source(options) as client, open(os.devnull, "wb", buffering=1 << 16) as nothing:
        for partition, (first, stop) in sorted(plan_batch_ranges(client, options, now_ms=0).items()):
            writer = None
            expansion = Expansion()
            with client.fetcher(partition, bytes_max=options.fetch_bytes_max) as fetcher:
                answers = fetcher.read(first, stop)
                at = first
                while True:
                    with steps.counted("fetch"):
                        answer = next(answers, None)
                    if answer is None:
                        break
                    for window in split_windows(answer.records, expansion):
                        with steps.counted("decode"):
                            part = columns.decode(
                                window, start=at, stop=stop, decompressed_bytes_max=DECOMPRESSED_BYTES_MAX
                            )
                        expansion.saw(len(window), len(part.value_bytes) + len(part.key_bytes))
                        at = max(at, part.next_offset)
                        steps.records += part.count
                        with steps.counted("lay out as Arrow"):
                            rows = to_arrow(part, partition)
                        with steps.counted("write as Arrow's stream"):
                            writer = writer or pa.RecordBatchStreamWriter(nothing, rows.schema)
                            for piece in split_batch(rows):
                                writer.write_batch(piece)
    return steps
