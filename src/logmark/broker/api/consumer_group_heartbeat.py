"""ConsumerGroupHeartbeat is refused: groups here are classic.

Apache Kafka answers the same where the newer protocol is switched off. Were this API not there at all, librdkafka would
wait for it for ever without a word.
"""

from typing import TYPE_CHECKING

from logmark.errors import ErrorCode
from logmark.wire.schema import consumer_group_heartbeat as schema

if TYPE_CHECKING:
    from logmark.broker.dispatch import Request

KEY = schema.KEY
VERSIONS = range(0, 2)

ONLY_CLASSIC = "Groups of the newer protocol are not served here: set group.protocol=classic."


def handle(message: schema.Request, request: "Request") -> schema.Response:
    """Refuse with an error that ends the consumer and names the remedy."""
    return schema.Response(error_code=ErrorCode.UNSUPPORTED_VERSION, error_message=ONLY_CLASSIC)
