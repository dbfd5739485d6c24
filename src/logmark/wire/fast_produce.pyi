Usual = tuple[int, int, int, int, int, int, int, int]

def read_produce(frame: object) -> Usual | None: ...
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
