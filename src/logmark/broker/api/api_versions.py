"""ApiVersions tells a client what is served here; it is the first request of every connection.

v3  flexible, names the client's software      v4  may list features whose minimum is 0
An unknown version is answered with a version 0 body and UNSUPPORTED_VERSION: the client asks again.
The response header has no tagged fields in any version.
"""

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from logmark.errors import ErrorCode
from logmark.wire import messages
from logmark.wire.schema import api_versions as schema

if TYPE_CHECKING:
    from logmark.broker.dispatch import Api, Request

KEY = schema.KEY
VERSIONS = range(0, 5)

PRODUCE_KEY = 0
_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


def _keys(apis: Mapping[int, "Api"]) -> list[schema.ResponseApiVersion]:
    return [
        schema.ResponseApiVersion(
            api_key=entry.key,
            # Old librdkafka stops compressing when the minimum of Produce is 3, so 0 is shown as Kafka shows it.
            min_version=0 if entry.key == PRODUCE_KEY else entry.versions[0],
            max_version=entry.versions[-1],
        )
        for entry in sorted(apis.values(), key=lambda entry: entry.key)
    ]


def handle(message: schema.Request, request: "Request") -> schema.Response:
    """List the APIs and their versions."""
    if request.version >= 3 and not (
        _SOFTWARE.fullmatch(message.client_software_name) and _SOFTWARE.fullmatch(message.client_software_version)
    ):
        return schema.Response(error_code=ErrorCode.INVALID_REQUEST)
    return schema.Response(api_keys=_keys(request.broker.dispatcher.apis))


def unsupported_version(apis: Mapping[int, "Api"]) -> bytes:
    """Return the body for a version that is newer than ours."""
    reply = schema.Response(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=_keys(apis))
    return messages.encode_response(schema, 0, reply)
