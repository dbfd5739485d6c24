"""`logmark lag`: once, live and as a picture, the same on our broker and on Apache Kafka."""

import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from logmark.cli import plots
from logmark.cli.lag_board import board, sparkline
from logmark.client.answers import Committed
from logmark.client.client import Client
from logmark.client.errors import RefusedByBroker
from logmark.errors import ErrorCode
from logmark.names import TopicPartition
from logmark.offsets.journal.changes import Change, new_change_id
from logmark.offsets.journal.journal import open_journal
from logmark.offsets.lag.history import History, default_history_path
from logmark.offsets.lag.report import build_lag_report
from logmark.offsets.lag.sample import take_sample
from tests.cli.conftest import CommandResult, run
from tests.harness.brokers import BrokerUnderTest, read

HOUR_MS = 3_600_000
Command = Callable[..., CommandResult]
LOGMARK = str(Path(sys.executable).with_name("logmark"))


@pytest.fixture
def client(broker: BrokerUnderTest) -> Iterator[Client]:
    with Client(broker.bootstrap_servers) as client:
        yield client


@pytest.fixture
def lag(broker: BrokerUnderTest) -> Command:
    return lambda *arguments: run("lag", *arguments, servers=broker.bootstrap_servers)


class LagScenario:
    """Two groups on two topics: one behind by an hour in part, one caught up but for what it lost."""

    def __init__(self, broker: BrokerUnderTest, client: Client) -> None:
        self.orders, self.clicks = broker.create_topic("orders", partitions=2), broker.create_topic("clicks")
        self.billing, self.fraud = broker.group("billing"), broker.group("fraud")
        self.written_ms = time.time_ns() // 1_000_000 - HOUR_MS
        broker.produce(self.orders, ["x"] * 4, timestamp_ms=self.written_ms)
        broker.produce(self.clicks, ["x"] * 6)
        broker.delete_records(self.clicks, 5)
        client.commit(self.billing, {TopicPartition(self.orders, 0): 1, TopicPartition(self.orders, 1): 0})
        client.commit(self.fraud, {TopicPartition(self.clicks, 0): 2, TopicPartition(self.orders, 0): 4})


@pytest.fixture
def scenario(broker: BrokerUnderTest, client: Client) -> LagScenario:
    return LagScenario(broker, client)


def test_each_partition_has_its_lag_in_records_and_seconds(lag: Command, scenario: LagScenario) -> None:
    shown = lag(scenario.billing, "--group", scenario.fraud)

    lines = [" ".join(words) for words in shown.words]
    assert "GROUP TOPIC PARTITION COMMITTED LAST PROCESSED START END LAG BEHIND NOTE" == lines[0]
    assert f"{scenario.billing} {scenario.orders} 0 1 0 0 4 3 1 h (record)" == lines[1]
    assert f"{scenario.billing} {scenario.orders} 1 0 nothing 0 0 0 0 s" == lines[2]
    assert re.fullmatch(
        rf"{scenario.fraud} {scenario.clicks} 0 2 1 5 6 1 .* \(record\) "
        "3 records lost: expired before they were read",
        lines[3],
    )
    assert f"{scenario.fraud} {scenario.orders} 0 4 3 0 4 0 0 s" == lines[4]
    assert (
        f"Group {scenario.billing}: 3 records behind in total, the oldest unread record is 1 h old (record)."
        == lines[5]
    )
    assert "All groups: 4 records behind in total." == lines[-1]


def test_json_has_the_seconds_with_their_bound_and_the_way_they_were_found(lag: Command, scenario: LagScenario) -> None:
    behind, caught_up = lag(scenario.billing, "-o", "json").json

    assert {"lag": 3, "seconds_bound": 0, "seconds_method": "record"}.items() <= behind.items()
    assert abs(behind["seconds"] - 3600) < 60
    assert {"lag": 0, "seconds": 0, "seconds_method": "caught up", "last_processed": None}.items() <= caught_up.items()


def test_lines_may_be_about_topics_or_groups(lag: Command, scenario: LagScenario) -> None:
    by_topic = lag(scenario.fraud, "--by", "topic", "-o", "json").json
    by_group = lag(scenario.billing, scenario.fraud, "--by", "group", "-o", "json").json

    assert [(scenario.clicks, 1, 3), (scenario.orders, 0, 0)] == [
        (row["topic"], row["lag"], row["lost"]) for row in by_topic
    ]
    assert [(scenario.billing, 3, 2, "Empty"), (scenario.fraud, 1, 2, "Empty")] == [
        (row["group"], row["lag"], row["partitions"], row["state"]) for row in by_group
    ]
    table = lag(scenario.billing, scenario.fraud, "--by", "group").lines
    assert ["GROUP", "STATE", "MEMBERS", "PARTITIONS", "LAG", "BEHIND", "LOST"] == table[0].split()
    assert "All groups: 4 records behind in total." == table[-1]
    assert [scenario.fraud, scenario.clicks, "1", "1"] == lag(scenario.fraud, "--by", "topic").words[1][:4]


