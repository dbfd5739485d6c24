"""`logmark health`: what a script learns by the exit code, and a person by the table, of any Kafka."""

import errno
import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing

import pytest

from logmark.broker import work_line
from logmark.broker.answers import LARGE
from logmark.cli.health import WIDTH
from logmark.client.errors import BrokerUnreachable
from logmark.client.router import Router
from logmark.disk.file_system import RealFileSystem
from logmark.errors import ErrorCode
from logmark.testing import Broker
from logmark.testing.faulty_file_system import FaultyFileSystem
from tests.cli.conftest import CommandResult, as_printed, run
from tests.harness import wire
from tests.harness.brokers import BrokerUnderTest

HEALTHY, DEGRADED, USAGE, UNREACHABLE = 0, 1, 2, 4
API_VERSIONS = 18


@pytest.fixture
def files() -> FaultyFileSystem:
    return FaultyFileSystem(RealFileSystem(sync=False))


@pytest.fixture
def own(files: FaultyFileSystem) -> Iterator[Broker]:
    """A broker whose disk a test breaks."""
    with Broker(durability="sync", files=files) as broker:
        broker.create_topic("orders", 3)
        assert 0 == write(broker, 0)
        yield broker
        files.heal()


def write(broker: Broker, partition: int) -> int:
    batch = wire.batch([b"value"])
    return wire.produce(broker.bootstrap_servers, "orders", batch, partition=partition).error_code


def health(broker: Broker, *options: str) -> CommandResult:
    return run("health", *options, servers=broker.bootstrap_servers)


def state_of(done: CommandResult) -> dict[str, str]:
    """The first table, by check."""
    rows = [line.split("  ", 1) for line in done.lines if "  " in line]
    return {row[0]: row[1].strip() for row in rows[1:]}


def test_a_healthy_broker_is_exit_code_0_and_every_check_in_a_table(own: Broker) -> None:
    done = health(own)

    found = state_of(done)
    assert HEALTHY == done.exit_code
    assert "Healthy." == done.lines[-1]
    assert found["broker 1"].startswith(f"up at {own.bootstrap_servers}, Logmark ")
    assert ("accepted", "open", "3 of 3 open") == (found["writes"], found["write-ahead log"], found["partitions"])
    assert " free of " in found["disk"]
    assert found["memory of clients"].endswith(" of 256.0 MiB")
    assert " of " in found["connections"]


def test_partitions_that_do_not_take_records_are_exit_code_1_and_named_with_their_reasons(
    own: Broker, files: FaultyFileSystem
) -> None:
    files.fail_writes("orders-0/", errno.ENOSPC)
    files.fail_writes("orders-2/", errno.EIO)
    for partition in (0, 2):
        assert ErrorCode.KAFKA_STORAGE_ERROR == write(own, partition)

    done, told = health(own), health(own, "--output", "json")

    assert (DEGRADED, DEGRADED) == (done.exit_code, told.exit_code)
    assert "1 of 3 open" == state_of(done)["partitions"]
    assert "Degraded: 2 problems." == done.lines[-1]
    text = " ".join(done.out.split())
    assert "! Partition orders-0 is full: The disk is full, so the log of orders-0 did not take" in text
    assert "! Partition orders-2 is suspect: The disk failed the log of orders-2" in text
    assert "LAST FAILURES" in done.lines
    assert "degraded" == told.json["state"]
    assert 2 == len(told.json["problems"])
    troubled = told.json["brokers"][0]["details"]["partitions"]["troubled"]
    assert [("orders", 0, "full"), ("orders", 2, "suspect")] == [
        (one["topic"], one["partition"], one["state"]) for one in troubled
    ]
    assert [("orders", 2, "KAFKA_STORAGE_ERROR")] == [tuple(one.values()) for one in told.json["partition_errors"]]

    files.heal()
    assert 0 == write(own, 0)
    assert 1 == len(health(own, "-o", "json").json["problems"])


def test_a_broker_that_takes_no_records_until_a_restart_is_exit_code_1_with_one_problem(
    own: Broker, files: FaultyFileSystem
) -> None:
    files.fail_syncs("logmark.wal/0", errno.EIO)
    assert ErrorCode.KAFKA_STORAGE_ERROR == write(own, 1)

    done = health(own)

    assert DEGRADED == done.exit_code
    found = state_of(done)
    assert ("refused until a restart", "failed") == (found["writes"], found["write-ahead log"])
    assert "! Broker 1 takes no records until it is restarted: The disk failed the" in " ".join(done.out.split())


def test_every_line_fits_a_terminal_of_80_columns(own: Broker, files: FaultyFileSystem) -> None:
    files.fail_writes("orders-0/", errno.ENOSPC)
    files.fail_writes("orders-2/", errno.EIO)
    for partition in (0, 2):
        assert ErrorCode.KAFKA_STORAGE_ERROR == write(own, partition)

    assert not [line for line in health(own).lines if len(line) > WIDTH]


def test_the_longest_turns_of_the_event_loop_are_shown_by_api(own: Broker) -> None:
    from logmark.broker.server import Broker as Served

    broker = own._runner._broker  # type: ignore[union-attr]
    assert isinstance(broker, Served)
    broker.watchdog.turns.clear()
    broker.watchdog.note("DescribeConfigs", 10.0, 19.083)

    done = health(own)

    assert HEALTHY == done.exit_code, "a long turn is past"
    (row,) = [line.split() for line in done.lines if line.startswith("DescribeConfigs")]
    assert ["9083", "1"] == [row[1], row[3]]


