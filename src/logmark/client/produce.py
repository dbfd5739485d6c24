"""Calls that append records: a batch at a time, as bytes."""

from logmark.client.connection import Connection
from logmark.client.errors import BrokerUnreachable, RefusedByBroker, error_code
from logmark.client.logs import partition_refusal
from logmark.client.router import ANY, Router
from logmark.errors import ErrorCode, Malformed
from logmark.names import TopicPartition
from logmark.wire import batches
from logmark.wire import produce as wire
from logmark.wire.schema import init_producer_id

_ALL = -1


class ProduceCalls(Router):
    """Appending, acknowledged by every replica that is in sync."""

    def init_producer_id(self) -> tuple[int, int]:
        """Return a new producer's id and epoch: with sequence numbers, a batch that is sent again is written once."""
        deadline = self._deadline()
        code = ErrorCode.NONE
        for _ in self._tries(deadline):
            answer = self._ask(
                init_producer_id,
                init_producer_id.Request(transactional_id=None, transaction_timeout_ms=2**31 - 1),
                init_producer_id.Response,
                to=ANY,
                deadline=deadline,
            )
            code = error_code(answer.error_code)
            if code == ErrorCode.NONE:
                return answer.producer_id, answer.producer_epoch
            if not code.is_retriable:
                break
        raise RefusedByBroker(code, f"The cluster gave out no producer id: the broker answered {code.name}.")

    def produce(self, partition: TopicPartition, batch: bytes | bytearray) -> int:
        """Append one batch, as `logmark.wire.batches.build` makes it, and return the offset of its first record.

        A batch of a producer with an id is sent again until its leader has answered; any other is sent once, and when
        the connection breaks meanwhile the error says that its fate is not known.
        """
        self._refuse_if_read_only(wire.KEY)
        deadline = self._deadline()
        is_repeatable = batches.read_header(batch).producer_id >= 0
        failure: RefusedByBroker | BrokerUnreachable | None = None
        for _ in self._tries(deadline):
            leader = next(iter(self._by_leader([partition], deadline)))
            was_sent = False
            try:
                connection = self._connection(leader, deadline)
                was_sent = True
                answer = self._produce_once(connection, partition, batch, deadline)
            except BrokerUnreachable as error:
                if was_sent and not is_repeatable:
                    raise BrokerUnreachable(
                        f"{error} Whether the records were written to {partition} is not known."
                    ) from None
                failure = failure or error
                self.forget_leaders([partition])
                continue
            code = error_code(answer.error_code)
            if code in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
                return answer.base_offset
            failure = partition_refusal(partition, code)
            if not code.is_retriable or code == ErrorCode.CORRUPT_MESSAGE:
                break
            self.forget_leaders([partition])
        assert failure is not None
        raise failure

    def _produce_once(
        self, connection: Connection, partition: TopicPartition, batch: bytes | bytearray, deadline: float
    ) -> wire.PartitionAnswer:
        version = connection.version_of(wire.KEY, wire.VERSIONS)
        data = wire.PartitionData(partition.partition, memoryview(batch))
        request = wire.ProduceRequest(None, _ALL, int(self.timeout_s * 1000), [(partition.topic, [data])])
        connection.send(
            wire.KEY,
            version,
            wire.encode_request(version, request),
            flexible=version >= wire.FLEXIBLE_FROM,
            deadline=deadline,
        )
        body = connection.receive(deadline)
        try:
            return wire.decode_response(version, body).topics[0][1][0]
        except (Malformed, IndexError) as error:
            raise BrokerUnreachable(f"The answer to what was written to {partition} cannot be read: {error}.") from None
