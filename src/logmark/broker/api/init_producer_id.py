"""InitProducerId gives an idempotent producer the id that its sequence numbers belong to.

v2  flexible     v3  a producer may name its id and epoch     v4  may answer PRODUCER_FENCED
Transactions are not served yet: a transactional id is refused with a code that every client treats as final.
"""

from typing import TYPE_CHECKING

from logmark.errors import ErrorCode
from logmark.wire.schema import init_producer_id as schema

if TYPE_CHECKING:
    from logmark.broker.dispatch import Request

KEY = schema.KEY
VERSIONS = range(0, 5)


async def handle(message: schema.Request, request: "Request") -> schema.Response:
    """Return a new producer id with epoch 0, never handed out before."""
    if message.transactional_id == "" or (message.producer_id == -1) != (message.producer_epoch == -1):
        return schema.Response(error_code=ErrorCode.INVALID_REQUEST, producer_id=-1, producer_epoch=-1)
    if message.transactional_id is not None:
        return schema.Response(
            error_code=ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, producer_id=-1, producer_epoch=-1
        )
    return schema.Response(producer_id=await request.broker.logs.next_producer_id(), producer_epoch=0)
