"""IncrementalAlterConfigs changes single settings of topics; they take effect at once.

v1  flexible
"""

from collections import Counter
from typing import TYPE_CHECKING

from logmark.broker.api.describe_configs import BROKER, TOPIC
from logmark.errors import ErrorCode, Refused
from logmark.log import catalog, settings
from logmark.wire.schema import incremental_alter_configs as schema

if TYPE_CHECKING:
    from logmark.broker.dispatch import Request

KEY = schema.KEY
VERSIONS = range(0, 2)

SET, DELETE, APPEND, SUBTRACT = range(4)


def handle(request: schema.Request, at: "Request") -> schema.Response:
    """Changes each resource by itself, all of its settings or none."""
    answers = []
    named = Counter((resource.resource_type, resource.resource_name) for resource in request.resources)
    for resource in request.resources:
        try:
            if named[resource.resource_type, resource.resource_name] > 1:
                raise Refused(ErrorCode.INVALID_REQUEST, "Each resource must appear at most once.")
            _alter(resource, at, validate_only=request.validate_only)
            code, sentence = ErrorCode.NONE, None
        except Refused as refused:
            code, sentence = refused.code, refused.message
        answers.append(
            schema.ResponseResource(
                error_code=code,
                error_message=sentence,
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
            )
        )
    return schema.Response(responses=answers)


def _alter(resource: schema.RequestResource, at: "Request", *, validate_only: bool) -> None:
    if resource.resource_type == BROKER:
        raise Refused(
            ErrorCode.INVALID_REQUEST,
            "Broker settings are read at start: change the file given with --config, or --set, and restart.",
        )
    if resource.resource_type != TOPIC:
        raise Refused(ErrorCode.INVALID_REQUEST, f"Resource type {resource.resource_type} has no settings here.")
    if not resource.resource_name:
        raise Refused(ErrorCode.INVALID_REQUEST, "Default topic resources are not allowed.")
    catalog.check_name(resource.resource_name)
    topic = at.broker.logs.topic(resource.resource_name)
    if topic is None:
        raise Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "This server does not host this topic-partition.")
    names = [config.name for config in resource.configs]
    if len(names) != len(set(names)):
        raise Refused(ErrorCode.INVALID_REQUEST, "Error due to duplicate config keys")
    overrides = dict(topic.settings.overrides)
    for config in resource.configs:
        _change(overrides, config, in_force=topic.settings)
    settings.TopicSettings(overrides)
    if not validate_only:
        at.broker.logs.override(topic.name, overrides)


def _change(
    overrides: dict[str, str], config: schema.RequestConfig, *, in_force: settings.TopicSettings
) -> None:
    name, text = config.name, config.value
    if config.config_operation == DELETE:
        overrides.pop(name, None)
        return
    if text is None:
        raise Refused(ErrorCode.INVALID_REQUEST, f"Null value not supported for : {name}")
    if config.config_operation == SET:
        settings.check(name, text)
        overrides[name] = text
        return
    if config.config_operation not in (APPEND, SUBTRACT):
        raise Refused(ErrorCode.INVALID_REQUEST, f"Unknown operation {config.config_operation} for {name}")
    if name not in settings.SETTINGS or settings.SETTINGS[name].kind != "LIST":
        raise Refused(
            ErrorCode.INVALID_CONFIG, f"Can't append or subtract: {name} is not a list-type config."
        )
    have = [part for part in in_force.text(name).split(",") if part]
    asked = [part.strip() for part in text.split(",")]
    if config.config_operation == APPEND:
        overrides[name] = ",".join([*have, *(part for part in asked if part not in have)])
    else:
        overrides[name] = ",".join(part for part in have if part not in asked)
    settings.check(name, overrides[name])


def refuse(request: schema.Request, code: ErrorCode, version: int) -> schema.Response:
    """Every resource, with the error."""
    return schema.Response(
        responses=[
            schema.ResponseResource(
                error_code=code, resource_type=resource.resource_type, resource_name=resource.resource_name
            )
            for resource in request.resources
        ]
    )
