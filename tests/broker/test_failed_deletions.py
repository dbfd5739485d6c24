"""Folders of deleted topics that the disk refuses to rename or remove: they stop nobody, and are tried again."""

import errno
import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from logmark.broker.api import describe_log_dirs
from logmark.client.client import Client
from logmark.client.health import check_health
from logmark.disk.file_system import RealFileSystem
from logmark.errors import ErrorCode
from logmark.log.verification import Verification
from logmark.testing import Broker, FaultyFileSystem
from tests.coordination.wire import Wire
from tests.harness import wire as by_hand
from tests.harness.node import wait_until

LATER_S = 120


@pytest.fixture
def files() -> FaultyFileSystem:
    return FaultyFileSystem(RealFileSystem(sync=False))


@pytest.fixture
def broker(files: FaultyFileSystem, tmp_path: Path) -> Iterator[Broker]:
    with Broker(durability="sync", files=files, data_dir=tmp_path) as broker:
        for topic in ("deleted", "other"):
            broker.create_topic(topic)
            assert 0 == write(broker, topic)
        yield broker
        files.heal()


def write(broker: Broker, topic: str) -> int:
    batch = by_hand.batch([b"value"])
    return by_hand.produce(broker.bootstrap_servers, topic, batch).error_code


def delete(broker: Broker, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    admin.delete_topics([topic])[topic].result(60)


def create_again(broker: Broker, topic: str) -> ErrorCode:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    try:
        admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(60)
    except KafkaException as error:
        return ErrorCode(error.args[0].code())
    return ErrorCode.NONE


def failed_deletions(broker: Broker) -> Any:
    with closing(Wire(broker)) as wire:
        answer = wire.ask(describe_log_dirs, 4, topics=[], wants_health=True)
    return json.loads(answer.health)["failed_deletions"]


def problems(broker: Broker) -> str:
    with Client(broker.bootstrap_servers) as client:
        return " ".join(check_health(client).problems)


def test_a_deleted_topic_whose_folder_cannot_be_renamed_stops_no_start_and_is_gone_when_it_can(
    broker: Broker, files: FaultyFileSystem, tmp_path: Path
) -> None:
    files.fail_writes("-delete", errno.EPERM)
    delete(broker, "deleted")
    assert "deleted-0" in problems(broker)
    assert ErrorCode.TOPIC_ALREADY_EXISTS == create_again(broker, "deleted")

    broker.restart()

    assert 0 == write(broker, "other")
    assert ErrorCode.UNKNOWN_TOPIC_OR_PARTITION == write(broker, "deleted")
    assert "deleted-0" in problems(broker)

    files.heal()
    broker.advance(seconds=LATER_S)

    wait_until(lambda: not failed_deletions(broker), "the deletion is finished")
    wait_until(lambda: not (tmp_path / "deleted-0").exists(), "its folder is gone")
    assert ErrorCode.NONE == create_again(broker, "deleted")
    assert 0 == write(broker, "deleted")


def test_a_stop_with_a_deleted_topic_whose_folder_cannot_be_renamed_is_clean(
    broker: Broker, files: FaultyFileSystem, tmp_path: Path
) -> None:
    files.fail_writes("-delete", errno.EPERM)
    delete(broker, "deleted")

    broker.stop()

    assert (tmp_path / ".kafka_cleanshutdown").exists()
    assert not (tmp_path / "logmark.wal").exists()
    assert [] == Verification(str(tmp_path), RealFileSystem(sync=False)).run().findings


def test_files_of_a_deleted_topic_that_cannot_be_removed_stop_no_start_and_are_removed_when_they_can(
    broker: Broker, files: FaultyFileSystem, tmp_path: Path
) -> None:
    def folders() -> list[Path]:
        return list(tmp_path.glob("deleted-0.*-delete"))

    files.fail_removals("-delete")
    delete(broker, "deleted")
    assert ErrorCode.NONE == create_again(broker, "deleted")
    broker.advance(seconds=LATER_S)
    wait_until(lambda: failed_deletions(broker), "a removal has failed")
    assert "deleted-0" in problems(broker)

    broker.restart()

    assert 0 == write(broker, "other")
    assert [0, 1] == [len(failed_deletions(broker)) - 1, len(folders())]

    files.heal()
    broker.advance(seconds=LATER_S)

    wait_until(lambda: not folders(), "the folder is gone")
    wait_until(lambda: not failed_deletions(broker), "nothing is left of the deletion")
    assert "" == problems(broker)
