"""`python -m tests.hostile.bombs SITE`: opens a bomb of each kind at one of the sites that decompress records.

One line of JSON: for each kind of bomb the answer, and the largest growth of the process's memory meanwhile.
"""

import ctypes
import gc
import json
import struct
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import cramjam
import zstandard

from logmark.errors import LogmarkError
from logmark.log import timestamp_lookup
from logmark.log.partition import Partition
from logmark.log.segment_cleaner import Limits, Plan, clean
from logmark.wire import batches, codecs, columns
from logmark.wire.batches import BatchRules
from tests.log.directory_driver import LogDriver, settings

LIMIT = 16 << 20
TRIES = 3
BOMB_BYTES = 2 * LIMIT
NOW_MS = 1_700_000_000_000


def _without_its_size(data: bytes) -> bytes:
    stream = zstandard.ZstdCompressor().compressobj()
    return stream.compress(data) + stream.flush()


KINDS: dict[str, tuple[int, Callable[[bytes], bytes]]] = {
    **{codecs.NAMES[codec]: (codec, partial(codecs.compress, codec)) for codec in range(codecs.GZIP, codecs.ZSTD + 1)},
    # As clients of other languages send them.
    "snappy in one block": (codecs.SNAPPY, lambda data: bytes(cramjam.snappy.compress_raw(data))),
    "zstd without its size": (codecs.ZSTD, _without_its_size),
}


def bomb(kind: str) -> bytearray:
    """A small batch whose one record unpacks to twice the limit."""
    codec, compress = KINDS[kind]
    batch = batches.build([(b"key", b"." * BOMB_BYTES)], timestamp_ms=NOW_MS)
    batch[batches.HEADER_BYTES :] = compress(bytes(batch[batches.HEADER_BYTES :]))
    struct.pack_into(">i", batch, 8, len(batch) - 12)
    struct.pack_into(">h", batch, 21, codec)
    struct.pack_into(">I", batch, 17, columns.crc32c(batch, 21, len(batch) - 21))
    assert len(batch) < BOMB_BYTES / 15, "no bomb"
    return batch


def produce(batch: bytearray, log: Partition | None, driver: LogDriver) -> object:
    """A client sends it."""
    rules = BatchRules(max_message_bytes=LIMIT, decompressed_bytes_max=LIMIT)
    return batches.check_produced(memoryview(batch), rules, now_ms=NOW_MS, produce_version=9).size


def stored(batch: bytearray, driver: LogDriver) -> Partition:
    """A log that has it: one that was made with a higher limit, or by Apache Kafka, which has none."""
    partition = driver.create(f"topic-{len(batch)}", config=settings(cleanup_policy="compact"))
    partition.append(batches.own(batch), now_ms=NOW_MS)
    driver.settle(partition)
    return partition


def look_up(batch: bytearray, log: Partition | None, driver: LogDriver) -> object:
    """Somebody asks for the first record after it."""
    assert log is not None
    timestamp_lookup.DECOMPRESSED_BYTES_MAX = LIMIT
    return log.offset_for_timestamp(NOW_MS)


def compact(batch: bytearray, log: Partition | None, driver: LogDriver) -> object:
    """The cleaner comes by."""
    assert log is not None
    plan = Plan(
        folder=log.folder,
        bases=[0],
        sizes=[len(batch)],
        first_dirty_offset=0,
        end_offset=1,
        now_ms=NOW_MS,
        delete_retention_ms=0,
        limits=Limits(decompressed_bytes_max=LIMIT),
    )
    return [str(each) for each in clean(plan, driver.files)]


SITES: dict[str, Callable[[bytearray, Partition | None, LogDriver], object]] = {
    "produce": produce,
    "look_up": look_up,
    "compact": compact,
}


def memory(line: str) -> int:
    """A figure of /proc/self/status in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(each.split()[1]) for each in lines if each.startswith(line)) * 1024


def opened(kind: str, site: Callable[[bytearray, Partition | None, LogDriver], object]) -> dict[str, object]:
    """Open one bomb and return the answer, and by how many bytes the process grew meanwhile."""
    with tempfile.TemporaryDirectory() as folder:
        batch, driver = bomb(kind), LogDriver(Path(folder))
        # The buffers that every write to the log has are not the bomb's.
        log = None if site is produce else stored(batch, driver)
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")
        before = memory("VmRSS")
        try:
            answer = f"done: {site(batch, log, driver)}"
        except LogmarkError as error:
            answer = f"{type(error).__name__}: {error}"
        grew = memory("VmHWM") - before
        driver.close()
    return {"answer": answer, "grew_bytes": grew}


def main() -> None:
    """Opens all bombs."""
    site = SITES[sys.argv[1]]
    seen = {}
    # Nor is whatever is opened for the first time.
    for codec in range(codecs.GZIP, codecs.ZSTD + 1):
        codecs.decompress(codec, codecs.compress(codec, b"x"), bytes_max=LIMIT)
    for kind in KINDS:
        # What the kernel counts differs by megabytes from run to run, more so on a busy machine. A bomb that is
        # unpacked too far takes too much in every try.
        for _ in range(TRIES):
            seen[kind] = opened(kind, site)
            if int(str(seen[kind]["grew_bytes"])) < 2 * LIMIT:
                break
    print(json.dumps(seen))


if __name__ == "__main__":
    main()
