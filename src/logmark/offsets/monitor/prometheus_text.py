"""Metrics as Prometheus reads them: its text format, version 0.0.4."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
# Large answers leave in pieces, so that nobody holds the text of a million series at once.
_LINES_PER_PIECE = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricFamily:
    """One metric: its name, what it says, the names of its labels, and its series as (label values, value)."""

    name: str
    help: str
    labels: Sequence[str] = ()
    type: str = "gauge"
    series: Iterable[tuple[Sequence[str], float]]


def format_metrics(families: Iterable[MetricFamily]) -> Iterator[str]:
    """Yield the text of these metrics in pieces; a metric without series is left out."""
    escaped: dict[str, str] = {}
    lines: list[str] = []
    for family in families:
        names = [f'{name}="' for name in family.labels]
        is_begun = False
        for values, number in family.series:
            if not is_begun:
                is_begun = True
                lines.append(f"# HELP {family.name} {_escape_help(family.help)}\n# TYPE {family.name} {family.type}\n")
            lines.append(_line(family.name, names, values, number, escaped))
            if len(lines) >= _LINES_PER_PIECE:
                yield "".join(lines)
                lines.clear()
    if lines:
        yield "".join(lines)


def _line(family: str, names: Sequence[str], values: Sequence[str], number: float, escaped: dict[str, str]) -> str:
    if not names:
        return f"{family} {_number(number)}\n"
    parts = []
    for name, value in zip(names, values, strict=True):
        text = escaped.get(value)
        if text is None:
            text = escaped[value] = _escape_label(value)
        parts.append(f'{name}{text}"')
    return f"{family}{{{','.join(parts)}}} {_number(number)}\n"


def _number(value: float) -> str:
    if isinstance(value, int):
        return str(int(value))
    if math.isfinite(value):
        return repr(value)
    return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"


def _escape_label(text: str) -> str:
    # A name that came as bytes which are no UTF-8 must not end the whole answer.
    encodable = text.encode("utf-8", "replace").decode("utf-8")
    return encodable.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def _escape_help(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")
