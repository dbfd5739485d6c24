"""The headers that a copy carries: the replay's id, and the topic, partition and offset that it was copied from."""

from collections.abc import Sequence

from logmark.offsets.dead_letters import dead_letter

Headers = Sequence[tuple[bytes, bytes | None]]

PREFIX = b"logmark.replay."
ID = PREFIX + b"id"
TOPIC = PREFIX + b"topic"
PARTITION = PREFIX + b"partition"
OFFSET = PREFIX + b"offset"
TIMESTAMP = PREFIX + b"timestamp"
HOPS = PREFIX + b"hops"
ORIGIN = PREFIX + b"origin"
# Who writes dead letters names their topic in one of these: our pipelines, Spring, Kafka Connect, a replay.
ORIGINAL_TOPIC_HEADERS = (dead_letter.TOPIC, b"kafka_dlt-original-topic", b"__connect.errors.topic", TOPIC)


def original_topic(headers: Headers, names: Sequence[bytes]) -> str | None:
    """Return the topic that a dead letter comes from, by the first of these headers that it has."""
    for wanted in names:
        for name, content in headers:
            if name == wanted and content:
                return content.decode("utf-8", "replace")
    return None


def count_hops(headers: Headers) -> int:
    """How many replays a record has been through."""
    for name, content in reversed(headers):
        if name == HOPS:
            return int(content) if content and content.isdigit() and len(content) < 10 else 1
    return int(any(name == ID for name, _ in headers))


class CopyHeaders:
    """Makes the headers of the copies of one partition; those of an earlier replay go.

    The headers name where this copy was made from. From the second replay on, `origin` keeps the topic, partition and
    offset that the first copy was made from.
    """

    def __init__(self, run_id: str, topic: str, partition: int, *, strip: Sequence[bytes] = ()) -> None:
        self._prefixes = (PREFIX, *strip)
        self._first = ((ID, run_id.encode()), (TOPIC, topic.encode()), (PARTITION, b"%d" % partition))

    def headers(self, offset: int, timestamp_ms: int, headers: Headers) -> Headers:
        """Return the headers of a record's copy: its own, and those that name its source."""
        kept = [header for header in headers if not header[0].startswith(self._prefixes)]
        hops = count_hops(headers)
        source = (OFFSET, b"%d" % offset), (TIMESTAMP, b"%d" % timestamp_ms), (HOPS, b"%d" % (hops + 1))
        origin = ((ORIGIN, _origin(headers)),) if hops else ()
        return [*kept, *self._first, *source, *origin]

    def bare(self, offsets: Sequence[int], timestamps_ms: Sequence[int]) -> list[Headers]:
        """Return the headers of the copies of many records that had none."""
        first, once = self._first, (HOPS, b"1")
        return [
            (*first, (OFFSET, b"%d" % offset), (TIMESTAMP, b"%d" % timestamp), once)
            for offset, timestamp in zip(offsets, timestamps_ms, strict=True)
        ]


def _origin(headers: Headers) -> bytes:
    found = dict(headers)
    known = found.get(ORIGIN)
    if known is not None:
        return known
    return b"%s-%s@%s" % tuple(found.get(name) or b"?" for name in (TOPIC, PARTITION, OFFSET))


def copy_source(headers: Headers, run_id: bytes) -> tuple[int, int] | None:
    """Return the source partition and offset of a record that this run copied, None for any other record."""
    found = dict(headers)
    partition, offset = found.get(PARTITION), found.get(OFFSET)
    if found.get(ID) != run_id or not partition or not offset or not partition.isdigit() or not offset.isdigit():
        return None
    return int(partition), int(offset)
