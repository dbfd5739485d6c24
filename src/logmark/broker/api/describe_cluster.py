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


def handle(request: schema.Request, at: "Request") -> schema.Response:
    """Return the address that this client's listener advertises."""
    if request.endpoint_type == CONTROLLERS:
        return schema.Response(
            error_code=ErrorCode.MISMATCHED_ENDPOINT_TYPE, error_message="There are no controllers to connect to."
        )
    if request.endpoint_type != BROKERS:
        return schema.Response(
            error_code=ErrorCode.UNSUPPORTED_ENDPOINT_TYPE,
            error_message=f"There are no nodes of kind {request.endpoint_type}.",
        )
    advertised = at.connection.listener.advertised
    return schema.Response(
        cluster_id=at.broker.cluster_id,
        controller_id=at.broker.node_id,
        brokers=[
            schema.ResponseBroker(
                broker_id=at.broker.node_id, host=advertised.host, port=advertised.port, rack=None
            )
        ],
        cluster_authorized_operations=(
            CLUSTER_OPERATIONS if request.include_cluster_authorized_operations else NO_OPERATIONS
        ),
    )
