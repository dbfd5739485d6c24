"""DescribeCluster names the cluster and its one broker.

v1  endpoint types
"""

from typing import TYPE_CHECKING

from logmark.broker.api.metadata import CLUSTER_OPERATIONS, NO_OPERATIONS
from logmark.errors import ErrorCode
from logmark.wire.schema import describe_cluster as schema

if TYPE_CHECKING:
    from logmark.broker.dispatch import Request

KEY = schema.KEY
VERSIONS = range(0, 2)

BROKERS, CONTROLLERS = 1, 2


def handle(message: schema.Request, request: "Request") -> schema.Response:
    """Return the address that this client's listener advertises."""
    if message.endpoint_type == CONTROLLERS:
        return schema.Response(
            error_code=ErrorCode.MISMATCHED_ENDPOINT_TYPE, error_message="There are no controllers to connect to."
        )
    if message.endpoint_type != BROKERS:
        return schema.Response(
            error_code=ErrorCode.UNSUPPORTED_ENDPOINT_TYPE,
            error_message=f"There are no nodes of kind {message.endpoint_type}.",
        )
    advertised = request.connection.listener.advertised
    return schema.Response(
        cluster_id=request.broker.cluster_id,
        controller_id=request.broker.node_id,
        brokers=[
            schema.ResponseBroker(
                broker_id=request.broker.node_id, host=advertised.host, port=advertised.port, rack=None
            )
        ],
        cluster_authorized_operations=(
            CLUSTER_OPERATIONS if message.include_cluster_authorized_operations else NO_OPERATIONS
        ),
    )
