"""The runtime of the groups of one partition of `__consumer_offsets`, and what changes many groups at once."""

import uuid
from collections.abc import Callable, Iterator, Sequence, Set

from logmark.broker.event_loop_turns import STEPS_IN_A_TURN, Steps
from logmark.clock import Clock
from logmark.coordination.facts import Fact, GroupOutcome
from logmark.coordination.group_coordinator import GroupCoordinator
from logmark.coordination.internal_log import InternalLog
from logmark.coordination.runtime import CoordinatorRuntime, Timers
from logmark.coordination.settings import GroupSettings
from logmark.names import OFFSETS_TOPIC, TopicPartition

# How many committed offsets are looked at, and deleted, in one turn.
OFFSETS_AT_ONCE, DELETED_AT_ONCE = 5000, 1000


class GroupRuntime(CoordinatorRuntime[GroupCoordinator, Fact]):
    """The groups of one internal partition at work."""

    def __init__(
        self,
        index: int,
        internal_log: InternalLog,
        *,
        settings: GroupSettings,
        clock: Clock,
        timers: Timers,
        has_topic: Callable[[str], bool],
        new_id: Callable[[], str] = lambda: str(uuid.uuid4()),
        has_room: Callable[[int], bool] = lambda size: True,
        hold_memory: Callable[[int], None] = lambda size: None,
    ) -> None:
        """Take what the groups need; `has_room` and `hold_memory` ask for memory, and tell how much more they take."""
        super().__init__(
            TopicPartition(OFFSETS_TOPIC, index),
            internal_log,
            new_coordinator=lambda: GroupCoordinator(settings, new_id=new_id, has_room=has_room),
            begin=self._decide_after_load,
            clock=clock,
            timers=timers,
            hold_memory=hold_memory,
        )
        self._has_topic = has_topic
        self._topics_gone: set[str] = set()  # deleted while this partition was loaded

    def _decide_after_load(self, coordinator: GroupCoordinator) -> Iterator[Callable[[int], GroupOutcome]]:
        gone, self._topics_gone = self._topics_gone, set()
        # A stop may have come between the deletion of a topic and the deletion of its offsets.
        yield lambda now_ms: coordinator.forget_topics(lambda name: name in gone or not self._has_topic(name))
        yield lambda now_ms: coordinator.resume(now_ms=now_ms)

    def forget_topics(self, topics: Set[str]) -> Steps[None]:
        """Delete the offsets of groups in topics that were deleted, some at a time."""
        coordinator = self.coordinator
        if coordinator is not None and coordinator.has_offsets:
            yield from self._change_portions(
                coordinator,
                lambda groups, now_ms: coordinator.forget_topics(
                    topics.__contains__, groups, facts_max=DELETED_AT_ONCE
                ),
            )
        if self.coordinator is None:
            # The load deletes them.
            self._topics_gone |= topics

    def expire_offsets(self) -> Steps[None]:
        """Delete the offsets that were kept for longer than the retention, some at a time."""
        coordinator = self.coordinator
        if coordinator is not None:
            yield from self._change_portions(
                coordinator,
                lambda groups, now_ms: coordinator.expire_offsets(
                    now_ms=now_ms, groups=groups, facts_max=DELETED_AT_ONCE
                ),
            )

    def _change_portions(
        self, coordinator: GroupCoordinator, decide: Callable[[Sequence[str], int], GroupOutcome]
    ) -> Steps[None]:
        """Change the offsets of all groups, as long as this coordinator is the one that runs."""
        for groups in coordinator.portions(OFFSETS_AT_ONCE):
            count = DELETED_AT_ONCE

            def decide_and_count(now_ms: int, groups: Sequence[str] = groups) -> GroupOutcome:
                nonlocal count
                outcome = decide(groups, now_ms)
                count = len(outcome.facts)
                return outcome

            while count >= DELETED_AT_ONCE:
                if self.coordinator is not coordinator or self.has_failed:
                    return
                self.run(decide_and_count)
                yield STEPS_IN_A_TURN