def test_what_is_caught_up_may_be_left_out_and_topics_chosen(lag: Command, scenario: LagScenario) -> None:
    both = (scenario.billing, scenario.fraud, "-o", "json")

    assert {(scenario.billing, 0), (scenario.fraud, 0)} == {
        (row["group"], row["partition"]) for row in lag(*both, "--only-with-lag").json
    }
    assert [scenario.fraud] == [row["group"] for row in lag(*both, "--topic", scenario.clicks).json]
    assert 3 == len(lag(*both, "--topic", scenario.orders[:5] + "*").json)
    assert [scenario.fraud] == [row["group"] for row in lag("-o", "json", "-t", scenario.clicks, "--by", "group").json
                             if row["partitions"]]  # fmt: skip


def test_a_partition_without_a_commit_is_shown_as_such(broker: BrokerUnderTest, lag: Command) -> None:
    topic, group = broker.create_topic("fresh", partitions=2), broker.group("fresh")
    broker.produce(topic, ["x"] * 3)
    consumer = broker.consumer(group)
    consumer.subscribe([topic])
    read(consumer, 3)
    consumer.commit(asynchronous=False)

    shown = lag(group)
    rows = {row["partition"]: row for row in lag(group, "-o", "json").json}

    uncommitted = next(number for number, row in rows.items() if row["committed"] is None)
    assert {"committed": None, "lag": None, "lost": None, "seconds": None}.items() <= rows[uncommitted].items()
    assert re.search(rf"{topic} +{uncommitted} +nothing committed", shown.out)
    assert " -1" not in shown.out
    assert "1 partition without a commit" in lag(group, "--by", "group").out


def test_records_that_nobody_has_ever_read_are_shown_though_no_lag_counts_them(
    broker: BrokerUnderTest, lag: Command
) -> None:
    topic, group = broker.create_topic("fresh", partitions=3), broker.group("fresh")
    broker.produce(topic, ["x"] * 3)
    broker.produce(topic, ["x"] * 2, partition=1)
    broker.commit(group, {(topic, 0): 1})

    rows = lag(group, "-o", "json").json

    assert [(0, 1, 2), (1, None, None)] == [(row["partition"], row["committed"], row["lag"]) for row in rows]
    assert [0, 2] == [rows[1]["start"], rows[1]["end"]]


def test_unknown_names_are_errors_with_a_suggestion(lag: Command, scenario: LagScenario) -> None:
    wrong_group = lag(scenario.billing.replace("billing", "biling"))
    wrong_topic = lag("--topic", scenario.orders.replace("orders", "order"))

    assert (1, "") == (wrong_group.exit_code, wrong_group.out)
    assert f"does not exist. Did you mean {scenario.billing}?" in wrong_group.error
    assert (1, "") == (wrong_topic.exit_code, wrong_topic.out)
    assert f"does not exist. Did you mean {scenario.orders}?" in wrong_topic.error


