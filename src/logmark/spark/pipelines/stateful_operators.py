"""Whether a stream keeps state between its batches, as Spark's plan says."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# The nodes of a logical plan that become operators with a state store, if their input is a stream.
_STATEFUL = frozenset(
    {
        "Aggregate", "Distinct", "Deduplicate", "DeduplicateWithinWatermark", "GlobalLimit", "LocalLimit", "Limit",
        "FlatMapGroupsWithState", "FlatMapGroupsInPandasWithState", "TransformWithState", "TransformWithStateInPySpark",
    }
)  # fmt: skip


def keeps_state(frame: "DataFrame") -> bool:
    """Return whether the rows depend on more than the records of their own batch."""
    return bool(list_stateful_operators(frame))


def list_stateful_operators(frame: "DataFrame") -> list[str]:
    """Return the names of the plan's nodes that keep state, from the last to the first."""
    return [str(node.nodeName()) for node in list_stateful_nodes(frame)]


def list_stateful_nodes(frame: "DataFrame") -> list[Any]:
    """Return the plan's nodes that keep state, from the last to the first."""
    return list(_stateful_nodes(frame._jdf.queryExecution().analyzed()))


def _stateful_nodes(plan: Any) -> Iterator[Any]:
    if not plan.isStreaming():
        return
    children = plan.children()
    below = [children.apply(index) for index in range(children.size())]
    name = str(plan.nodeName())
    # A join with a static table looks up rows; a join of two streams waits for rows of the other side.
    is_stream_join = name == "Join" and all(child.isStreaming() for child in below)
    if name in _STATEFUL or name.startswith("TransformWithState") or is_stream_join:
        yield plan
    for child in below:
        yield from _stateful_nodes(child)
