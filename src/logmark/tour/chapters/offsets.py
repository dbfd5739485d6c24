"""Chapters about a group's offsets: where it starts, its lag, how long they are kept, how they are reset."""

import time

from confluent_kafka import Consumer, Producer, TopicPartition

from logmark.names import TopicPartition as LogPartition
from logmark.tour.stage import MINUTE_MS, Stage


def start(stage: Stage) -> None:
    """Show that the reset policy counts only when nothing is committed; a seek moves one running consumer."""
    servers = stage.servers
    stage.fill("clicks", 8)
    stage.say(
        """
        Where does a group begin that has committed nothing? Where `auto.offset.reset` says: `earliest`, `latest`, or,
        for those who would rather be told, `none` (librdkafka calls it `error`). Eight clicks, three new groups:
        """
    )
    with stage.code():
        for policy in ["earliest", "latest", "error"]:
            consumer = Consumer({
                "bootstrap.servers": servers,
                "group.id": f"new-{policy}",
                "auto.offset.reset": policy,
                "enable.auto.commit": False,
                "enable.partition.eof": True,  # tell us where the end is
            })
            consumer.subscribe(["clicks"])
            for first in consumer.consume(1, timeout=10):
                error = first.error()
                print(f"{policy:8} ->", first.offset(), error.name() if error else "comes first")
            consumer.close()
    stage.say(
        """
        `latest` stands at the end, 8: of the clicks that are there it never sees one. That surprises people with a new
        group name and an empty report.

        The policy is *not* where a group starts; it is what happens when nothing is committed. Once something is
        committed, it is not asked:
        """
    )
    with stage.code():
        billing = Consumer({
            "bootstrap.servers": servers,
            "group.id": "billing",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        })
        billing.commit(offsets=[TopicPartition("clicks", 0, 6)], asynchronous=False)
        billing.subscribe(["clicks"])
        print("came:", [click.offset() for click in billing.consume(2, timeout=10)])
    stage.pause()
    stage.say("A running consumer may also go where it likes: to an offset, or to a time. The clicks came each minute.")
    with stage.code():
        billing.seek(TopicPartition("clicks", 0, 2))
        print("from offset 2:", [click.offset() for click in billing.consume(3, timeout=10)])

        moment_ms = 1_709_596_800_000 + 195_000  # 2024-03-05T00:03:15Z
        (found,) = billing.offsets_for_times([TopicPartition("clicks", 0, moment_ms)], timeout=10)
        billing.seek(found)
        print("from 00:03:15:", [click.offset() for click in billing.consume(1, timeout=10)])
    stage.picture("clicks", "billing", running={"consumer": billing})
    stage.say("A seek moves one position in one memory. The group's committed offset is where it was, and 6 it stays.")
    stage.keep("auto.offset.reset is for groups without a commit; seek is for consumers that run; neither is a reset.")
    billing.close()


def lag(stage: Stage) -> None:
    """Lag is the end of the log minus the committed offset."""
    servers = stage.servers
    stage.fill_lately("clicks", 1000, 500, every_ms=10 * MINUTE_MS)
    stage.say(
        """
        Fraud detection was down. It stands at 258 of 1000 clicks in one partition, and at 490 of 500 in the other. How
        far behind is that? The end of each log minus the committed offset, added up:
        """
    )
    with stage.code():
        fraud = Consumer({
            "bootstrap.servers": servers,
            "group.id": "fraud",
            "enable.auto.commit": False,
        })
        offsets = [TopicPartition("clicks", 0, 258), TopicPartition("clicks", 1, 490)]
        fraud.commit(offsets=offsets, asynchronous=False)
    stage.command("logmark lag fraud")
    stage.picture("clicks", "fraud")
    stage.say(
        """
        752 clicks, and the oldest of them has waited for five days: BEHIND is the age of the next click to read, with
        how it was found, here from that record's own time. Ten clicks can be a second or a week: look at both.

        Fraud is back, and reads 700 clicks of partition 0. What does that do to the lag?
        """
    )
    with stage.code():
        fraud.assign([TopicPartition("clicks", 0, 258)])
        print("read", len(fraud.consume(700, timeout=10)), "clicks")
    stage.picture("clicks", "fraud", running={"consumer": fraud})
    stage.say("Nothing, yet. Lag is counted from the committed offset, because that is all that the broker knows.")
    with stage.code():
        fraud.commit(asynchronous=False)
        fraud.close()
    stage.picture("clicks", "fraud")
    stage.keep("Lag = end of the log - committed offset, by partition; reading leaves it, committing shrinks it.")


