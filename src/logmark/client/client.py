"""A blocking client for any Kafka: small, exact, and without threads."""

from logmark.client.bulk import BulkCalls
from logmark.client.group_descriptions import DescribeCalls
from logmark.client.log_dirs import LogDirCalls
from logmark.client.logs import LogCalls
from logmark.client.produce import ProduceCalls
from logmark.client.topics import TopicCalls


class Client(LogCalls, ProduceCalls, DescribeCalls, TopicCalls, BulkCalls, LogDirCalls):
    """Every call of the tools and the pipelines, each sent to the broker that can answer it.

    One thread uses it at a time. Its context closes it; a `fetcher` has a connection of its own.
    """
