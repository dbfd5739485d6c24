"""The inputs of a pipeline: one stream of all its topics, or one for each topic of a mapping of schemas.

Each stream of a mapping has a source of its own, with the schema of its topic. All sources read in the pipeline's
group: their partitions differ, so each commits its own. `transform` gets the streams in the order of the mapping.
"""

import inspect
import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from logmark.errors import UserError

# A pipeline has one schema for all its topics, none, or one for each topic (None: the values stay bytes).
Schemas = str | Mapping[str, str | None] | None

_SUBSCRIPTIONS = ("subscribe", "subscribepattern", "assign")
_BY_TOPIC = ("startingoffsets", "endingoffsets", "startingoffsetsbytimestamp", "endingoffsetsbytimestamp")


def read_input_topics(
    name: str, topics: str | Sequence[str], schema: Schemas, options: Mapping[str, str]
) -> str | Sequence[str]:
    """Return the topics that a pipeline reads: those of its mapping of schemas, in that order, else those given.

    Raises UserError if the mapping is empty, or if the topics or the options name others.
    """
    if not isinstance(schema, Mapping):
        return topics
    if not schema:
        raise UserError(
            f"The pipeline {name} has an empty mapping as its schema, so it would read no topic. Nothing was read. "
            'Give a schema for each topic, such as {"orders": "id STRING", "payments": "id STRING"}.'
        )
    given = [topics] if isinstance(topics, str) and topics else list(topics)
    others = sorted(set(given) ^ set(schema)) if given else []
    others += [option for option in options if option.lower() in _SUBSCRIPTIONS]
    if others:
        raise UserError(
            f"The pipeline {name} has a schema for each of {', '.join(schema)}, and its topics or options differ in "
            f"{', '.join(others)}. Nothing was read. Name the same topics in both, with None as the schema of a topic "
            "whose values stay bytes."
        )
    return tuple(schema)


def check_transform(name: str, transform: Callable[..., Any], schema: Schemas) -> None:
    """Raise UserError if `transform` cannot take the inputs of the pipeline, or names them in another order."""
    topics = list(schema) if isinstance(schema, Mapping) else []
    try:
        signature = inspect.signature(transform)
    except (TypeError, ValueError):
        return  # a function of C does not say what it takes
    expected = (
        f"one DataFrame for each of its topics, in the order of its schema: transform({', '.join(map(_plain, topics))})"
        if topics
        else "one DataFrame: transform(records)"
    )
    try:
        bound = signature.bind(*(topics or ["records"]))
    except TypeError as error:
        raise UserError(
            f"The transform of pipeline {name} gets {expected}. Its signature is {signature}: {error}. Nothing was "
            "read."
        ) from None
    parameters = {topic: parameter for parameter, topic in bound.arguments.items() if isinstance(topic, str)}
    for topic, parameter in parameters.items() if topics else ():
        if _plain(topic) != parameter and parameter in map(_plain, topics):
            raise UserError(
                f"The transform of pipeline {name} gets {expected}. Its signature is {signature}, in which the "
                f"parameter {parameter} would get the records of {topic}. Nothing was read. Use the same order in both."
            )


def split_inputs(schema: Schemas) -> list[str | None]:
    """Return the topic of each input, or None for the one input of all topics."""
    return list(schema) if isinstance(schema, Mapping) else [None]


def narrow_options(options: Mapping[str, str], topic: str) -> dict[str, str]:
    """Return the options of the source of one topic: of offsets and times by topic, those of this one."""
    return {name: _narrow(text, topic) if name.lower() in _BY_TOPIC else text for name, text in options.items()}


def _narrow(text: str, topic: str) -> str:
    try:
        fields = json.loads(text)
    except ValueError:
        return text  # a word, or a mistake that the source reports
    return json.dumps({topic: fields[topic]}) if isinstance(fields, dict) and topic in fields else text


def _plain(topic: str) -> str:
    """Return the topic as a parameter would be named."""
    return re.sub(r"\W", "_", topic)
