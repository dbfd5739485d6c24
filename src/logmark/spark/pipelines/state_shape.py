"""The shape of a query's state: what its stateful operations keep, as its plan says.

The shape of a version is written beside its checkpoint before its first batch. A version whose state has another shape
than the code of now makes could not run: a rollback to it is refused.
"""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from logmark.spark.pipelines.home import write_file
from logmark.spark.pipelines.stateful_operators import list_stateful_nodes

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def describe_state_shape(rows: "DataFrame") -> list[str]:
    """Return a line for each operation of the plan that keeps state: its name, and the types of its keys and values.

    Names of columns are not part of it, nor is anything else that may change without changing the state.
    """
    return [_describe(node) for node in list_stateful_nodes(rows)]


def save_state_shape(checkpoint: Path, shape: list[str]) -> None:
    """Write the shape of a version's state beside its checkpoint."""
    write_file(_path(checkpoint), json.dumps(shape, indent=1) + "\n")


def load_state_shape(checkpoint: Path) -> list[str] | None:
    """Return the shape of a version's state; None if it is unknown, as for versions of earlier releases."""
    try:
        shape = json.loads(_path(checkpoint).read_text())
    except (OSError, ValueError):
        return None
    return [str(line) for line in shape] if isinstance(shape, list) else None


def delete_state_shape(checkpoint: Path) -> None:
    """Delete what was written of a version that is removed."""
    _path(checkpoint).unlink(missing_ok=True)


def _path(checkpoint: Path) -> Path:
    return checkpoint.with_name(f"{checkpoint.name}.state.json")


def _describe(node: Any) -> str:
    name = str(node.nodeName())
    if name == "Aggregate":
        values = [value for one in _items(node.aggregateExpressions()) for value in _buffers(one)]
        return f"{name} by ({_types(node.groupingExpressions())}): {', '.join(values)}"
    if name in ("Deduplicate", "DeduplicateWithinWatermark"):
        return f"{name} by ({_types(node.keys())})"
    if name == "FlatMapGroupsInPandasWithState":
        return f"{name} by ({_types(node.groupingAttributes())}): {node.stateType().catalogString()}"
    return name


def _buffers(expression: Any) -> list[str]:
    """Return what the aggregate functions inside of an expression keep."""
    if expression.getClass().getSimpleName() != "AggregateExpression":
        return [one for child in _items(expression.children()) for one in _buffers(child)]
    # Only here: pipelines are declared and listed without Spark.
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]

    function = expression.aggregateFunction()
    try:
        kept = str(function.aggBufferSchema().catalogString())
    except Py4JError:
        # Spark replaces some functions by others when it optimizes the plan.
        kept = _types(function.children())
    return [f"{function.prettyName()} {kept}"]


def _types(expressions: Any) -> str:
    return ", ".join(str(one.dataType().catalogString()) for one in _items(expressions))


def _items(sequence: Any) -> list[Any]:
    """Return the items of a Scala sequence."""
    return [sequence.apply(index) for index in range(sequence.size())]
