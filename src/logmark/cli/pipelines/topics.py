"""`logmark pipelines run --create-topics`: creates the topics that pipelines write to."""

import time
from collections.abc import Mapping, Sequence

from logmark.cli.tables import say
from logmark.client.client import Client
from logmark.client.errors import RefusedByBroker
from logmark.errors import ErrorCode
from logmark.spark.pipelines.declaration import Topic
from logmark.spark.pipelines.job import Job

VISIBLE_AFTER_S = 10.0


def create_topics(jobs: Sequence[Job], clients: Mapping[str, Client]) -> None:
    """Create missing dead-letter topics and topics of rows, with the partitions and replicas that the cluster sets."""
    for job in jobs:
        pipeline, client = job.pipeline, clients[job.brokers.bootstrap_servers]
        wanted = {
            "dead letters": pipeline.dead_letters,
            "rows": pipeline.sink.name if isinstance(pipeline.sink, Topic) else None,
        }
        for what, topic in wanted.items():
            if topic is not None and topic not in client.metadata([topic]).topics and _create(client, topic):
                say(f"Created topic {topic} for the {what} of {pipeline.name}.")


def _create(client: Client, topic: str) -> bool:
    is_new = True
    try:
        client.create_topic(topic)
    except RefusedByBroker as error:
        if error.code != ErrorCode.TOPIC_ALREADY_EXISTS:
            raise
        is_new = False
    # Apache Kafka shows a topic a moment after it has created it.
    deadline = time.monotonic() + VISIBLE_AFTER_S
    while not client.metadata([topic]).partitions(topic) and time.monotonic() < deadline:
        time.sleep(0.05)
    return is_new
