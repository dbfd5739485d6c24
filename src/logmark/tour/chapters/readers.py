"""Chapters about reading: many groups, many workers in a group, many records at once."""

from confluent_kafka import Consumer, Producer, TopicPartition

from logmark.tour.stage import Stage


def independent(stage: Stage) -> None:
    """Each group has committed offsets of its own in the same log."""
    servers = stage.servers
    stage.fill("clicks", 8)
    stage.say(
        """
        Billing wants every click at once, fraud detection takes its time, and the features for the model are made at
        night. All three read the same log, each under a name of its own: the `group.id`. The broker keeps one number
        for each group and partition, the *committed offset*.
        """
    )
    with stage.code():
        for group, count in {"billing": 8, "fraud": 5, "ml-features": 1}.items():
            consumer = Consumer({
                "bootstrap.servers": servers,
                "group.id": group,
                "auto.offset.reset": "earliest",  # a new group begins at the beginning
                "enable.auto.commit": False,
            })
            consumer.subscribe(["clicks"])
            clicks = consumer.consume(count, timeout=10)
            consumer.commit(asynchronous=False)
            consumer.close()
            print(group, "has read", [click.offset() for click in clicks])
    stage.picture("clicks", "billing", "fraud", "ml-features")
    stage.say(
        """
        One log, three committed offsets, and nobody waits for anybody. A fourth reader tomorrow costs one more number,
        and begins wherever it likes.
        """
    )
    stage.keep("The log belongs to everybody, the committed offset to the group.")


def workers(stage: Stage) -> None:
    """Show that a group's partitions are shared out among its members."""
    servers = stage.servers
    stage.broker.create_topic("clicks", 3)
    stage.say(
        """
        Fraud detection needs more hands. Consumers with the same `group.id` are *workers* of one group, and the group
        gives each partition to exactly one of them. (A heartbeat each 0.2 s instead of 3 s, so that you need not wait.)
        """
    )
    with stage.code():
        workers = {
            name: Consumer({
                "bootstrap.servers": servers,
                "group.id": "fraud",
                "client.id": name,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "heartbeat.interval.ms": 200,
            })
            for name in ("worker-1", "worker-2")
        }
        for worker in workers.values():
            worker.subscribe(["clicks"])
        while any(len(worker.assignment()) not in (1, 2) for worker in workers.values()):
            for worker in workers.values():
                worker.poll(0.05)
        for name, worker in workers.items():
            print(name, "reads partitions", [one.partition for one in worker.assignment()])
    stage.say("Now four clicks come into each partition. Each worker gets those of its own, and commits:")
    with stage.code():
        producer = Producer({"bootstrap.servers": servers})
        for number in range(12):
            producer.produce("clicks", f"click {number}", partition=number % 3)
        producer.flush()
        print("worker-1 got", len(workers["worker-1"].consume(8, timeout=10)), "clicks")
        print("worker-2 got", len(workers["worker-2"].consume(4, timeout=10)), "clicks")
        for worker in workers.values():
            worker.commit(asynchronous=False)
    stage.picture("clicks", "fraud", workers_of="fraud")
    stage.pause()
    stage.say("The second worker goes home. Its partition moves to the first, at the committed offset of the group:")
    with stage.code():
        workers["worker-2"].close()
        while len(workers["worker-1"].assignment()) < 3:
            workers["worker-1"].poll(0.05)
        for partition in range(3):
            producer.produce("clicks", "one more", partition=partition)
        producer.flush()
        clicks = workers["worker-1"].consume(3, timeout=10)
        print("worker-1 got", sorted((click.partition(), click.offset()) for click in clicks))
    stage.picture("clicks", "fraud", workers_of="fraud")
    stage.say(
        """
        More workers than partitions do not help: a partition is never shared by two, so the rest stands idle. Offset 4
        of partition 2 came to worker-1, and 0 to 3 did not come again: offsets belong to the group, not to a worker.
        """
    )
    stage.keep("Within a group every partition has one worker, and workers come and go; the committed offsets stay.")
    workers["worker-1"].close()


def poll(stage: Stage) -> None:
    """Show that records come in batches, and that each has its own offset."""
    servers = stage.servers
    stage.fill("clicks", 10)
    stage.say(
        """
        A consumer is a loop around `poll`. `poll` hands over one record, `consume(n)` up to n. Ten clicks are there:
        """
    )
    with stage.code():
        consumer = Consumer({
            "bootstrap.servers": servers,
            "group.id": "ml-features",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        })
        consumer.subscribe(["clicks"])
        first = consumer.poll(10)
        if first is not None:  # None: nothing came in 10 seconds
            print("poll gave", first.offset())
        print("consume(4) gave", [click.offset() for click in consumer.consume(4, timeout=10)])
        print("next is", consumer.position([TopicPartition("clicks", 0)])[0].offset)
    stage.picture("clicks", "ml-features", running={"consumer": consumer})
    stage.say("The next five are there. Who asks for more than there is gets what there is, when the time is over:")
    with stage.code():
        print("consume(100) gave", [click.offset() for click in consumer.consume(100, timeout=1)])
        print("consume(100) gave", [click.offset() for click in consumer.consume(100, timeout=0.1)])
    stage.say(
        """
        How records travel is another matter: the client fetches ahead, whole batches at a time, and `poll` hands over
        from its memory. That is why a fast loop over `poll` is not a request for each record. The position counts what
        was handed over to you, not what was fetched.

        - In Java, `poll` returns up to `max.poll.records` (500) at once; here it returns one.
        - Come back within `max.poll.interval.ms` (5 minutes), or the group takes you for dead and gives your partitions
          to others. Slow work belongs in smaller batches.
        """
    )
    stage.keep("Batches are how records travel; the position moves record by record, with what you were handed.")
    consumer.close()