def test_nobody_there_is_exit_code_4_with_an_error_or_json() -> None:
    with closing(socket.socket()) as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"

        done, told = run("health", "-b", address), run("health", "-b", address, "-o", "json")

    assert (UNREACHABLE, UNREACHABLE) == (done.exit_code, told.exit_code)
    assert "" == done.out
    assert address in done.error
    assert "unreachable" == told.json["state"]
    assert address in told.json["problems"][0]
    assert as_printed({"state": "unreachable", "problems": told.json["problems"]}) == told.out


def test_programs_get_the_fields_of_a_cluster_in_their_order(own: Broker) -> None:
    done = health(own, "-o", "json")

    (one,) = done.json["brokers"]
    (log_dir,) = one["log_dirs"]
    expected = {
        "state": "healthy",
        "problems": [],
        "cluster_id": done.json["cluster_id"],
        "partitions": 3,
        "partition_errors": [],
        "brokers": [
            {
                "id": 1,
                "address": own.bootstrap_servers,
                "is_up": True,
                "failure": None,
                "log_dirs": [
                    {
                        "path": own.data_dir,
                        "error": None,
                        "total_bytes": log_dir["total_bytes"],
                        "usable_bytes": log_dir["usable_bytes"],
                    }
                ],
                "details": one["details"],
            }
        ],
    }
    assert as_printed(expected) == done.out


def test_a_disk_that_became_read_only_is_exit_code_1_before_any_write_is_refused(own: Broker) -> None:
    from logmark.broker.disk_probe import DiskProbe

    def refuse(path: str) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    own._runner._broker.disk_probe = DiskProbe(own.data_dir, touch=refuse)  # type: ignore[union-attr]

    done = health(own)

    assert DEGRADED == done.exit_code
    assert state_of(done)["disk"].endswith(", read-only")
    text = " ".join(done.out.split())
    assert "! Broker 1: the disk of the data directory takes no writes ([Errno 30] Read-only file system)." in text


def test_a_compaction_that_hangs_is_exit_code_1_and_names_the_process_to_kill(
    own: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    from logmark.broker.cleaner import Cleaner, Progress

    monkeypatch.setattr(Cleaner, "progress", Progress("orders-0", 0, pid=4711))

    done = health(own)

    assert DEGRADED == done.exit_code
    assert state_of(done)["compaction"].startswith("orders-0, last progress ")
    text = " ".join(done.out.split())
    assert "! Broker 1: the compaction of orders-0 has made no progress for " in text
    assert "kill process 4711, and the broker starts another." in text


@pytest.mark.parametrize(
    ("setting", "problem"),
    [
        ("max.connections", "Broker 1 has no connection left (2 of 2, max.connections)."),
        (
            "max.connections.per.ip",
            "Broker 1 has no connection left for clients of this address (max.connections.per.ip).",
        ),
    ],
)
def test_a_broker_without_a_connection_left_tells_its_health_all_the_same(setting: str, problem: str) -> None:
    with Broker({setting: "2"}) as broker, ExitStack() as opened:
        broker.create_topic("orders", 3)
        for _ in range(2):
            # Each is counted before the next is accepted, because it has been answered.
            wire.send_over(opened.enter_context(wire.connect(broker.bootstrap_servers)), API_VERSIONS, 0, b"")

        done, told = health(broker), health(broker, "-o", "json")

    assert (DEGRADED, DEGRADED) == (done.exit_code, told.exit_code)
    assert [problem] == told.json["problems"]
    assert "3 of 3 open" == state_of(done)["partitions"]


def test_the_long_requests_of_others_do_not_keep_a_broker_from_telling_its_health(
    own: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    own.create_topic("wide", 2 * LARGE)
    # No long work begins any more.
    monkeypatch.setattr(work_line._Lane, "begin_next", lambda lane: None)

    done = health(own)

    assert HEALTHY == done.exit_code
    assert f"{2 * LARGE + 3} of {2 * LARGE + 3} open" == state_of(done)["partitions"]


def test_a_broker_that_tells_its_health_and_is_slow_otherwise_is_exit_code_1(
    own: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def time_out(router: Router, topics: object = None) -> None:
        raise BrokerUnreachable("The broker did not answer in time.")

    monkeypatch.setattr(Router, "metadata", time_out)

    done = health(own, "-o", "json")

    assert DEGRADED == done.exit_code
    (problem,) = done.json["problems"]
    assert "Broker 1 tells its health, but is slow to answer clients: The broker did not answer in time." == problem


def test_a_mistake_in_the_options_is_exit_code_2() -> None:
    assert USAGE == run("health", "--nonsense").exit_code


def test_health_works_with_any_kafka(broker: BrokerUnderTest) -> None:
    topic = broker.unique("orders")
    assert 0 == run("topics", "create", topic, servers=broker.bootstrap_servers).exit_code

    told = run("health", "-o", "json", servers=broker.bootstrap_servers).json
    done = run("health", servers=broker.bootstrap_servers)

    assert ("healthy", []) == (told["state"], told["problems"])
    (one,) = told["brokers"]
    (log_dir,) = one["log_dirs"]
    assert one["is_up"]
    assert log_dir["error"] is None
    assert 0 < log_dir["usable_bytes"] <= log_dir["total_bytes"]
    assert (one["details"] is not None) is (broker.kind == "logmark")
    assert HEALTHY == done.exit_code
    assert "partitions" in state_of(done)


def test_groups_that_use_up_their_memory_are_exit_code_1(own: Broker) -> None:
    budget = own._runner._broker.budget  # type: ignore[union-attr]
    budget.hold_groups(budget.groups_max)

    done = health(own)

    assert DEGRADED == done.exit_code
    assert "so new groups, members and offsets are refused." in " ".join(done.out.split())
