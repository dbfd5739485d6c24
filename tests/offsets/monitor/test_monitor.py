"""A monitor over real clusters: what it serves, whom it tells, and that it goes on when the cluster is away."""

import json
import math
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from logmark.client.client import Client
from logmark.clock import ManualClock, SystemClock
from logmark.errors import UserError
from logmark.offsets.monitor.alert_file import AlertFile, Notifier
from logmark.offsets.monitor.alerts import AlertRule
from logmark.offsets.monitor.cluster_sampler import ClusterSampler, SampleScope
from logmark.offsets.monitor.monitor import Monitor, MonitorSettings
from logmark.offsets.monitor.notifications import NotificationDispatcher
from tests.cli.conftest import run
from tests.harness.brokers import BrokerUnderTest
from tests.harness.node import wait_until
from tests.harness.restartable_broker import RestartableBroker, own_broker
from tests.offsets.monitor.test_notifications import WebhookServer

Series = dict[tuple[str, ...], float]


@dataclass
class MonitorDriver:
    """A monitor in this process, with what it said and wrote."""

    servers: Callable[[], str]
    folder: Path
    wanted: SampleScope = field(default_factory=SampleScope)
    settings: MonitorSettings = field(default_factory=MonitorSettings)
    notifiers: dict[str, Notifier] = field(default_factory=dict)
    clock: Any = field(default_factory=SystemClock)
    timeout_s: float = 60
    said: list[str] = field(default_factory=list)
    told: list[dict[str, Any]] = field(default_factory=list)
    clients: list[Client] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.start()

    def start(self) -> None:
        self.post = NotificationDispatcher(
            self.notifiers, say=self.said.append, write=lambda one: self.told.append(dict(one))
        )
        self.lookout = ClusterSampler(
            self._connect, wanted=self.wanted, clock=self.clock, say=self.said.append,
            history_path=self.folder / "history.sqlite",
        )  # fmt: skip
        self.monitor = Monitor(self.lookout, self.post, settings=self.settings, clock=self.clock, say=self.said.append)
        self.monitor.begin()

    def _connect(self) -> Client:
        client = Client(self.servers(), timeout_s=self.timeout_s, connect_timeout_s=self.timeout_s, patience_s=0.2)
        self.clients.append(client)
        return client

    def restart(self) -> None:
        self.monitor.close()
        self.start()

    def step(self) -> list[str]:
        """One step; the events that it gave, as "firing" or "resolved" with the alert's name."""
        before = len(self.told)
        self.monitor.step()
        assert self.post.flush(60)
        return [f"{one['event']} {one['alert']}" for one in self.told[before:]]

    def metric(self, name: str, *labels: str) -> Series:
        """The series of a metric, by the values of these labels."""
        for family in text_string_to_metric_families("".join(self.monitor.metrics())):
            if family.name == name.removesuffix("_total"):
                return {tuple(one.labels[label] for label in labels): one.value for one in family.samples}
        return {}


@pytest.fixture
def watch(tmp_path: Path) -> Iterator[Callable[..., MonitorDriver]]:
    """Starts a monitor, which is closed at the end of the test."""
    started: list[MonitorDriver] = []

    def starting(broker: BrokerUnderTest | Callable[[], str], **more: Any) -> MonitorDriver:
        servers = broker if callable(broker) else lambda: broker.bootstrap_servers
        started.append(MonitorDriver(servers, tmp_path, **more))
        return started[-1]

    yield starting
    for one in started:
        one.monitor.close()


def alerts(*rules: AlertRule, **more: Any) -> MonitorSettings:
    return MonitorSettings(alerts=AlertFile(rules=rules), **more)


