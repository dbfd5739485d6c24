from array import array
from collections.abc import Sequence
from enum import IntEnum

Buffer = bytes | bytearray | memoryview
Checked = tuple[int, int, int, int, int, int, int, int, int, int, int, int, bool]

HEADER_BYTES: int

class Problem(IntEnum):
    SOUND = 0
    COMPRESSED = 1
    NO_BATCH = 2
    BAD_LENGTH = 3
    BAD_MAGIC = 4
    OLD_MAGIC = 5
    SECOND_BATCH = 6
    BASE_OFFSET = 7
    TOO_LARGE = 8
    BAD_CRC = 9
    OFFSET_RANGE = 10
    BAD_COUNT = 11
    COUNT_MISMATCH = 12
    CONTROL = 13
    SEQUENCE = 14
    BROKEN_RECORD = 15
    BYTES_LEFT = 16
    RECORD_REFUSED = 17
    OUT_OF_ORDER = 18
    BAD_EPOCH = 19

class Columns:
    count: int
    next_offset: int
    offsets: array[int]
    timestamps_ms: array[int]
    timestamp_types: array[int]
    key_offsets: array[int]
    key_validity: bytearray | None
    key_bytes: bytearray
    value_offsets: array[int]
    value_validity: bytearray | None
    value_bytes: bytearray
    header_list_offsets: array[int] | None
    header_key_offsets: array[int] | None
    header_key_bytes: bytearray | None
    header_value_offsets: array[int] | None
    header_value_validity: bytearray | None
    header_value_bytes: bytearray | None
    def keys(self) -> Sequence[bytes | None]: ...
    def values(self) -> Sequence[bytes | None]: ...
    def headers(self) -> list[list[tuple[bytes, bytes | None]]]: ...

def check_records(
    records: Buffer, body: Buffer | None, bytes_max: int, keys_required: bool, earliest: int, latest: int
) -> Checked: ...
def refused_records(
    body: Buffer,
    start: int,
    end: int,
    count: int,
    base_timestamp: int,
    fixed_timestamp: bool,
    keys_required: bool,
    earliest: int,
    latest: int,
) -> list[tuple[int, int, bool]]: ...
def sound_prefix(data: Buffer, base: int, end: int, leader_epoch: int = -1) -> tuple[int, int, int]: ...
def index_batches(
    data: Buffer,
    *,
    expected: int,
    is_dense: bool,
    position: int,
    base_offset: int,
    interval: int,
    state: array[int],
    offset_entries: bytearray,
    time_entries: bytearray,
) -> tuple[int, int, int, array[int]]: ...
def crc32c(data: Buffer, at: int, size: int) -> int: ...
def find_time(
    data: Buffer, *, count: int, base_timestamp: int, is_fixed: bool, timestamp: int, delta_min: int
) -> tuple[int, int, tuple[int, int] | None]: ...
def decode(
    data: Buffer, *, start: int, stop: int, with_headers: bool = False, decompressed_bytes_max: int
) -> Columns: ...
def encode_records(
    records: Sequence[tuple[bytes | None, bytes | None]],
    timestamp_deltas: Sequence[int] | None,
    headers: Sequence[Sequence[tuple[str | bytes, bytes | None]]] | None,
) -> bytearray: ...
