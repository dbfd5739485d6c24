"""A name that a request repeats is answered once, and a long answer lets others have their turn."""

import pytest

from logmark.broker.api import describe_configs, metadata
from logmark.testing import Broker
from tests.coordination.wire import Wire

TOPIC = 2


def test_a_topic_that_is_named_30_000_times_is_described_once() -> None:
    resource = describe_configs.schema.RequestResource(resource_type=TOPIC, resource_name="t", configuration_keys=None)
    with Broker() as broker:
        broker.create_topic("t")
        wire = Wire(broker)

        answer = wire.ask(describe_configs, 4, resources=[resource] * 30_000)
        wire.close()

    assert ["t"] == [result.resource_name for result in answer.results]


def test_others_are_served_while_many_topics_are_described(monkeypatch: pytest.MonkeyPatch) -> None:
    described = 0
    describe = describe_configs._describe
    with Broker() as broker:
        broker.create_topic("t")
        named = describe_configs.schema.RequestResource
        resources = [
            named(resource_type=TOPIC, resource_name=f"t{at}", configuration_keys=None) for at in range(2000)
        ]
        wire, other = Wire(broker), Wire(broker)
        seen: list[int] = []

        def count(*args: object) -> object:
            nonlocal described
            described += 1
            if described == 100:
                other.send(metadata, 1, topics=[metadata.schema.RequestTopic(name="t")])
            return describe(*args)  # type: ignore[arg-type]

        topics = metadata.handle

        def note(*args: object) -> object:
            seen.append(described)
            return topics(*args)  # type: ignore[arg-type]

        monkeypatch.setattr(describe_configs, "_describe", count)
        monkeypatch.setattr(metadata, "handle", note)
        answer = wire.ask(describe_configs, 4, resources=resources)
        other.receive(metadata, 1)

        assert 2000 == len(answer.results)
        assert seen[0] < 2000, "the other client was served before the long answer was complete"
        wire.close()
        other.close()