def test_both_exporters_families_have_their_formulas_on_real_groups(
    broker: BrokerUnderTest, watch: Callable[..., MonitorDriver]
) -> None:
    topic, idle, busy = broker.create_topic("orders", partitions=3), broker.group("idle"), broker.group("busy")
    for partition, count in enumerate((5, 3, 0)):
        broker.produce(topic, [str(number) for number in range(count)], partition=partition)
    broker.commit(idle, {(topic, 0): 2})
    worker = broker.worker(busy, topic, session_timeout_ms=60_000)
    wait_until(lambda: len(worker.assignment()) == 3, "the worker has its partitions")
    worker.commit({0: 1, 1: 3})
    clock = ManualClock(SystemClock().now_ms())
    watched = watch(
        broker, clock=clock, wanted=SampleScope(groups=[idle, busy], every_partition=True, cluster_name="prod")
    )

    watched.step()
    broker.produce(topic, ["more"] * 5, partition=0)
    clock.advance(seconds=10)
    watched.step()

    def of(group: str) -> Callable[[str], Series]:
        by = ("consumergroup", "topic", "partition")
        return lambda name: {
            key[2:]: value for key, value in watched.metric(name, *by).items() if key[:2] == (group, topic)
        }

    assert {("0",): 8, ("1",): -1, ("2",): -1} == of(idle)("kafka_consumergroup_lag")
    assert {("0",): 2, ("1",): -1, ("2",): -1} == of(idle)("kafka_consumergroup_current_offset")
    assert {("0",): 9, ("1",): 0, ("2",): -1} == of(busy)("kafka_consumergroup_lag")
    sums = watched.metric("kafka_consumergroup_lag_sum", "consumergroup", "topic")
    assert {(idle, topic): 8, (busy, topic): 9} == sums
    assert {(idle,): 0, (busy,): 1} == watched.metric("kafka_consumergroup_members", "consumergroup")
    ends = watched.metric("kafka_topic_partition_current_offset", "topic", "partition")
    assert {10.0: ("0",), 3.0: ("1",), 0.0: ("2",)} == {v: key[1:] for key, v in ends.items() if key[0] == topic}
    assert 3 == watched.metric("kafka_topic_partitions", "topic")[topic,]
    assert {(): 1} == watched.metric("kafka_brokers")

    labels = ("cluster_name", "group", "partition")
    lag = watched.metric("kafka_consumergroup_group_lag", *labels)
    assert {("prod", idle, "0"): 8, ("prod", busy, "0"): 9, ("prod", busy, "1"): 0} == {
        key: value for key, value in lag.items() if not math.isnan(value)
    }
    assert math.isnan(lag["prod", busy, "2"])
    # The end was 5 and ten seconds later 10: half a record a second. From 2 on it is 16 s by that line, from 1 on 18 s.
    seconds = watched.metric("kafka_consumergroup_group_lag_seconds", *labels)
    assert {("prod", idle, "0"): 16, ("prod", busy, "0"): 18, ("prod", busy, "1"): 0} == {
        key: pytest.approx(value, abs=0.2) for key, value in seconds.items() if not math.isnan(value)
    }
    assert {("prod", idle): 8, ("prod", busy): 9} == watched.metric(
        "kafka_consumergroup_group_sum_lag", "cluster_name", "group"
    )
    members = watched.metric("kafka_consumergroup_group_offset", "group", "partition", "member_host", "client_id")
    assert (idle, "0", "unknown", "unknown") in members
    assert any(key[0] == busy and key[2].endswith("127.0.0.1") for key in members)

    ours = watched.metric("logmark_group_lag_records", "group", "topic", "partition")
    assert {(idle, topic, "0"): 8, (busy, topic, "0"): 9, (busy, topic, "1"): 0} == ours
    assert {(idle,): 0, (busy,): 1} == watched.metric("logmark_group_uncommitted_partitions", "group")
    assert {(): 1} == watched.metric("logmark_up")


