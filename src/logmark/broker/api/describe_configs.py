"""DescribeConfigs tells the settings of topics and of this broker, and where each value comes from.

v1  sources and synonyms     v3  types and documentation     v4  flexible
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from logmark.broker.answers import Buffers, LongBody, LongWork
from logmark.broker.event_loop_turns import Pace
from logmark.errors import ErrorCode, Refused
from logmark.log import catalog
from logmark.log.settings import SETTINGS
from logmark.wire.schema import describe_configs as schema

if TYPE_CHECKING:
    from logmark.broker.dispatch import Request
    from logmark.broker.server import Broker

KEY = schema.KEY
VERSIONS = range(1, 5)

TOPIC = 2
BROKER = 4
# A request for more resources lets others have their turn.
LARGE = 10
# A resource has some thirty settings.
DESCRIBE_STEPS = 5
# What a resource takes in an answer, with synonyms and documentation.
RESOURCE_BYTES = 16 * 1024

# Where a topic's value comes from, as Kafka numbers it.
TOPIC_CONFIG_SOURCES = {"override": 1, "broker": 4, "default": 5}
_KINDS = {"BOOLEAN": 1, "STRING": 2, "INT": 3, "SHORT": 4, "LONG": 5, "DOUBLE": 6, "LIST": 7}


def handle(message: schema.Request, request: "Request") -> schema.Response | LongWork:
    """Describe each resource by itself; one that is named several times is described once."""
    resources = list({(each.resource_type, each.resource_name): each for each in message.resources}.values())
    if len(resources) > LARGE:
        return LongWork(
            _answer_later(resources, message, request), memory_bytes=lambda: RESOURCE_BYTES * len(resources)
        )
    return schema.Response(results=[_describe(each, message, request) for each in resources])


def answer_bytes_max(broker: "Broker", request_bytes: int) -> int:
    """Return how much memory an answer can take: all topics with their settings, and errors for other names."""
    return RESOURCE_BYTES * (len(broker.logs.topics()) + 1) + 10 * request_bytes


async def _answer_later(
    resources: list[schema.RequestResource], message: schema.Request, request: "Request"
) -> Buffers:
    pace = Pace()
    body = LongBody(schema, request)
    for each in resources:
        await body.add(_describe(each, message, request))
        await pace.step(DESCRIBE_STEPS)
    return body.finish(schema.Response(results=[]))


def _describe(
    resource: schema.RequestResource, message: schema.Request, request: "Request"
) -> schema.ResponseResource:
    try:
        if resource.resource_type == TOPIC:
            found = _topic(resource.resource_name, message, request)
        elif resource.resource_type == BROKER:
            found = _broker(resource.resource_name, message, request)
        else:
            raise Refused(
                ErrorCode.INVALID_REQUEST, f"Settings of resource type {resource.resource_type} are not kept here."
            )
    except Refused as refused:
        return schema.ResponseResource(
            error_code=refused.code,
            error_message=refused.message,
            resource_type=resource.resource_type,
            resource_name=resource.resource_name,
            configs=[],
        )
    wanted = set(resource.configuration_keys or ())
    return schema.ResponseResource(
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
        # An empty list means all settings, as a null one does (KIP-133 clients send both).
        configs=[config for config in found if not wanted or config.name in wanted],
    )


def _topic(name: str, message: schema.Request, request: "Request") -> Iterable[schema.ResponseConfig]:
    catalog.check_name(name)
    topic = request.broker.logs.topic(name)
    if topic is None:
        raise Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "This server does not host this topic-partition.")
    defaults = request.broker.config.topic_defaults()
    results = []
    for setting_name, value, source in topic.settings.in_force():
        setting = SETTINGS[setting_name]
        synonyms = []
        if setting_name in topic.settings.overrides:
            synonyms.append((setting_name, topic.settings.overrides[setting_name], "override"))
        if setting_name in defaults:
            synonyms.append((setting.broker_name or setting_name, defaults[setting_name], "broker"))
        if setting.default_synonym is not None:
            synonyms.append((setting.default_synonym, setting.default, "default"))
        results.append(
            schema.ResponseConfig(
                name=setting_name,
                value=value,
                read_only=False,
                config_source=TOPIC_CONFIG_SOURCES[source],
                is_sensitive=False,
                synonyms=[
                    schema.ResponseSynonym(name=name, value=text, source=TOPIC_CONFIG_SOURCES[origin])
                    for name, text, origin in (synonyms if message.include_synonyms else [])
                ],
                config_type=_KINDS[setting.kind],
                documentation=setting.documentation if message.include_documentation else None,
            )
        )
    return results


def _broker(name: str, message: schema.Request, request: "Request") -> Iterable[schema.ResponseConfig]:
    if not name:
        # The cluster-wide dynamic defaults: none can be set here.
        return []
    if name != str(request.broker.node_id):
        raise Refused(
            ErrorCode.INVALID_REQUEST, f"Unexpected broker id, expected {request.broker.node_id} but received {name}"
        )
    results = []
    for setting, given in request.broker.config.in_force():
        origins = [("default", setting.default)] if given is None else [("broker", given), ("default", setting.default)]
        source, value = origins[0]
        results.append(
            schema.ResponseConfig(
                name=setting.name,
                value=value,
                read_only=True,
                config_source=TOPIC_CONFIG_SOURCES[source],
                is_sensitive=False,
                synonyms=[
                    schema.ResponseSynonym(name=setting.name, value=text, source=TOPIC_CONFIG_SOURCES[origin])
                    for origin, text in (origins if message.include_synonyms else [])
                ],
                config_type=_KINDS[setting.kind],
                documentation=setting.documentation if message.include_documentation else None,
            )
        )
    return results


def refuse(message: schema.Request, code: ErrorCode, version: int) -> schema.Response:
    """Return every resource with the error."""
    return schema.Response(
        results=[
            schema.ResponseResource(
                error_code=code, resource_type=resource.resource_type, resource_name=resource.resource_name, configs=[]
            )
            for resource in message.resources
        ]
    )
