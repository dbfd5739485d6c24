"""Our own metrics, from readings made by hand."""

import math

from prometheus_client.parser import text_string_to_metric_families

from logmark.names import TopicPartition
from logmark.offsets.monitor.metrics import Health, Served, problems_of, served_families
from logmark.offsets.monitor.prometheus_text import format_metrics
from logmark.offsets.monitor.readings import GroupReading, PartitionReading, Reading

READING = Reading(
    at_ms=1000,
    groups=[
        GroupReading(
            group="billing", state="Stable", members=2, verdict="STALLED", evidence="...", catch_up_s=math.inf,
            partitions=[
                PartitionReading(TopicPartition("orders", 0), 7, 3, 12.5, "samples", "STALLED"),
                PartitionReading(TopicPartition("orders", 1), 0, 0, 0.0, "caught up", "OK"),
                PartitionReading(TopicPartition("orders", 2), None, is_uncommitted=True),
                PartitionReading(TopicPartition("orders", 3), None),
                PartitionReading(TopicPartition("orders", 4), 5, 0, None, "unknown", ""),
            ],
        ),
        GroupReading(group="closed", state="", members=0, partitions=[], problem="You are not allowed to use it."),
        GroupReading(group="nobody", state="Dead", members=0, partitions=[]),
        GroupReading(group="idle", state="Empty", members=0, partitions=[], verdict="OK", catch_up_s=0.0),
    ],
)  # fmt: skip


def served(reading: Reading | None, health: Health) -> dict[str, dict[tuple[str, ...], float]]:
    """Every metric by its name, each series by the values of its labels."""
    text = "".join(format_metrics(served_families(Served(health=health, reading=reading), ["logmark"])))
    return {
        one.name: {tuple(sample.labels.values()): sample.value for sample in family.samples}
        for family in text_string_to_metric_families(text)
        for one in family.samples[:1]
    }


def test_everything_about_groups_is_served() -> None:
    found = served(READING, Health(is_up=True))

    assert {
        "logmark_group_members": {("billing",): 2, ("idle",): 0},
        "logmark_group_state": {("billing", "Stable"): 1, ("idle", "Empty"): 1},
        "logmark_group_catch_up_seconds": {("billing",): math.inf, ("idle",): 0},
        "logmark_group_uncommitted_partitions": {("billing",): 1, ("idle",): 0},
        "logmark_group_lag_records": {
            ("billing", "orders", "0"): 7,
            ("billing", "orders", "1"): 0,
            ("billing", "orders", "4"): 5,
        },
        "logmark_group_lost_records": {
            ("billing", "orders", "0"): 3,
            ("billing", "orders", "1"): 0,
            ("billing", "orders", "4"): 0,
        },
        "logmark_group_lag_seconds": {
            ("billing", "orders", "0", "samples"): 12.5,
            ("billing", "orders", "1", "caught up"): 0,
        },
        "logmark_group_partition_verdict": {("billing", "orders", "0", "STALLED"): 1},
    } == {name: series for name, series in found.items() if "group" in name and not name.endswith("group_verdict")}
    assert {("billing", "STALLED"), ("idle", "OK")} == {
        labels for labels, value in found["logmark_group_verdict"].items() if value
    }
    assert 12 == len(found["logmark_group_verdict"])  # fmt: skip


def test_what_could_not_be_asked_is_counted() -> None:
    assert 2 == problems_of(READING)


def test_after_a_failure_only_the_monitor_itself_is_served() -> None:
    health = Health(
        is_up=False, samples=5, failures=2, last_success_ms=1500, took_ms=250, requests=9, firing={"behind": 1},
        delivered=3, given_up=1, waiting=2,
    )  # fmt: skip

    assert {
        "logmark_up": {(): 0},
        "logmark_last_sample_timestamp_seconds": {(): 1.5},
        "logmark_sample_duration_seconds": {(): 0.25},
        "logmark_sample_requests": {(): 9},
        "logmark_sample_problems": {(): 0},
        "logmark_samples_total": {(): 5},
        "logmark_sample_failures_total": {(): 2},
        "logmark_alerts_firing": {("behind",): 1},
        "logmark_notifications_delivered_total": {(): 3},
        "logmark_notifications_given_up_total": {(): 1},
        "logmark_notifications_waiting": {(): 2},
    } == served(None, health)