def test_an_alert_is_told_once_over_restarts_and_resolved_once(
    broker: BrokerUnderTest, watch: Callable[..., MonitorDriver]
) -> None:
    topic, group = broker.create_topic("orders"), broker.group("billing")
    broker.produce(topic, ["a"] * 20)
    broker.commit(group, {(topic, 0): 0})
    hook = WebhookServer()
    hook.answers = [(500, {})]
    rule = AlertRule(name="behind", when="lag", over=10, for_ms=60_000, notify=("ops", "stdout"))
    clock = ManualClock(SystemClock().now_ms())
    watched = watch(
        broker, clock=clock, wanted=SampleScope(groups=[group]), settings=alerts(rule),
        notifiers={"ops": Notifier(name="ops", kind="webhook", url=hook.url)},
    )  # fmt: skip

    assert [] == watched.step()
    clock.advance(seconds=60)
    assert ["firing behind"] == watched.step()
    assert [] == watched.step()
    watched.restart()
    clock.advance(seconds=600)
    assert [] == watched.step()
    assert {("behind",): 1} == watched.metric("logmark_alerts_firing", "alert")
    broker.commit(group, {(topic, 0): 15})
    clock.advance(seconds=10)
    assert ["resolved behind"] == watched.step()
    assert [] == watched.step()
    watched.restart()
    assert [] == watched.step()

    hook.close()
    assert ["firing", "firing", "resolved"] == hook.events
    firing, _, resolved = (json.loads(body) for _, body in hook.received)
    assert firing["id"] == resolved["id"]
    assert (group, 20, watched.lookout.cluster_id) == (firing["group"], firing["value"], firing["cluster"]["id"])


def test_a_message_that_did_not_leave_leaves_after_a_restart(our_broker: BrokerUnderTest, watch: Any) -> None:
    topic, group = our_broker.create_topic("orders"), our_broker.group("billing")
    our_broker.produce(topic, ["a"] * 20)
    our_broker.commit(group, {(topic, 0): 0})
    hook = WebhookServer()
    hook.answers = [(500, {})] * 50
    watched = watch(
        our_broker, wanted=SampleScope(groups=[group]),
        settings=alerts(AlertRule(name="behind", when="lag", over=10, notify=("ops",))),
        notifiers={"ops": Notifier(name="ops", kind="webhook", url=hook.url)},
    )  # fmt: skip
    watched.monitor.step()
    wait_until(lambda: hook.events, "the message is on its way")
    watched.monitor.close()
    assert {"firing"} == set(hook.events)
    hook.received.clear()
    hook.answers = []

    watched.start()
    assert watched.post.flush(60)

    assert ["firing"] == hook.events
    watched.restart()
    assert watched.post.flush(60)
    assert ["firing"] == hook.events
    hook.close()


def test_a_move_of_somebody_else_alarms_and_a_move_of_ours_does_not(
    broker: BrokerUnderTest, watch: Callable[..., MonitorDriver]
) -> None:
    topic, ours, foreign = broker.create_topic("orders"), broker.group("ours"), broker.group("foreign")
    broker.produce(topic, ["a"] * 100)
    for group in (ours, foreign):
        broker.commit(group, {(topic, 0): 50})
    rules = [
        AlertRule(name="rewound", when="verdict", verdicts=frozenset({"REWOUND"})),
        AlertRule(name="behind", when="lag", over=60),
    ]
    clock = ManualClock(SystemClock().now_ms())
    watched = watch(broker, clock=clock, wanted=SampleScope(groups=[ours, foreign]), settings=alerts(*rules))
    for _ in range(3):
        assert [] == watched.step()
        clock.advance(seconds=40)

    servers = broker.bootstrap_servers
    assert 0 == run("offsets", "reset", ours, "--topic", topic, "--to-offset", "10", "--yes", servers=servers).exit_code
    broker.commit(foreign, {(topic, 0): 10})

    for _ in range(3):
        watched.step()
        clock.advance(seconds=40)
    told = [(one["alert"], one["event"], one["group"]) for one in watched.told]
    assert [("rewound", "firing", foreign), ("behind", "firing", foreign)] == told
    assert "went back from 50 to 10" in watched.told[0]["text"]


