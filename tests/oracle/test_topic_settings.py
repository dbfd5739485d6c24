"""Topic settings are Apache Kafka's: names, defaults, types, sources and synonyms."""

import pytest
from confluent_kafka.admin import AdminClient, ConfigResource

from tests.harness.brokers import BrokerUnderTest

# Kafka 4.3 keeps a cluster-wide value for this one, with the feature eligible.leader.replicas.version.
DIFFERENT_SOURCE = {"min.insync.replicas"}


def described(bootstrap_servers: str, topic: str) -> dict[str, tuple[object, ...]]:
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    found = admin.describe_configs([resource])[resource].result(60)
    return {
        name: (
            entry.value,
            entry.source,
            entry.is_read_only,
            entry.is_sensitive,
            [(synonym.name, synonym.value, synonym.source) for synonym in entry.synonyms.values()],
        )
        for name, entry in found.items()
        if name not in DIFFERENT_SOURCE
    }


@pytest.mark.kafka
@pytest.mark.parametrize(
    "config", [{}, {"retention.ms": "-1", "cleanup.policy": "compact,delete"}], ids=["defaults", "overrides"]
)
def test_a_topics_settings_are_described_as_apache_kafka_describes_them(
    our_broker: BrokerUnderTest, apache_kafka: BrokerUnderTest, config: dict[str, str]
) -> None:
    ours = described(our_broker.bootstrap_servers, our_broker.create_topic("settings", config=config))
    kafkas = described(apache_kafka.bootstrap_servers, apache_kafka.create_topic("settings", config=config))

    assert kafkas == ours
