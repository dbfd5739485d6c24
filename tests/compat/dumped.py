"""What Apache's DumpLogSegments says of files, read from its text: it ends with 0 whatever it finds."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from tests.harness.gateway import call_tool
from tests.harness.tools import DUMP_LOG

# Said of every gap; and of every segment that begins above 0, because the tool takes -1 for the offset before it.
GAPS = "Non-consecutive offsets"
GAP = re.compile(r" +(-?\d+) is followed by (\d+)")
COMPLAINTS = (
    "Mismatches", "Found timestamp mismatch", "out of order timestamp", "indexed offsets are not found",
    "isvalid: false", "invalid bytes", "WARNING", "corrupt", "Exception", "Could not read",
)  # fmt: skip


class DumpedBatch(NamedTuple):
    """One batch."""

    base_offset: int
    last_offset: int
    record_count: int
    base_sequence: int
    producer_id: int
    producer_epoch: int
    leader_epoch: int
    is_transactional: bool
    is_control: bool
    position: int
    max_timestamp: int
    size_bytes: int
    codec: str
    crc: int


class DumpedRecord(NamedTuple):
    """One record, or the marker in a control batch."""

    offset: int
    timestamp: int
    key: str | None
    value: str | None
    header_keys: tuple[str, ...]
    marker: tuple[str, int] | None


@dataclass(slots=True)
class Dumped:
    """Everything that was said of one file."""

    batches: list[DumpedBatch] = field(default_factory=list)
    records: list[DumpedRecord] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)


_BATCH = re.compile(
    r"baseOffset: (\d+) lastOffset: (\d+) count: (\d+) baseSequence: (-?\d+) lastSequence: -?\d+ producerId: (-?\d+) "
    r"producerEpoch: (-?\d+) partitionLeaderEpoch: (-?\d+) isTransactional: (\w+) isControl: (\w+) deleteHorizonMs: "
    r"\S+ position: (\d+) (?:CreateTime|LogAppendTime|NoTimestampType): (-?\d+) size: (\d+) magic: 2 "
    r"compresscodec: (\w+) crc: (\d+) isvalid: true"
)
_RECORD = re.compile(
    r"\| offset: (\d+) \w+: (-?\d+) keySize: (-?\d+) valueSize: (-?\d+) sequence: -?\d+ headerKeys: \[(.*?)\]"
    r"(?: endTxnMarker: (\w+) coordinatorEpoch: (-?\d+)| key: (.*?)(?: payload: (.*))?| payload: (.*))?"
)


def complaints(text: str, *, is_compacted: bool = False) -> list[str]:
    """The lines that tell of something wrong; gaps are nothing wrong where a log was compacted."""
    lines = text.splitlines()
    told = [line for line in lines if any(one in line for one in COMPLAINTS)]
    gaps = [line for line in lines if (match := GAP.fullmatch(line)) and match[1] != "-1"]
    assert bool(gaps) <= any(GAPS in line for line in lines), "the tool says it with other words"
    return told if is_compacted else told + gaps


def dump(files: Iterable[Path], *extra: str, is_compacted: bool = False) -> dict[Path, Dumped]:
    """What is in the files, none of which may give reason to complain."""
    wanted = list(files)
    done = call_tool(
        DUMP_LOG, "--deep-iteration", "--print-data-log", *extra, "--files", ",".join(map(str, wanted))
    ).check()
    told = complaints(done.stdout + done.stderr, is_compacted=is_compacted)
    assert not told, told
    found: dict[Path, Dumped] = {}
    current = Dumped()
    for line in done.stdout.splitlines():
        if line.startswith("Dumping "):
            current = found[Path(line.removeprefix("Dumping "))] = Dumped()
        elif match := _BATCH.fullmatch(line):
            current.batches.append(_batch(match))
        elif match := _RECORD.fullmatch(line):
            current.records.append(_record(match))
        else:
            current.lines.append(line)
    assert set(wanted) == found.keys()
    return found


def _batch(match: "re.Match[str]") -> DumpedBatch:
    numbers = [int(match[at]) for at in (1, 2, 3, 4, 5, 6, 7)]
    return DumpedBatch(  # type: ignore[call-arg]
        *numbers, match[8] == "true", match[9] == "true", int(match[10]), int(match[11]), int(match[12]), match[13],
        int(match[14]),
    )  # fmt: skip


def _record(match: "re.Match[str]") -> DumpedRecord:
    key_size, value_size = int(match[3]), int(match[4])
    value = match[9] if match[9] is not None else match[10]
    return DumpedRecord(
        int(match[1]),
        int(match[2]),
        (match[8] or "") if key_size >= 0 and match[6] is None else None,
        (value or "") if value_size >= 0 and match[6] is None else None,
        tuple(match[5].split(",")) if match[5] else (),
        None if match[6] is None else (match[6], int(match[7])),
    )