def test_a_group_that_is_deleted_is_gone(broker: BrokerUnderTest, watch: Callable[..., MonitorDriver]) -> None:
    topic, group = broker.create_topic("orders"), broker.group("billing")
    broker.commit(group, {(topic, 0): 0})
    watched = watch(broker, settings=alerts(AlertRule(name="gone", when="gone", groups=[broker.group("*")])))

    assert [] == watched.step()
    broker.admin.delete_consumer_groups([group])[group].result(60)
    assert ["firing gone"] == watched.step()
    broker.commit(group, {(topic, 0): 0})
    assert ["resolved gone"] == watched.step()


def test_what_will_be_deleted_and_who_will_expire_is_known_from_the_cluster_itself(
    broker: BrokerUnderTest, watch: Callable[..., MonitorDriver]
) -> None:
    topic = broker.create_topic("orders", config={"retention.ms": "3600000", "message.timestamp.type": "CreateTime"})
    group, clock = broker.group("billing"), ManualClock(SystemClock().now_ms())
    broker.produce(topic, ["a"], timestamp_ms=clock.now_ms() - 3_000_000)
    broker.commit(group, {(topic, 0): 0})
    falling = AlertRule(name="falling", when="falling-off", within_s=700)
    expiring = AlertRule(name="expiring", when="expiring", within_s=86_400)
    watched = watch(
        broker, clock=clock, wanted=SampleScope(groups=[group], falling_off=True, expiring=True),
        settings=alerts(falling, expiring),
    )  # fmt: skip

    # 3,600 s are kept, and the record is 3,000 s old: ten minutes are left.
    assert ["firing falling"] == watched.step()
    assert f"What group {group} has not read in {topic}-0 may be deleted in 10 min." == watched.told[-1]["text"]
    clock.advance(seconds=6 * 86_400 - 1)
    assert [] == watched.step()
    clock.advance(seconds=2)
    assert ["firing expiring"] == watched.step()
    broker.commit(group, {(topic, 0): 1})
    assert ["resolved falling", "resolved expiring"] == watched.step()


@pytest.mark.parametrize("kind", ["logmark", pytest.param("kafka", marks=[pytest.mark.kafka, pytest.mark.soak])])
def test_the_monitor_goes_on_when_the_broker_went_away_and_came_back(
    kind: str, tmp_path: Path, watch: Callable[..., MonitorDriver]
) -> None:
    with own_broker(kind, tmp_path, {}) as own:
        _stop_and_start(own, watch)


def _stop_and_start(own: RestartableBroker, watch: Callable[..., MonitorDriver]) -> None:
    broker, address = own.clients, [own.clients.bootstrap_servers]
    topic = broker.create_topic("orders")
    broker.produce(topic, ["a"] * 3)
    broker.commit("billing", {(topic, 0): 1})
    down = AlertRule(name="down", when="unreachable")
    behind = AlertRule(name="behind", when="lag", over=1)
    watched = watch(lambda: address[0], wanted=SampleScope(groups=["billing"]), settings=alerts(down, behind))

    assert ["firing behind"] == watched.step()
    own.stop()
    # A broker that answered before is waited for until the timeout.
    watched.timeout_s = watched.clients[-1].timeout_s = 2
    assert ["firing down"] == watched.step()
    assert [] == watched.step()
    assert 1 == len([one for one in watched.said if "Trying again" in one]), "it is said once"
    assert {(): 0} == watched.metric("logmark_up")
    assert {(): 2} == watched.metric("logmark_sample_failures_total")
    for name in ("kafka_consumergroup_lag", "kafka_consumergroup_group_lag", "logmark_group_lag_records"):
        assert {} == watched.metric(name), "an old number would pass for a fresh one"
    assert watched.monitor.health()[0]
    assert [10, 20, 40, 60] == list(_pauses(watched.monitor, 4))

    address[0] = own.start().bootstrap_servers
    wait_until(lambda: "resolved down" in watched.step(), "the cluster answers again")
    assert "The cluster answers again after" in watched.said[-1]
    assert {("billing",): 2} == watched.metric("logmark_group_lag_records", "group")
    assert [watched.told[0]["id"]] == [one["id"] for one in watched.told if one["alert"] == "behind"], "it fires on"


