"""The journal entry of a change that the tool makes: written before it, without a word, and never in its way."""

import time
from collections.abc import Mapping
from typing import Self

from logmark.client.answers import Committed
from logmark.client.client import Client
from logmark.errors import LogmarkError
from logmark.names import TopicPartition
from logmark.offsets.journal.changes import Change, ChangeState, current_author, new_change_id
from logmark.offsets.journal.journal import Journal, open_journal
from logmark.offsets.kafka_consumer_groups.printer import Printer
from logmark.offsets.reset.executor import TOPIC_ID
from logmark.offsets.reset.planner import fetch_topic_ids

Offsets = Mapping[TopicPartition, Committed | None]


class JournalEntry:
    """One change in the journal, or one that could not be written there."""

    def __init__(self, printer: Printer, journal: Journal | None, id: str) -> None:
        self._printer = printer
        self._journal = journal
        self._id = id

    @classmethod
    def open(
        cls, client: Client, printer: Printer, *, group: str, action: str, how: str, before: Offsets, after: Offsets
    ) -> Self:
        """Journal the pending change, if there is one; a failure is one line on standard error."""
        changed = [one for one in after if before.get(one) != after[one]]
        if not changed:
            return cls(printer, None, "")
        now_ms = time.time_ns() // 1_000_000
        who = current_author()
        id = new_change_id(now_ms)
        try:
            journal = open_journal(client)
            journal.add(
                Change(
                    id=id,
                    at_ms=now_ms,
                    cluster_id=client.metadata([]).cluster_id,
                    name=group,
                    action=action,
                    how=f"kafka-consumer-groups {how}",
                    who=who.user,
                    host=who.host,
                    before={one: before.get(one) for one in changed},
                    after={one: after[one] for one in changed},
                    details={f"{TOPIC_ID}{topic}": id for topic, id in fetch_topic_ids(client, changed).items()},
                )
            )
        except (LogmarkError, OSError) as error:
            printer.say(f"logmark: this change is not in the journal: {error}")
            return cls(printer, None, id)
        return cls(printer, journal, id)

    def close(self, state: ChangeState) -> None:
        """Journal the final state of the change."""
        if self._journal is None or state == "pending":
            return
        try:
            self._journal.set_state(self._id, state)
        except (LogmarkError, OSError) as error:
            self._printer.say(f"logmark: that this change is {state} is not in the journal: {error}")
