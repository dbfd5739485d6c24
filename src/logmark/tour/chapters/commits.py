"""Chapters about the committed offset: what it says, what a crash does to it, and who moves it when."""

import os
import signal
import time

from confluent_kafka import Consumer, TopicPartition

from logmark.tour.stage import HOUR_MS, Stage


def committed(stage: Stage) -> None:
    """Show that the position is the consumer's, and the committed offset the group's."""
    servers = stage.servers
    stage.fill_lately("clicks", 6, every_ms=HOUR_MS)
    stage.say(
        """
        Two numbers, and most trouble with Kafka comes from mixing them up. The *position* (the current offset) is which
        record the consumer gets next; it lives in the consumer's memory. The *committed offset* is where the group goes
        on after a restart; the broker keeps it. Billing reads three clicks, commits, and reads one more:
        """
    )
    with stage.code():
        billing = Consumer({
            "bootstrap.servers": servers,
            "group.id": "billing",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        })
        billing.subscribe(["clicks"])
        billing.consume(3, timeout=10)  # 0, 1, 2
        billing.commit(asynchronous=False)
        billing.consume(1, timeout=10)  # 3
        print("position: ", billing.position([TopicPartition("clicks", 0)])[0].offset)
        print("committed:", billing.committed([TopicPartition("clicks", 0)], timeout=10)[0].offset)
    stage.picture("clicks", "billing", running={"consumer": billing})
    stage.say(
        """
        People say "committed" in two ways. Kafka stores **the next record to read**: 0, 1 and 2 are done, so 3. Many
        texts say **the last one processed**, and mean the same by 2. Logmark stores what Kafka stores and shows
        both:
        """
    )
    stage.command("logmark lag billing")
    stage.say("Mixing the two up costs one record: it is read twice, or never.")
    stage.keep("The position lives and dies with the consumer; the committed offset is there after a restart.")
    billing.close()


def bill(servers: str) -> None:
    """Bills click by click, commits after the third, and dies after the fourth."""
    consumer = Consumer({
        "bootstrap.servers": servers,
        "group.id": "billing",
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
    })
    consumer.subscribe(["clicks"])
    for click in consumer.consume(4, timeout=20):
        print("billed", click.offset())
        if click.offset() == 2:
            consumer.commit(message=click, asynchronous=False)  # 3, the next to read
    os.kill(os.getpid(), signal.SIGKILL)


def crash(stage: Stage) -> None:
    """Show that the records between committed offset and position are read twice after a crash."""
    servers, broker = stage.servers, stage.broker
    stage.fill("clicks", 6)
    stage.say("This one runs in a process of its own, because it is really killed:")
    stage.process(bill)
    stage.picture("clicks", "billing")
    stage.say(
        """
        Click 3 is billed, but nobody told the broker. The group stands at 3. A dead worker says no goodbye, so the
        group waits for it until `session.timeout.ms` (45 s) is over; the tour turns its broker's clock instead. Then
        comes the successor:
        """
    )
    with stage.code():
        broker.advance(seconds=46)
        successor = Consumer({
            "bootstrap.servers": servers,
            "group.id": "billing",
            "enable.auto.commit": False,
        })
        successor.subscribe(["clicks"])
        print("billed", [click.offset() for click in successor.consume(2, timeout=10)])
        successor.commit(asynchronous=False)
        successor.close()
    stage.picture("clicks", "billing")
    stage.say(
        """
        Click 3 was billed twice, click 4 once, and none was left out. This is *at least once*, and it is what you want:
        the other order, commit first and then work, loses what it had in hand. So make the work repeatable. A bill
        whose key is (topic, partition, offset) can be written ten times and is one bill.
        """
    )
    stage.keep("After a crash, what lies between the committed offset and the position comes again.")


def careless(servers: str) -> None:
    """Lets the client commit by itself."""
    consumer = Consumer({
        "bootstrap.servers": servers,
        "group.id": "billing",
        "auto.offset.reset": "earliest",
        "enable.auto.commit": True,  # the default
        "auto.commit.interval.ms": 100,  # 5000, if you do not say
    })
    consumer.subscribe(["clicks"])
    for click in consumer.consume(1, timeout=20):
        print("billing", click.offset(), "...")
        time.sleep(60)  # a long bill; the power goes in the middle of it
        print("billed", click.offset())


def careful(servers: str) -> None:
    """Lets the client commit by itself, but only what is done."""
    consumer = Consumer({
        "bootstrap.servers": servers,
        "group.id": "fraud",
        "auto.offset.reset": "earliest",
        "enable.auto.commit": True,
        "auto.commit.interval.ms": 100,
        "enable.auto.offset.store": False,  # what is committed is what we store
    })
    consumer.subscribe(["clicks"])
    for click in consumer.consume(2, timeout=20):
        print("checking", click.offset(), "...")
        if click.offset() == 1:
            time.sleep(60)  # here the power goes
        print("checked", click.offset())
        consumer.store_offsets(click)


