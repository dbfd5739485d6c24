"""The sources of a stream, as Spark's plan has them, and whether one query can read all of them.

A group has one position for each partition. Two sources of a query that read a partition in the same group would take
it from each other. Spark makes a source of each call of `load()`, and may make two of one: a join of a DataFrame with
itself gets a copy of its relation for the right side, with a reader of its own. `share_source` prevents that.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, Any

from logmark.errors import UserError
from logmark.names import TopicPartition

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_RELATION = "StreamingRelationV2"
_FORMAT = "logmark"


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamSource:
    """What the options of a source say about its group and its topics, as far as they can be read."""

    servers: str
    group: str
    topics: frozenset[str] = frozenset()
    pattern: str = ""
    assigned: frozenset[TopicPartition] = frozenset()

    @classmethod
    def of(cls, options: Mapping[str, str]) -> "StreamSource":
        """Return what the options of `format("logmark")` say; the source itself reports mistakes in them."""
        plain = {name.lower().removeprefix("kafka."): text for name, text in options.items()}
        assigned = _parse_assigned(plain.get("assign", ""))
        named = {name.strip() for name in plain.get("subscribe", "").split(",")} - {""}
        return cls(
            servers=plain.get("bootstrap.servers", ""),
            group=plain.get("group.id", ""),
            topics=frozenset(named or {partition.topic for partition in assigned}),
            pattern=plain.get("subscribepattern", ""),
            assigned=assigned,
        )

    def find_shared_topic(self, other: "StreamSource") -> str | None:
        """Return a topic, or a pattern of topics, of which both read the same partitions in one group."""
        if not self.group or (self.group, self.servers) != (other.group, other.servers):
            return None
        if self.pattern and other.pattern:
            return self.pattern if self.pattern == other.pattern else None
        if self.assigned and other.assigned:
            return next((str(partition) for partition in sorted(self.assigned & other.assigned)), None)
        pattern = self.pattern or other.pattern
        if not pattern:
            return min(self.topics & other.topics, default=None)
        return min((topic for topic in self.topics | other.topics if _fits(topic, pattern)), default=None)


def check_sources(frame: "DataFrame") -> None:
    """Raise UserError if two sources of a stream read the same topic in the same group."""
    for one, other in combinations(find_sources(frame), 2):
        topic = one.find_shared_topic(other)
        if topic is not None:
            raise UserError(
                f"Two sources of this query read {topic} in the group {one.group}, which has one position for both. "
                "Nothing was read. Load the topic once and use the frame that share_source(frame) of logmark.spark "
                "returns, or give each load() a group.id of its own."
            )


def share_source(frame: "DataFrame") -> "DataFrame":
    """Return the same stream, which a query can join with itself and still read once, at one position of its group.

    To tell the two sides of a join apart, Spark copies the lowest part of the plan that gives the columns their ids.
    That is the source, unless a projection above it gives them others.
    """
    # Only here: pipelines are declared and described without Spark.
    from pyspark.sql.functions import col

    return frame.select(*(col(_quote(name)).alias(name) for name in frame.columns))


def find_sources(frame: "DataFrame") -> list[StreamSource]:
    """Return each source of `format("logmark")` that Spark will start a reader for."""
    java = getattr(frame, "_jdf", None)
    if java is None:
        return []  # a DataFrame of Spark Connect has no plan here
    leaves = java.queryExecution().analyzed().collectLeaves()
    relations: list[Any] = []
    for index in range(leaves.size()):
        leaf = leaves.apply(index)
        # Spark starts one reader for relations that are equal: they have the same ids of columns, too.
        if str(leaf.nodeName()) == _RELATION and str(leaf.sourceName()) == _FORMAT and leaf not in relations:
            relations.append(leaf)
    return [StreamSource.of(_read_options(relation)) for relation in relations]


def _quote(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _read_options(relation: Any) -> dict[str, str]:
    options = relation.extraOptions().asCaseSensitiveMap()
    return {str(name): str(options[name]) for name in options}


def _parse_assigned(text: str) -> frozenset[TopicPartition]:
    try:
        found = json.loads(text) if text else {}
        return frozenset(TopicPartition(topic, int(number)) for topic, numbers in found.items() for number in numbers)
    except (AttributeError, TypeError, ValueError):
        return frozenset()


def _fits(topic: str, pattern: str) -> bool:
    try:
        return re.fullmatch(pattern, topic) is not None
    except re.error:
        return False
