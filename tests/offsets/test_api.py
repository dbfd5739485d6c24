"""The offset tools as one Python module."""

import re
from pathlib import Path

import pytest

from logmark import offsets
from tests.harness.brokers import BrokerUnderTest

PAGE = Path(__file__).resolve().parents[2] / "docs" / "api.md"


def test_every_name_of_the_api_is_there_and_in_its_page() -> None:
    page = PAGE.read_text()
    for name in dir(offsets):
        assert getattr(offsets, name).__name__ == name
        assert re.search(rf"\b{name}\b", page) or name in (
            "Age",
            "Change",
            "Committed",
            "PartitionMove",
            "TopicPartition",
        ), name


def test_a_name_that_is_not_there_is_no_attribute() -> None:
    with pytest.raises(AttributeError, match="has no plan_rest"):
        _ = offsets.plan_rest


def test_the_example_of_the_page_does_what_it_says(broker: BrokerUnderTest, capsys: pytest.CaptureFixture[str]) -> None:
    topic, group = broker.create_topic("clicks"), broker.group("fraud")
    broker.produce(topic, ["a", "b", "c"])
    broker.commit(group, {(topic, 0): 2})
    found = re.search(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert found is not None
    example = found[1].replace("127.0.0.1:9092", broker.bootstrap_servers).replace('"fraud"', repr(group))

    exec(compile(example.replace('"clicks"', repr(topic)), str(PAGE), "exec"), {})

    shown = capsys.readouterr().out.splitlines()
    assert ["1", "2 0 ['']", "[('reset', 'undone'), ('undo', 'done')]"] == shown
    assert {(topic, 0): 2} == broker.committed(group)
