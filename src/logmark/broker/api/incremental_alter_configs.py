"""IncrementalAlterConfigs changes single settings of topics; they take effect at once.

v1  flexible
"""

from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from logmark.broker.answers import LongWork
from logmark.broker.api.describe_configs import BROKER, TOPIC
from logmark.broker.event_loop_turns import Pace, decide_each
from logmark.errors import ErrorCode, Refused
from logmark.log import catalog, settings
from logmark.wire.schema import incremental_alter_configs as schema

if TYPE_CHECKING:
    from logmark.broker.dispatch import Request
    from logmark.broker.logs import Topic

KEY = schema.KEY
VERSIONS = range(0, 2)

SET, DELETE, APPEND, SUBTRACT = range(4)


def handle(message: schema.Request, request: "Request") -> LongWork:
    """Change settings of topics by one change, of each topic all or none."""
    # The requests behind it on the same connection take effect after it.
    return LongWork(_answer(message, request))


async def _answer(message: schema.Request, request: "Request") -> schema.Response:
    named = Counter((resource.resource_type, resource.resource_name) for resource in message.resources)
    decisions = [
        partial(_overrides, each, request, is_repeated=named[each.resource_type, each.resource_name] > 1)
        for each in message.resources
    ]
    pace = Pace()
    outcomes: Sequence[object] = (
        await decide_each(decisions, pace) if message.validate_only else await request.broker.logs.override(decisions)
    )
    answers = []
    for resource, outcome in zip(message.resources, outcomes, strict=True):
        refused = outcome if isinstance(outcome, Refused) else None
        answers.append(
            schema.ResponseResource(
                error_code=ErrorCode.NONE if refused is None else refused.code,
                error_message=None if refused is None else refused.message,
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
            )
        )
        await pace.step()
    return schema.Response(responses=answers)


def _overrides(
    resource: schema.RequestResource, request: "Request", *, is_repeated: bool
) -> tuple["Topic", dict[str, str]]:
    """Return a topic and the overrides that it gets; raises Refused if it cannot get them."""
    if is_repeated:
        raise Refused(ErrorCode.INVALID_REQUEST, "Each resource must appear at most once.")
    if resource.resource_type == BROKER:
        raise Refused(
            ErrorCode.INVALID_REQUEST,
            "Broker settings are read at the start: change them there, and restart the broker.",
        )
    if resource.resource_type != TOPIC:
        raise Refused(ErrorCode.INVALID_REQUEST, f"Resource type {resource.resource_type} has no settings here.")
    if not resource.resource_name:
        raise Refused(ErrorCode.INVALID_REQUEST, "Default topic resources are not allowed.")
    catalog.check_name(resource.resource_name)
    topic = request.broker.logs.find(resource.resource_name)
    names = [config.name for config in resource.configs]
    if len(names) != len(set(names)):
        raise Refused(ErrorCode.INVALID_REQUEST, "Error due to duplicate config keys")
    overrides = dict(topic.settings.overrides)
    for config in resource.configs:
        _change(overrides, config, in_force=topic.settings)
    settings.check_size(overrides)
    settings.TopicSettings(overrides)
    return topic, overrides


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


def refuse(message: schema.Request, code: ErrorCode, version: int) -> schema.Response:
    """Return every resource with the error."""
    return schema.Response(
        responses=[
            schema.ResponseResource(
                error_code=code, resource_type=resource.resource_type, resource_name=resource.resource_name
            )
            for resource in message.resources
        ]
    )
