"""The first chapters: what a log is, how a record is named, and who asks whom."""

from confluent_kafka import Consumer, Producer, TopicPartition

from logmark.tour.stage import Stage


def offset(stage: Stage) -> None:
    """Show that the broker numbers the records."""
    servers = stage.servers
    stage.say(
        """
        A shop writes down every click. In Kafka a click goes to the end of a *log*: a list that only grows. The broker
        numbers the records of the list as it writes them, 0, 1, 2 and so on. That number is the *offset*. A producer
        cannot choose it; it is told.
        """
    )
    stage.command("logmark topics create clicks")
    with stage.code():
        producer = Producer({"bootstrap.servers": servers})
        for page in ["/home", "/shoes", "/cart"]:
            producer.produce(
                "clicks", page,
                on_delivery=lambda error, click: print(click.value(), "at offset", click.offset()),
            )
        producer.flush()
    stage.say("Another producer, which knows nothing of the first, simply gets the next number:")
    with stage.code():
        another = Producer({"bootstrap.servers": servers})
        another.produce(
            "clicks", "/pay",
            on_delivery=lambda error, click: print(click.value(), "at offset", click.offset()),
        )
        another.flush()
    stage.picture("clicks")
    stage.say(
        """
        The 4 behind the last cell is where the next click will go; only this end of the log ever grows. (And `b'/home'`
        is no slip: Kafka stores bytes. What they mean is between you and your readers.)
        """
    )
    stage.keep("An offset is a record's number in its log: given once, by the broker, and never changed or used again.")


def partitions(stage: Stage) -> None:
    """Show that an offset means something only together with its topic and partition."""
    servers = stage.servers
    stage.say(
        """
        One log is written by one broker, so busy topics are cut into several: *partitions*, each with offsets of its
        own that begin at 0. The key chooses the partition. All clicks of one user have the same key, so they stay in
        one partition, and in order.
        """
    )
    stage.command("logmark topics create clicks --partitions 2")
    with stage.code():
        producer = Producer({"bootstrap.servers": servers})
        for click in ["ada /home", "cyd /home", "ada /bags", "cyd /hats", "ada /pay"]:
            producer.produce(
                "clicks", click, key=click.split()[0],
                on_delivery=lambda error, told: print(
                    told.value(), "->", (told.topic(), told.partition(), told.offset())
                ),
            )
            producer.flush()
    stage.picture("clicks")
    stage.say(
        """
        There are two records with offset 0, and they have nothing to do with each other. Between partitions there is
        no order either: the logs do not say which of the two came first.

        (Which partition a key goes to is the client's choice. librdkafka, which runs here, takes a CRC of the key, the
        Java client a Murmur hash: set `partitioner=murmur2_random` here if both write to one topic.)
        """
    )
    stage.keep("A record's full name is (topic, partition, offset); an offset alone is like a house number alone.")


def pull(stage: Stage) -> None:
    """Nothing is pushed, and reading removes nothing."""
    servers = stage.servers
    stage.fill("clicks", 3)
    stage.say(
        """
        Three clicks are in the log. A consumer asks for records *from an offset on*, and the broker answers. That is
        all. The broker does not push, and keeps no list of who has seen what.
        """
    )
    with stage.code():
        consumer = Consumer({
            "bootstrap.servers": servers,
            "group.id": "billing",
            "enable.auto.commit": False,
        })
        consumer.assign([TopicPartition("clicks", 0, 0)])  # partition 0, from offset 0 on
        print("came:", [click.offset() for click in consumer.consume(3, timeout=10)])
    stage.say("Three more clicks arrive. The program does not ask for them, so it stands where it stood:")
    with stage.code():
        producer = Producer({"bootstrap.servers": servers})
        for page in ["/shoes", "/cart", "/pay"]:
            producer.produce("clicks", page)
        producer.flush()
        print("next to read:", consumer.position([TopicPartition("clicks", 0)])[0].offset)
    stage.picture("clicks", running={"consumer": consumer})
    stage.say("And now what no queue can do: go back, and read everything again.")
    with stage.code():
        consumer.seek(TopicPartition("clicks", 0, 0))
        print("came:", [click.offset() for click in consumer.consume(6, timeout=10)])
        first, end = consumer.get_watermark_offsets(TopicPartition("clicks", 0), timeout=10)
        print("still in the log:", list(range(first, end)))
    stage.say("A queue hands a message out and forgets it. A log hands nothing out: you read it, like a book.")
    stage.keep("Reading is asking from an offset on; it takes nothing away, so it can be done again.")
    consumer.close()
