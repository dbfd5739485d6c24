"""Orders, and the committed offsets of email-service and analytics-service, with plain consumers."""

from collections.abc import Callable

from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

TOPIC = "orders"
PATIENCE_S = 30.0

Say = Callable[[str], None]


def tell(bootstrap_servers: str, say: Say) -> None:
    """Four orders are written; one group reads them, dies and comes back; the other keeps its own committed offset."""
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    admin.create_topics([NewTopic(TOPIC, 1)])[TOPIC].result()

    say("The broker numbers the records:")
    for order in ("ORD-1001", "ORD-1002", "ORD-1003"):
        say(f"  {order} is at offset {produce(bootstrap_servers, order)}")

    say("email-service processes two orders and commits each:")
    emails = consumer(bootstrap_servers, "email-service")
    for _ in range(2):
        message = take(emails)
        emails.commit(message=message, asynchronous=False)
        say(f"  sent the mail for {shown(message)}; {describe_committed(emails)}")

    say("It takes a third one and dies before it commits:")
    say(f"  took {shown(take(emails))}; {describe_committed(emails)}")
    emails.close()

    say("analytics-service knows nothing of all that, and begins at the beginning:")
    analytics = consumer(bootstrap_servers, "analytics-service")
    for _ in range(3):
        message = take(analytics)
    analytics.commit(message=message, asynchronous=False)
    say(f"  counted up to {shown(message)}; {describe_committed(analytics)}")
    analytics.close()

    say(f"ORD-1004 arrives at offset {produce(bootstrap_servers, 'ORD-1004')}. email-service comes back:")
    emails = consumer(bootstrap_servers, "email-service")
    for _ in range(2):
        message = take(emails)
        emails.commit(message=message, asynchronous=False)
        say(f"  sent the mail for {shown(message)}; {describe_committed(emails)}")
    emails.close()


def produce(bootstrap_servers: str, order: str) -> int:
    """The offset that the broker gave the order, once it is on disk."""
    delivered: list[Message] = []
    producer = Producer({"bootstrap.servers": bootstrap_servers})
    producer.produce(TOPIC, order, on_delivery=lambda error, message: delivered.append(message))
    producer.flush(PATIENCE_S)
    if not delivered or delivered[0].error() is not None:
        raise RuntimeError(f"{order} was not written: {delivered[0].error() if delivered else 'no answer'}")
    return delivered[0].offset() or 0


def consumer(bootstrap_servers: str, group: str) -> Consumer:
    """A member of the group that commits when it is told to, and begins at the beginning if nothing is committed."""
    settings = {
        "bootstrap.servers": bootstrap_servers,
        "group.id": group,
        "enable.auto.commit": False,
        "auto.offset.reset": "earliest",
    }
    reader = Consumer(settings)
    reader.subscribe([TOPIC])
    return reader


def take(reader: Consumer) -> Message:
    """The next order."""
    message = reader.poll(PATIENCE_S)
    if message is None:
        raise RuntimeError("No order came.")
    if message.error() is not None:
        raise KafkaException(message.error())
    return message


def describe_committed(reader: Consumer) -> str:
    """What the broker knows of the group: the committed offset is the next one to read."""
    (committed,) = reader.committed([TopicPartition(TOPIC, 0)], timeout=PATIENCE_S)
    return f"committed {committed.offset} (last processed {committed.offset - 1})"


def shown(message: Message) -> str:
    """An order and where it is."""
    return f"{(message.value() or b'').decode()} (offset {message.offset()})"
