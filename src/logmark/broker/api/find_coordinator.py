"""FindCoordinator names the broker that keeps a group: always this one.

v1  key types     v3  flexible     v4  several keys at once (KIP-699)     v6  share groups (KIP-932), not served
"""

from collections.abc import Awaitable
from typing import TYPE_CHECKING

from logmark.broker.answers import LARGE, LongWork
from logmark.broker.event_loop_turns import Pace
from logmark.errors import ErrorCode, Refused
from logmark.wire.schema import find_coordinator as schema

if TYPE_CHECKING:
    from logmark.broker.dispatch import Request

KEY = schema.KEY
VERSIONS = range(0, 7)

GROUP, TRANSACTION = 0, 1

NO_TRANSACTIONS = "Transactions are not served here: produce without transactional.id, or use Apache Kafka."
BATCHED_FROM = 4


def handle(message: schema.Request, request: "Request") -> Awaitable[schema.Response] | LongWork:
    """Return this broker's address for every key that it can serve; answer a repeated key once."""
    answer = _answer(message, request)
    return LongWork(answer) if len(message.coordinator_keys) > LARGE else answer


async def _answer(message: schema.Request, request: "Request") -> schema.Response:
    pace = Pace()
    found = []
    for key in dict.fromkeys(message.coordinator_keys if request.version >= BATCHED_FROM else [message.key]):
        found.append(await _coordinator(key, message.key_type, request))
        await pace.step()
    if request.version >= BATCHED_FROM:
        return schema.Response(coordinators=found)
    (one,) = found
    return schema.Response(
        error_code=one.error_code, error_message=one.error_message, node_id=one.node_id, host=one.host, port=one.port
    )


def refuse(message: schema.Request, code: ErrorCode, version: int) -> schema.Response:
    """Return the same error for every key."""
    if version < BATCHED_FROM:
        return schema.Response(error_code=code, error_message=None, node_id=-1, host="", port=-1)
    return schema.Response(coordinators=[_nobody(key, code, None) for key in message.coordinator_keys])


async def _coordinator(key: str, key_type: int, request: "Request") -> schema.ResponseCoordinator:
    if key_type == TRANSACTION:
        # librdkafka repeats the search for ever on anything but an authorization error, and Java shows our sentence for
        # every error but TRANSACTIONAL_ID_AUTHORIZATION_FAILED. This one ends the producer at once in Java, librdkafka,
        # kafka-python and aiokafka, and the first two say why.
        return _nobody(key, ErrorCode.CLUSTER_AUTHORIZATION_FAILED, NO_TRANSACTIONS)
    if key_type != GROUP:
        return _nobody(key, ErrorCode.INVALID_REQUEST, f"There is no coordinator of key type {key_type} here.")
    try:
        await request.broker.groups.check_available(key)
    except Refused as refused:
        return _nobody(key, refused.code, refused.message)
    advertised = request.connection.listener.advertised
    return schema.ResponseCoordinator(
        key=key, node_id=request.broker.node_id, host=advertised.host, port=advertised.port, error_message=None
    )


def _nobody(key: str, code: ErrorCode, message: str | None) -> schema.ResponseCoordinator:
    return schema.ResponseCoordinator(
        key=key, node_id=-1, host="", port=-1, error_code=code, error_message=message or code.name
    )
