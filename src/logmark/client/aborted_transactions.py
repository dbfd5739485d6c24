"""What a reader of committed transactions does not see: the batches of aborted ones, found by their headers alone."""

import struct
from collections.abc import Iterable

_HEADER_BYTES = 61
_LENGTH = struct.Struct(">qi")
_FIELDS = struct.Struct(">hi")  # attributes and last offset delta, at byte 21
_PRODUCER_ID = struct.Struct(">q")  # at byte 43
_TRANSACTIONAL, _CONTROL = 0x10, 0x20


class Aborted:
    """The aborted transactions that a fetch names, followed batch by batch up to their markers."""

    def __init__(self, transactions: Iterable[tuple[int, int]]) -> None:
        self._ahead = sorted(transactions, key=lambda entry: entry[1], reverse=True)
        self._open: set[int] = set()

    def hides(self, *, last_offset: int, producer_id: int, is_control: bool, is_transactional: bool) -> bool:
        """Return True for a batch of an aborted transaction, and for a marker; the batches must come in order."""
        while self._ahead and self._ahead[-1][1] <= last_offset:
            self._open.add(self._ahead.pop()[0])
        if is_control:
            self._open.discard(producer_id)
            return True
        return is_transactional and producer_id in self._open


def without_aborted(records: memoryview, transactions: Iterable[tuple[int, int]]) -> memoryview:
    """Return fetched batches without those of aborted transactions; copy only if there are some."""
    aborted = Aborted(transactions)
    kept: list[memoryview] = []
    at = kept_from = 0
    size = len(records)
    while size - at >= _HEADER_BYTES:
        base, length = _LENGTH.unpack_from(records, at)
        end = at + _LENGTH.size + length
        if end > size or length < _HEADER_BYTES - _LENGTH.size:
            break  # cut off, or broken, which the decoder says better
        attributes, delta = _FIELDS.unpack_from(records, at + 21)
        (producer_id,) = _PRODUCER_ID.unpack_from(records, at + 43)
        is_control = bool(attributes & _CONTROL)
        is_hidden = aborted.hides(
            last_offset=base + delta,
            producer_id=producer_id,
            is_control=is_control,
            is_transactional=bool(attributes & _TRANSACTIONAL),
        )
        if is_hidden and not is_control:  # the decoder passes over markers by itself
            kept.append(records[kept_from:at])
            kept_from = end
        at = end
    if not kept_from:
        return records
    return memoryview(b"".join([*kept, records[kept_from:]]))