def _pauses(monitor: Monitor, count: int) -> Iterator[float]:
    for failures in range(1, count + 1):
        monitor._failures_in_a_row = failures
        yield monitor.pause_s(0.1)


def test_a_step_that_took_long_is_followed_by_a_pause_all_the_same(our_broker: BrokerUnderTest, watch: Any) -> None:
    monitor = watch(our_broker).monitor

    assert (7.5, 1.0, 1.0) == (monitor.pause_s(2.5), monitor.pause_s(9.7), monitor.pause_s(100))


def test_whoever_asks_for_metrics_asks_the_cluster_nothing_and_waits_for_nobody(
    our_broker: BrokerUnderTest, watch: Any
) -> None:
    topic, group = our_broker.create_topic("orders"), our_broker.group("billing")
    our_broker.commit(group, {(topic, 0): 0})
    watched = watch(our_broker, wanted=SampleScope(groups=[group]))
    watched.step()
    sent = watched.clients[-1].requests_sent
    held, looking = threading.Event(), threading.Event()
    look = watched.lookout.look

    def slow() -> Any:
        looking.set()
        held.wait(60)
        return look()

    watched.lookout.look = slow
    stepping = threading.Thread(target=watched.monitor.step)
    stepping.start()
    assert looking.wait(60)

    assert {(group,): 0} == watched.metric("logmark_group_lag_records", "group")
    assert sent == watched.clients[-1].requests_sent
    held.set()
    stepping.join()


def test_a_sample_that_is_too_old_is_not_served(our_broker: BrokerUnderTest, watch: Any) -> None:
    topic, group = our_broker.create_topic("orders"), our_broker.group("billing")
    our_broker.commit(group, {(topic, 0): 0})
    clock = ManualClock(SystemClock().now_ms())
    watched = watch(our_broker, clock=clock, wanted=SampleScope(groups=[group]))
    watched.step()

    clock.advance(seconds=29)
    assert {(group,): 0} == watched.metric("logmark_group_lag_records", "group")
    clock.advance(seconds=2)
    assert ({}, {(): 0}) == (watched.metric("logmark_group_lag_records", "group"), watched.metric("logmark_up"))
    assert watched.monitor.health()[0]
    clock.advance(seconds=3600)
    assert (False, "stuck: the last sample was begun 1 h ago") == watched.monitor.health()


@pytest.mark.parametrize("families", [["kafka_exporter"], ["kafka_lag_exporter"], ["logmark"], []])
def test_only_the_families_that_are_wanted_are_served(our_broker: BrokerUnderTest, watch: Any, families: Any) -> None:
    topic, group = our_broker.create_topic("orders"), our_broker.group("billing")
    our_broker.commit(group, {(topic, 0): 0})
    watched = watch(our_broker, wanted=SampleScope(groups=[group]), settings=MonitorSettings(families=families))
    watched.step()

    served = {
        family: bool(watched.metric(name))
        for family, name in (
            ("kafka_exporter", "kafka_consumergroup_lag"),
            ("kafka_lag_exporter", "kafka_consumergroup_group_lag"),
            ("logmark", "logmark_group_lag_records"),
        )
    }
    assert {name: name in families for name in served} == served
    assert {(): 1} == watched.metric("logmark_up")


def test_two_monitors_do_not_share_a_history(our_broker: BrokerUnderTest, watch: Any) -> None:
    first = watch(our_broker)

    with pytest.raises(UserError, match="Another monitor writes the history"):
        watch(our_broker)
    first.restart()


def test_another_cluster_at_the_same_address_ends_it(our_broker: BrokerUnderTest, watch: Any) -> None:
    watched = watch(our_broker)
    watched.step()
    watched.lookout.cluster_id = "another"

    with pytest.raises(UserError, match="answers where cluster another was"):
        watched.step()