def auto_commit(stage: Stage) -> None:
    """Auto-commit commits what was handed over, not what is done."""
    servers, broker = stage.servers, stage.broker
    stage.fill("clicks", 4)
    stage.say(
        """
        If you say nothing, the client commits by itself, every 5 seconds. The question is: *what?* Billing takes click
        0 and works on it. The power goes as soon as the broker has a commit from it:
        """
    )
    stage.process(careless, until=lambda: stage.committed("billing", "clicks") == 1, lines=1)
    with stage.code():
        broker.advance(seconds=46)  # the group gives the dead worker up
        successor = Consumer({
            "bootstrap.servers": servers,
            "group.id": "billing",
            "enable.auto.commit": False,
        })
        successor.subscribe(["clicks"])
        for click in successor.consume(1, timeout=10):
            print("the successor begins with", click.offset())
        successor.close()
    stage.picture("clicks", "billing")
    stage.say(
        """
        Click 0 was never billed, and never will be. The client committed what it had *handed over*. The cure is one
        setting and one line: store an offset when its work is done.
        """
    )
    stage.pause()
    stage.process(careful, until=lambda: stage.committed("fraud", "clicks") == 1, lines=3)
    stage.picture("clicks", "fraud")
    stage.say(
        """
        Click 0 is done and committed; click 1 was in hand and comes again. What clients really promise by default:

        - librdkafka (confluent-kafka, and the clients of Go, .NET, PHP, Rust that use it) and aiokafka commit in the
          background what has been handed over, done or not. A crash can lose a record.
        - The Java client and kafka-python commit inside `poll`, and only what *earlier* polls returned. Nothing is lost
          if you are done with a batch before you poll again. If other threads do the work, it can be lost all the same.
        - Nobody promises exactly once: what was done since the last commit comes again.
        """
    )
    stage.keep("Auto-commit says what was handed over, not what is done; store offsets by hand, or commit by hand.")


def sync_and_async(stage: Stage) -> None:
    """Show that a synchronous commit is retried; for an asynchronous one it depends on the client."""
    servers, broker = stage.servers, stage.broker
    stage.fill("clicks", 6)
    stage.say(
        """
        By hand, there are two ways to commit. One waits for the broker's answer (`commitSync` in Java,
        `asynchronous=False` here). The other goes on at once and is told later (`commitAsync`, `asynchronous=True`).
        """
    )
    with stage.code():
        told: list[int] = []
        billing = Consumer({
            "bootstrap.servers": servers,
            "group.id": "billing",
            "enable.auto.commit": False,
            "on_commit": lambda error, offsets: told.append(offsets[0].offset),
            "retry.backoff.ms": 1000,  # before a refused commit is sent again
        })
        billing.assign([TopicPartition("clicks", 0, 0)])
        billing.consume(3, timeout=10)

        (committed,) = billing.commit(offsets=[TopicPartition("clicks", 0, 1)], asynchronous=False)
        print("waited, and 1 is done:", committed.offset)

        billing.commit(offsets=[TopicPartition("clicks", 0, 2)], asynchronous=True)
        print("went on at once; told so far:", told)
        while not told:
            billing.poll(0.05)  # callbacks come while you poll
        print("told later:", told)
    stage.say(
        """
        What if a commit fails? The tour's broker can be asked to refuse one, as brokers do while they move a group. We
        commit 2, which is refused, and right after it 3:
        """
    )
    with stage.code():
        told.clear()
        broker.fail_next("OffsetCommit", "COORDINATOR_LOAD_IN_PROGRESS")
        billing.commit(offsets=[TopicPartition("clicks", 0, 2)], asynchronous=True)
        billing.commit(offsets=[TopicPartition("clicks", 0, 3)], asynchronous=True)
        while len(told) < 2:
            billing.poll(0.05)
        print("done, in this order:", told)
    stage.picture("clicks", "billing")
    stage.say(
        """
        librdkafka tried the refused commit again, and the older one overtook the newer: the group stands at 2, though 3
        was done. A last commit that waits puts it right:
        """
    )
    with stage.code():
        billing.commit(offsets=[TopicPartition("clicks", 0, 3)], asynchronous=False)
        billing.close()
    stage.picture("clicks", "billing")
    stage.say(
        """
        - `commitSync` of the Java client and kafka-python tries again until it is done; their `commitAsync` does not,
          so that an old commit can never overtake a new one. aiokafka has only the one that waits.
        - So: commit without waiting while you run, and with waiting before you stop or give partitions away.
        """
    )
    stage.keep("Commits that do not wait are for speed; the last one before you stop must wait.")
