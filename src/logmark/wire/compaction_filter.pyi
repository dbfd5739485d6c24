from logmark.wire.columns import Buffer

class KeyMap:
    count: int
    def __init__(self, bytes_max: int) -> None: ...
    def __len__(self) -> int: ...
    @property
    def size_bytes(self) -> int: ...
    @property
    def is_full(self) -> bool: ...
    def get(self, key: bytes) -> int: ...
    def add(
        self, data: Buffer, at: int, *, start: int, is_judged: bool, decompressed_bytes_max: int
    ) -> tuple[int, int]: ...

class CompactionFilter:
    out: bytearray
    read: int
    kept: int
    def __init__(
        self,
        keys: KeyMap,
        *,
        mapped_to: int,
        end: int,
        producers: dict[int, tuple[int, int]],
        now_ms: int,
        horizon_ms: int,
        decompressed_bytes_max: int,
    ) -> None: ...
    def run(self, data: Buffer, at: int) -> int: ...
    def filter_batch(self, data: Buffer, at: int, *, is_aborted: bool, is_idle_marker: bool) -> int: ...
