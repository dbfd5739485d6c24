"""Whether a stream keeps state between its batches, as Spark's plan says."""

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
    return _keeps_state(frame._jdf.queryExecution().analyzed())


def _keeps_state(plan: Any) -> bool:
    if not plan.isStreaming():
        return False
    children = plan.children()
    below = [children.apply(index) for index in range(children.size())]
    name = str(plan.nodeName())
    if name in _STATEFUL or name.startswith("TransformWithState"):
        return True
    # A join with a static table looks up rows; a join of two streams waits for rows of the other side.
    if name == "Join" and all(child.isStreaming() for child in below):
        return True
    return any(_keeps_state(child) for child in below)
