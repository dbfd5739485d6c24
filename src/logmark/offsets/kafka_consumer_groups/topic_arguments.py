"""Topics and partitions as they are written after `--topic`, and whether they are there."""

import re
from collections.abc import Sequence

from logmark.client.client import Client
from logmark.client.errors import ClientError
from logmark.client.metadata import ClusterMetadata
from logmark.names import TopicPartition
from logmark.offsets.kafka_consumer_groups import java_errors
from logmark.offsets.kafka_consumer_groups.failures import Failed, Usage

CALL = "describeTopics"
_INT = range(-(1 << 31), 1 << 31)


def parse_partitions(text: str) -> list[TopicPartition]:
    """Parse partitions such as `orders:0,1`."""
    parts = re.sub(":+$", "", text).split(":")
    if len(parts) != 2:
        raise Usage(f"Invalid topic arg '{text}', expected topic name and partitions")
    numbers = re.sub(",+$", "", parts[1])
    return [TopicPartition(parts[0], _number(one, text)) for one in numbers.split(",")] if numbers else []


def _number(text: str, whole: str) -> int:
    if re.fullmatch(r"[+-]?\d+", text) and int(text) in _INT:
        return int(text)
    raise Usage(f"Invalid partition '{text}' specified in topic arg '{whole}''")


def partitions_named(client: Client, texts: Sequence[str]) -> list[TopicPartition]:
    """Return the partitions that the texts name; a topic without numbers means all of its partitions."""
    found = [one for text in texts if ":" in text for one in parse_partitions(text)]
    whole = list(dict.fromkeys(text for text in texts if ":" not in text))
    if not whole:
        return found
    try:
        cluster = client.metadata(whole)
    except ClientError as error:
        raise Failed(java_errors.format_bare_message(error, CALL), hint=str(error)) from None
    for topic in whole:
        if topic in cluster.errors:
            raise Failed(java_errors.message_for(cluster.errors[topic]))
        found += cluster.partitions(topic)
    return found


def check_partitions(client: Client, partitions: Sequence[TopicPartition]) -> None:
    """Raise Failed unless every partition exists and has a leader."""
    if not partitions:
        return
    cluster = _metadata(client, partitions, CALL)
    for code in cluster.errors.values():
        raise Failed(f"{java_errors.EXECUTION}{java_errors.format_code(code)}")
    if missing := _missing(cluster, partitions):
        raise Failed(f'The partitions "{missing}" do not exist')
    if leaderless := ",".join(str(one) for one in dict.fromkeys(partitions) if cluster.leader(one) < 0):
        raise Failed(f'The partitions "{leaderless}" have no leader')


def check_file_partitions(client: Client, partitions: Sequence[TopicPartition]) -> None:
    """As `check_partitions`, in the words that the tool has where it finds out only when it asks for the offsets."""
    if not partitions:
        return
    cluster = _metadata(client, partitions, "listOffsets(api=METADATA)")
    for one in partitions:
        if one.topic in cluster.errors:
            raise Failed(
                f"{java_errors.EXECUTION}{java_errors.format_metadata_exception(one, cluster.errors[one.topic])}"
            )
    # Kafka's tool asks for these until its time is up, and then says only that.
    if missing := _missing(cluster, partitions):
        raise Failed(f'The partitions "{missing}" do not exist')


def _metadata(client: Client, partitions: Sequence[TopicPartition], call: str) -> ClusterMetadata:
    try:
        return client.metadata(sorted({one.topic for one in partitions}))
    except ClientError as error:
        raise Failed(f"{java_errors.EXECUTION}{java_errors.format_exception(error, call)}", hint=str(error)) from None


def _missing(cluster: ClusterMetadata, partitions: Sequence[TopicPartition]) -> str:
    return ",".join(
        str(one)
        for one in partitions
        if one.topic not in cluster.topics or one.partition not in cluster.topics[one.topic].partitions
    )
