"""What is served is Prometheus's text format, as Prometheus's own parser reads it."""

import math

import pytest
from prometheus_client.parser import text_string_to_metric_families

from logmark.offsets.monitor.prometheus_text import MetricFamily, format_metrics


def text_of(*families: MetricFamily) -> str:
    return "".join(format_metrics(families))


def test_the_text_is_exact() -> None:
    lag = MetricFamily(
        name="lag", help="Lag.\nIn records \\ always.", labels=("group", "partition"), series=[(("g", "0"), 3)]
    )
    up = MetricFamily(name="up", help="Up.", type="counter", series=[((), 1)])

    assert (
        "# HELP lag Lag.\\nIn records \\\\ always.\n# TYPE lag gauge\n"
        'lag{group="g",partition="0"} 3\n'
        "# HELP up Up.\n# TYPE up counter\nup 1\n"
    ) == text_of(lag, up)


def test_a_metric_without_series_is_left_out() -> None:
    assert "" == text_of(MetricFamily(name="lag", help="Lag.", labels=("group",), series=[]))


@pytest.mark.parametrize("name", ['quo"te', "back\\slash", "new\nline", "\\n", "ümlaut", "", "a,b}c{d=", "\udc80 half"])
def test_any_name_of_a_group_comes_back_from_the_parser(name: str) -> None:
    (family,) = text_string_to_metric_families(
        text_of(MetricFamily(name="lag", help="Lag.", labels=("group",), series=[((name,), 1)]))
    )

    assert {"group": name.replace("\udc80", "?")} == family.samples[0].labels


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"), (2**63 - 1, "9223372036854775807"), (-1, "-1"), (0.02, "0.02"), (1e300, "1e+300"),
        (math.nan, "NaN"), (math.inf, "+Inf"), (-math.inf, "-Inf"), (True, "1"),
    ],
)  # fmt: skip
def test_a_number_is_written_as_prometheus_reads_it(value: float, text: str) -> None:
    assert (
        f"x {text}\n" == text_of(MetricFamily(name="x", help="X.", series=[((), value)])).splitlines(keepends=True)[-1]
    )


def test_a_large_answer_leaves_in_pieces() -> None:
    series = [((str(number),), number) for number in range(10_000)]

    pieces = list(format_metrics([MetricFamily(name="x", help="X.", labels=("n",), series=series)]))

    assert 5 < len(pieces)
    (family,) = text_string_to_metric_families("".join(pieces))
    assert 10_000 == len(family.samples)