def kept(stage: Stage) -> None:
    """Show that records expire whether they were read or not, and so do committed offsets."""
    servers, broker = stage.servers, stage.broker
    stage.say(
        """
        A log does not forget what was read; it forgets what is old. `retention.ms` says when, usually after seven days.
        Whole files go at once, here one for each day. Six clicks, the oldest ten days old; fraud has read one:
        """
    )
    stage.command("logmark topics create clicks --config retention.ms=604800000 --config segment.ms=86400000")
    with stage.code():
        now_ms, day_ms = time.time_ns() // 1_000_000, 86_400_000
        producer = Producer({"bootstrap.servers": servers})
        for days_old in [10, 9, 8, 2, 1, 0]:
            producer.produce("clicks", "/home", timestamp=now_ms - days_old * day_ms)
            producer.flush()
        fraud = Consumer({
            "bootstrap.servers": servers,
            "group.id": "fraud",
            "enable.auto.commit": False,
        })
        fraud.commit(offsets=[TopicPartition("clicks", 0, 1)], asynchronous=False)
        broker.apply_retention()  # instead of waiting for the broker's next look
        first, end = fraud.get_watermark_offsets(TopicPartition("clicks", 0), timeout=10)
        print("the log holds", list(range(first, end)))
    stage.picture("clicks", "fraud")
    stage.command("logmark lag fraud")
    stage.pause()
    stage.say(
        """
        Clicks 0 to 2 are gone, read or not. The others keep their numbers, so `earliest` is now 3, not 0. Fraud will
        go on at 3 (if its policy is `earliest`), and two clicks are *lost* to it. They are no lag, because nobody can
        read them any more.

        Committed offsets are forgotten too: seven days (`offsets.retention.minutes`) after a group's last sign of life.
        Fraud takes a holiday of eight days:
        """
    )
    with stage.code():
        broker.advance(seconds=8 * 86_400)
        broker.apply_retention()
        (committed,) = fraud.committed([TopicPartition("clicks", 0)], timeout=10)
        print("committed:", committed.offset if committed.offset >= 0 else "nothing")
    stage.picture("clicks", "fraud")
    stage.say(
        """
        The offset is gone, and by now so is every click. But the next click will be 6: offsets are never used again.
        And when fraud comes back, it begins where `auto.offset.reset` says, without a word. A job that runs once a week
        needs a longer `offsets.retention.minutes`, or a commit in between.
        """
    )
    stage.keep("Old records go, and so do the offsets of groups that were silent too long; numbers never come back.")
    fraud.close()


def replay(stage: Stage) -> None:
    """Show that a reset moves the committed offset, and that the records after it are read again."""
    servers = stage.servers
    stage.fill("clicks", 8)
    for group, committed in {"fraud": 6, "ml-features": 1}.items():
        stage.client.commit(group, {LogPartition("clicks", 0): committed})
    stage.say("Billing has read all eight clicks. Then somebody finds out that the prices were wrong from click 5 on.")
    with stage.code():
        billing = Consumer({
            "bootstrap.servers": servers,
            "group.id": "billing",
            "client.id": "billing-1",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        })
        billing.subscribe(["clicks"])
        print("read", [click.offset() for click in billing.consume(8, timeout=10)])
        billing.commit(asynchronous=False)
    stage.say(
        """
        The clicks are all still there; only the committed offset has to go back. While billing runs, its own next
        commit would overwrite it, so that is refused:
        """
    )
    stage.command("logmark offsets reset billing --topic clicks --to-offset 5 --yes", exit_code=1)
    stage.say("Stop it first. Then look before you leap; a dry run changes nothing:")
    with stage.code():
        billing.close()
    stage.command("logmark offsets reset billing --topic clicks --to-earliest --dry-run")
    stage.pause()
    stage.say("Eight clicks would be billed again. Too many: 5 is where it went wrong.")
    stage.command("logmark offsets reset billing --topic clicks --to-offset 5 --yes", varying=r"(?<=undo )\w+")
    stage.picture("clicks", "billing", "fraud", "ml-features")
    stage.say(
        """
        Fraud and the model start where they did: the log is shared, committed offsets are not. Every reset is journaled
        with what was there before: `logmark offsets history` lists them, and `logmark offsets undo` undoes one by its
        id (here dots, for it is never the same). Billing starts again, with the right prices:
        """
    )
    with stage.code():
        billing = Consumer({
            "bootstrap.servers": servers,
            "group.id": "billing",
            "enable.auto.commit": False,
        })
        billing.subscribe(["clicks"])
        print("billed again", [click.offset() for click in billing.consume(3, timeout=10)])
        billing.commit(asynchronous=False)
        billing.close()
    stage.command("logmark lag billing")
    stage.say("Nobody had to send the clicks again, and nobody else noticed.")
    stage.keep("A replay is a reset and a restart: the log is still there, so the past can be read again.")
