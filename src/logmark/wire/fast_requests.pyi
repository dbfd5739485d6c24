def read_header(
    frame: object, flexible_from: dict[int, int | None]
) -> tuple[int, int, int, str | None, int] | None: ...
def read_produce(frame: object, at: int) -> tuple[int, int, int, int, int, int] | None: ...
def produced(
    frame: bytearray,
    name_at: int,
    name_size: int,
    correlation_id: int,
    partition: int,
    base_offset: int,
    log_append_time_ms: int,
    log_start_offset: int,
) -> bytes: ...
