"""Reads a range of a partition into Arrow, where the executors are."""

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING

from logmark.client.client import Client
from logmark.client.errors import OffsetOutOfRange
from logmark.client.fetcher import Fetcher, next_offset
from logmark.errors import UserError
from logmark.spark.options import Options
from logmark.spark.ranges import Range
from logmark.wire import columns

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger(__name__)

FETCH_BYTES_MAX = 4 << 20
DECOMPRESSED_BYTES_MAX = 1 << 30
TIMEOUT_S = 30.0


def connect(options: Options, *, timeout_s: float = TIMEOUT_S) -> Client:
    """A client for the cluster that the options name."""
    return Client(options.bootstrap_servers, config=options.client, client_id="logmark-spark", timeout_s=timeout_s)


def read_range(options: Options, wanted: Range) -> Iterator["pa.RecordBatch"]:
    """Every record of the range, in order.

    Records can expire after the batch was planned. Spark plans it once and for all, so what is left is read if
    auto.offset.reset allows to skip records; else this and every later attempt is a sentence.
    """
    with connect(options) as client, client.fetcher(wanted.place, bytes_max=FETCH_BYTES_MAX) as fetcher:
        try:
            yield from _read(fetcher, wanted, with_headers=options.with_headers)
        except OffsetOutOfRange as error:
            if options.reset not in ("earliest", "latest"):
                raise UserError(
                    f"{error} The records were planned to be read and have expired since. Nothing was skipped. To skip "
                    "what is gone, set auto.offset.reset to earliest or latest."
                ) from None
            log.warning("%s What is gone is skipped, as auto.offset.reset says.", error)
            rest = Range(wanted.place, error.log_start, wanted.stop)
            if error.offset < rest.first < rest.stop <= error.log_end:
                yield from _read(fetcher, rest, with_headers=options.with_headers)


def _read(fetcher: Fetcher, wanted: Range, *, with_headers: bool) -> Iterator["pa.RecordBatch"]:
    from logmark.spark.arrow import pieces, to_arrow

    at = wanted.first
    for answer in fetcher.read(wanted.first, wanted.stop):
        end = min(wanted.stop, next_offset(answer.records, at))
        # One call may stop early, where the values would no longer fit into one Arrow array.
        while at < end:
            part = columns.decode(
                answer.records,
                start=at,
                stop=wanted.stop,
                with_headers=with_headers,
                decompressed_bytes_max=DECOMPRESSED_BYTES_MAX,
            )
            if part.next_offset <= at:
                break  # a compacted log: the next batch lies beyond the range
            at = part.next_offset
            if part.count:
                yield from pieces(to_arrow(part, wanted.place))
