"""ApiVersions gives a client which APIs and versions the broker speaks."""

from logmark.wire.messages import Message, array, boolean, int16, int32, int64, string

KEY = 18
VERSIONS = range(0, 5)
FLEXIBLE_FROM: int | None = 3


class Request(Message):
    client_software_name: str = string(since=3)
    client_software_version: str = string(since=3)


class ResponseApiVersion(Message):
    api_key: int = int16()
    min_version: int = int16()
    max_version: int = int16()


class ResponseSupportedFeature(Message):
    name: str = string()
    min_version: int = int16()
    max_version: int = int16()


class ResponseFinalizedFeature(Message):
    name: str = string()
    max_version_level: int = int16()
    min_version_level: int = int16()


class Response(Message):
    error_code: int = int16()
    api_keys: list[ResponseApiVersion] = array(ResponseApiVersion)
    throttle_time_ms: int = int32(since=1)
    supported_features: list[ResponseSupportedFeature] = array(ResponseSupportedFeature, since=3, tag=0)
    finalized_features_epoch: int = int64(default=-1, since=3, tag=1)
    finalized_features: list[ResponseFinalizedFeature] = array(ResponseFinalizedFeature, since=3, tag=2)
    zk_migration_ready: bool = boolean(since=3, tag=3)
