"""Reads a range of a partition into Arrow, where the executors are."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from logmark.client.client import Client
from logmark.spark.options import Options
from logmark.spark.ranges import Range
from logmark.wire import columns

if TYPE_CHECKING:
    import pyarrow as pa

FETCH_BYTES_MAX = 4 << 20
DECOMPRESSED_BYTES_MAX = 1 << 30
TIMEOUT_S = 30.0


def connect(options: Options, *, timeout_s: float = TIMEOUT_S) -> Client:
    """A client for the cluster that the options name."""
    return Client(options.bootstrap_servers, config=options.client, client_id="logmark-spark", timeout_s=timeout_s)


def read_range(options: Options, wanted: Range) -> Iterator["pa.RecordBatch"]:
    """Every record of the range, in order."""
    from logmark.spark.arrow import pieces, to_arrow

    at = wanted.first
    with connect(options) as client, client.fetcher(wanted.place, bytes_max=FETCH_BYTES_MAX) as fetcher:
        for answer in fetcher.read(wanted.first, wanted.stop):
            decoded_to = -1
            # One call may stop early, where the values would no longer fit into one Arrow array.
            while decoded_to != at and at < wanted.stop:
                decoded_to = at
                part = columns.decode(
                    answer.records,
                    start=at,
                    stop=wanted.stop,
                    with_headers=options.with_headers,
                    decompressed_bytes_max=DECOMPRESSED_BYTES_MAX,
                )
                at = max(at, part.next_offset)
                if part.count:
                    yield from pieces(to_arrow(part, wanted.place))
