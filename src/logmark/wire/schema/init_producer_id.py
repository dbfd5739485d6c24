"""InitProducerId gives a producer its id and epoch."""

from logmark.wire.messages import Message, int16, int32, int64, string

KEY = 22
# Kafka 4.3 defines version 6 too, for transactions in two phases, and calls it unstable.
VERSIONS = range(0, 6)
FLEXIBLE_FROM: int | None = 2


class Request(Message):
    transactional_id: str | None = string(nullable_since=0)
    transaction_timeout_ms: int = int32()
    producer_id: int = int64(default=-1, since=3)
    producer_epoch: int = int16(default=-1, since=3)


class Response(Message):
    throttle_time_ms: int = int32()
    error_code: int = int16()
    producer_id: int = int64(default=-1)
    producer_epoch: int = int16()
