"""Settings have Kafka's names; an invalid one is refused with a message."""

from pathlib import Path

import pytest

from logmark import properties
from logmark.broker.config import BrokerConfig
from logmark.errors import UserError


def test_a_setting_without_a_value_has_kafkas_default() -> None:
    config = BrokerConfig()

    assert 10_080 == config.int("offsets.retention.minutes")
    assert 3000 == config.int("group.initial.rebalance.delay.ms")
    assert config.bool("auto.create.topics.enable")


def test_an_unknown_setting_is_refused_by_name() -> None:
    with pytest.raises(UserError, match=r"'num\.partitionz'") as refused:
        BrokerConfig({"num.partitionz": "3"})

    assert 2 == refused.value.exit_code


def test_an_impossible_value_is_refused_with_its_bounds() -> None:
    with pytest.raises(UserError, match="between 1 and"):
        BrokerConfig({"num.partitions": "0"})


def test_a_setting_without_meaning_on_one_node_is_left_aside_with_a_warning() -> None:
    config = BrokerConfig({"controller.quorum.voters": "1@localhost:9093", "num.io.threads": "8"})

    assert 2 == len(config.warnings)


@pytest.mark.parametrize(
    ("given", "expected_ms"),
    [
        ({"log.retention.hours": "2"}, "7200000"),
        ({"log.retention.hours": "2", "log.retention.minutes": "3"}, "180000"),
        ({"log.retention.minutes": "3", "log.retention.hours": "2"}, "180000"),
        ({"log.retention.ms": "5", "log.retention.hours": "2"}, "5"),
        ({"log.retention.hours": "-1"}, "-1"),
    ],
)
def test_the_finest_unit_of_a_retention_wins(given: dict[str, str], expected_ms: str) -> None:
    assert {"retention.ms": expected_ms} == BrokerConfig(given).topic_defaults()


def test_the_number_of_offset_partitions_cannot_be_changed() -> None:
    with pytest.raises(UserError, match=r"offsets\.topic\.num\.partitions"):
        BrokerConfig({"offsets.topic.num.partitions": "10"})


def test_a_line_that_is_no_setting_is_refused_by_its_text(tmp_path: Path) -> None:
    path = tmp_path / "server.properties"
    path.write_text("num.partitions=3\nnonsense\n")

    with pytest.raises(UserError, match="'nonsense'"):
        BrokerConfig(properties.read(path))