def test_a_group_that_may_not_be_read_is_said_and_the_others_are_shown(
    lag: Command, scenario: LagScenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask = Client.try_committed_of
    refused = RefusedByBroker(ErrorCode.GROUP_AUTHORIZATION_FAILED, "Group x: you are not allowed to use it.")
    monkeypatch.setattr(Client, "try_committed_of", lambda self, groups: ask(self, groups) | {scenario.fraud: refused})

    part = lag(scenario.billing, scenario.fraud)
    none = lag(scenario.fraud)

    assert 0 == part.exit_code and "you are not allowed to use it" in part.error and scenario.billing in part.out
    assert (1, "") == (none.exit_code, none.out)
    assert "you are not allowed to use it" in none.error


def test_what_is_kept_is_the_whole_cluster_and_is_drawn_with_our_own_resets(
    client: Client, lag: Command, scenario: LagScenario, tmp_path: Path
) -> None:
    nothing = lag("--plot", str(tmp_path / "lag.svg"), "--history", str(tmp_path / "none.sqlite"))
    assert 1 == nothing.exit_code and "There is no history" in nothing.error
    kept = str(tmp_path / "h.sqlite")
    assert 0 == lag(scenario.billing, "--keep", "--history", kept).exit_code
    now_ms = time.time_ns() // 1_000_000
    change = Change(
        id=new_change_id(now_ms), at_ms=now_ms, cluster_id=client.metadata([]).cluster_id, name=scenario.billing,
        action="reset", how="to earliest", reason="bad deploy", before={},
        after={TopicPartition(scenario.orders, 0): Committed(offset=0)},
    )  # fmt: skip
    journal = open_journal(client)
    journal.add(change)
    journal.set_state(change.id, "done")
    with_history = lag(scenario.billing, "--keep", "--history", kept, "--by", "group", "-o", "json").json

    drawn = lag(scenario.billing, scenario.fraud, "--plot", str(tmp_path / "lag.svg"), "--history", kept)
    painted = lag(scenario.billing, "--plot", str(tmp_path / "lag.png"), "--history", kept)

    assert "UNKNOWN" == with_history[0]["verdict"] and "not enough samples" in with_history[0]["evidence"]
    assert 0 == drawn.exit_code, drawn.error
    assert f"Drew 2 groups over 2 samples into {tmp_path / 'lag.svg'}." in drawn.error
    picture = (tmp_path / "lag.svg").read_text()
    for group in (scenario.billing, scenario.fraud):
        assert f'id="lag {group}"' in picture, "every group has its line"
    assert 1 == picture.count('id="change ') and "bad deploy" in picture, "our own reset is marked"
    assert 0 == painted.exit_code and (tmp_path / "lag.png").read_bytes().startswith(b"\x89PNG")
    wrong = lag("--plot", str(tmp_path / "lag.pdf"), "--history", kept)
    assert 1 == wrong.exit_code and "neither an .svg nor a .png" in wrong.error
    old = lag("no-such-*", "--plot", str(tmp_path / "x.svg"), "--history", kept)
    assert 1 == old.exit_code and "no sample of these groups" in old.error


def test_without_matplotlib_a_plot_is_refused_with_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with History(None) as history, pytest.raises(plots.UserError, match=r"pip install 'logmark\[plot\]'"):
        history.totals = lambda *_, **__: {"g": [(1, 1)]}  # type: ignore[method-assign]
        plots.draw_lag(tmp_path / "x.svg", history, ["g"], [], since_ms=0)
    assert not (tmp_path / "x.svg").exists()


def test_the_history_of_the_cluster_is_used_without_being_named(
    lag: Command, client: Client, scenario: LagScenario
) -> None:
    path = default_history_path(client.metadata([]).cluster_id)
    path.unlink(missing_ok=True)
    try:
        assert [None] == [row["verdict"] for row in lag(scenario.billing, "--by", "group", "-o", "json").json]
        lag("--keep")
        assert [None] != [row["verdict"] for row in lag(scenario.billing, "--by", "group", "-o", "json").json]
    finally:
        for one in path.parent.glob(f"{path.name}*"):
            one.unlink()


def _watch(broker: BrokerUnderTest, *arguments: str) -> "subprocess.Popen[bytes]":
    environment = {**os.environ, "LOGMARK_BOOTSTRAP_SERVERS": broker.bootstrap_servers, "COLUMNS": "150", "LINES": "30"}
    return subprocess.Popen(
        [LOGMARK, "lag", "--watch", "--every", "100ms", *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment,
    )  # fmt: skip


def test_a_program_may_watch_line_by_line_until_ctrl_c(broker: BrokerUnderTest, scenario: LagScenario) -> None:
    watching = _watch(broker, scenario.billing, "--by", "group", "-o", "json")
    try:
        assert watching.stdout is not None
        first, second = (json.loads(watching.stdout.readline()) for _ in range(2))
        watching.send_signal(signal.SIGINT)
        _, error = watching.communicate(timeout=120)
    finally:
        watching.kill()
        watching.wait()

    assert (0, b"") == (watching.returncode, error), "Ctrl-C is how a watch ends, and no failure"
    assert first["at_ms"] < second["at_ms"]
    assert [(scenario.billing, 3)] == [(row["group"], row["lag"]) for row in second["rows"]]


def test_the_board_is_drawn_in_place_and_stays_behind_when_it_ends(our_broker: BrokerUnderTest) -> None:
    with Client(our_broker.bootstrap_servers) as client:
        scenario = LagScenario(our_broker, client)
    main, side = pty.openpty()
    environment = {
        **os.environ, "LOGMARK_BOOTSTRAP_SERVERS": our_broker.bootstrap_servers, "TERM": "xterm", "COLUMNS": "160",
        "LINES": "30",
    }  # fmt: skip
    watching = subprocess.Popen(
        [LOGMARK, "lag", scenario.billing, "--watch", "--every", "100ms"], stdout=side, stderr=side, env=environment
    )
    os.close(side)
    seen = b""
    try:
        # Three blocks of a sparkline: three samples were drawn.
        while seen.count("█".encode()) < 6:
            seen += os.read(main, 65_536)
        watching.send_signal(signal.SIGINT)
        while True:
            try:
                more = os.read(main, 65_536)
            except OSError:
                break
            if not more:
                break
            seen += more
        assert 0 == watching.wait(60)
    finally:
        watching.kill()
        watching.wait()
        os.close(main)

    entered, left = seen.partition(b"\x1b[?1049h")[2].split(b"\x1b[?1049l")
    assert b"\x1b[2J" not in entered.partition(b"LATELY")[2], "nothing is wiped between two drawings"
    assert b"\x1b[?25h" in seen, "the cursor is back"
    for word in (scenario.billing, "LATELY", "3 records behind in 1 group", "not enough samples"):
        assert word in left.decode(), "the last board stays in the terminal"
    assert b"Traceback" not in seen


def test_the_board_shows_the_worst_first_and_as_many_as_there_is_room_for(our_broker: BrokerUnderTest) -> None:
    from rich.console import Console

    with Client(our_broker.bootstrap_servers) as client, History(None) as history:
        scenario = LagScenario(our_broker, client)
        for second in range(0, 120, 30):
            at_ms = 1_700_000_000_000 + second * 1_000
            history.add(take_sample(client, [scenario.billing, scenario.fraud], now_ms=lambda at_ms=at_ms: at_ms))  # type: ignore[misc]
        sample = take_sample(client, [scenario.billing, scenario.fraud], now_ms=lambda: 1_700_000_120_000)
        standing = build_lag_report(sample, history=history)

    console = Console(width=400, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    console.print(board(standing, {scenario.billing: "▁█"}, rows_max=1, pause_s=2))
    lines = console.export_text().splitlines()

    assert "4 records behind in 2 groups" in lines[0] and "every 2 s" in lines[0]
    assert lines[2].startswith(scenario.billing) and "▁█" in lines[2] and "STOPPED" in lines[2]
    assert "never at this rate" in lines[2]
    assert "and 1 more" == lines[3]


@pytest.mark.parametrize(
    ("values", "blocks"),
    [
        ([], ""),
        ([0, 0], "▁▁"),
        ([0, 1, 100], "▁▂█"),
        ([5, 5, 5], "███"),
        ([7, 6, 5, 4, 3, 2, 1, 0], "█▇▆▅▄▃▂▁"),
        ([9, 1, 2], "▅█"),
    ],
)
def test_a_sparkline_shows_nothing_as_nothing_and_little_as_something(values: list[int], blocks: str) -> None:
    assert blocks == sparkline(values, width=max(len(blocks), 1))


def test_a_broker_that_goes_away_is_said_on_the_board_and_looked_for_again(
    our_broker: BrokerUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three looks: the second one fails."""
    from logmark.cli.lag_board import JsonLines
    from logmark.client.errors import BrokerUnreachable
    from logmark.offsets.lag.views import LagLevel

    looked: list[object] = []
    told: list[str] = []
    answers = iter(["second", BrokerUnreachable("The broker is gone."), "third", KeyboardInterrupt()])

    def sample() -> object:
        one = next(answers)
        if isinstance(one, BaseException):
            raise one
        return one

    watcher = JsonLines(LagLevel.GROUP, only_with_lag=False)
    monkeypatch.setattr(watcher, "trouble", told.append)
    watcher.run("first", sample, looked.append, 0.001)  # type: ignore[arg-type]

    assert (["first", "second", "third"], ["The broker is gone."]) == (looked, told)


def test_a_wrong_interval_is_an_error(lag: Command) -> None:
    for every in ("0s", "2h"):
        refused = lag("--watch", "--every", every)
        assert 1 == refused.exit_code and "every 0.1 s to 1 h" in refused.error


def test_a_cluster_that_is_not_there_is_an_error_within_ten_seconds(pauses: list[float]) -> None:
    for how in ((), ("--watch",), ("--plot", "lag.svg")):
        pauses.clear()
        refused = run("lag", *how, servers="127.0.0.1:1")
        assert (1, "") == (refused.exit_code, refused.out)
        assert "127.0.0.1:1 refused the connection" in refused.error
        assert 0 < sum(pauses) < 10
    assert not Path("lag.svg").exists()
