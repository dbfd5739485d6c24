"""A client for any Kafka."""

from logmark.client.client import Client

__all__ = ["Client"]
