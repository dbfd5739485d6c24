"""DescribeConfigs returns the settings of topics and brokers, and where each comes from."""

from logmark.wire.messages import Message, array, boolean, int8, int16, int32, string

KEY = 32
VERSIONS = range(1, 5)
FLEXIBLE_FROM: int | None = 4


class RequestResource(Message):
    resource_type: int = int8()
    resource_name: str = string()
    configuration_keys: list[str] | None = array(string(), nullable_since=0)


class Request(Message):
    resources: list[RequestResource] = array(RequestResource)
    include_synonyms: bool = boolean()
    include_documentation: bool = boolean(since=3)


class ResponseSynonym(Message):
    name: str = string()
    value: str | None = string(nullable_since=0)
    source: int = int8()


class ResponseConfig(Message):
    name: str = string()
    value: str | None = string(nullable_since=0)
    read_only: bool = boolean()
    config_source: int = int8(default=-1)
    is_sensitive: bool = boolean()
    synonyms: list[ResponseSynonym] = array(ResponseSynonym)
    config_type: int = int8(since=3)
    documentation: str | None = string(since=3, nullable_since=3)


class ResponseResource(Message):
    error_code: int = int16()
    error_message: str | None = string(nullable_since=0)
    resource_type: int = int8()
    resource_name: str = string()
    configs: list[ResponseConfig] = array(ResponseConfig)


class Response(Message):
    throttle_time_ms: int = int32()
    results: list[ResponseResource] = array(ResponseResource)
