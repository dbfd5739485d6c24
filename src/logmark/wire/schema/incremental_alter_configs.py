"""IncrementalAlterConfigs sets, deletes, extends or shortens single settings."""

from logmark.wire.messages import Message, array, boolean, int8, int16, int32, string

KEY = 44
VERSIONS = range(0, 2)
FLEXIBLE_FROM: int | None = 1


class RequestConfig(Message):
    name: str = string()
    config_operation: int = int8()
    value: str | None = string(nullable_since=0)


class RequestResource(Message):
    resource_type: int = int8()
    resource_name: str = string()
    configs: list[RequestConfig] = array(RequestConfig)


class Request(Message):
    resources: list[RequestResource] = array(RequestResource)
    validate_only: bool = boolean()


class ResponseResource(Message):
    error_code: int = int16()
    error_message: str | None = string(nullable_since=0)
    resource_type: int = int8()
    resource_name: str = string()


class Response(Message):
    throttle_time_ms: int = int32()
    responses: list[ResponseResource] = array(ResponseResource)
