"""The check of a group's reads allows the second reads that Kafka allows, and fails on all others."""

import pytest

from tests.broker.group_reads import READ_AGAIN, REDELIVERED, CommitOutcome, GroupReads, Member

ORDERS = ("orders", 0)
ACKNOWLEDGED, REFUSED, UNKNOWN = CommitOutcome.ACKNOWLEDGED, CommitOutcome.REFUSED, CommitOutcome.UNKNOWN


class Scenario:
    """Two members of one group, and what the check said about them."""

    def __init__(self) -> None:
        self.now = 0.0
        self.failures: list[str] = []
        self.counts: list[str] = []
        self.reads = GroupReads(
            "fraud",
            session_timeout_s=45,
            fail=lambda _, what: self.failures.append(str(what).splitlines()[0]),
            count=self.counts.append,
            clock=lambda: self.now,
        )
        self.first, self.second = Member("first"), Member("second")

    def read(self, member: Member, *offsets: int) -> None:
        for offset in offsets:
            self.reads.read(member, ORDERS, offset)

    def commit(self, member: Member, outcome: CommitOutcome) -> None:
        self.reads.commit(member, dict(member.positions), lambda: outcome)

    def hand_over(self, last_commit: CommitOutcome) -> None:
        self.reads.give_up(self.first, [ORDERS], last_commit)
        self.reads.assign(self.second, [ORDERS])


@pytest.fixture
def scenario() -> Scenario:
    made = Scenario()
    made.reads.assign(made.first, [ORDERS])
    return made


def test_after_an_acknowledged_commit_the_next_owner_begins_there(scenario: Scenario) -> None:
    scenario.read(scenario.first, 0, 1, 2)
    scenario.commit(scenario.first, ACKNOWLEDGED)
    scenario.hand_over(ACKNOWLEDGED)
    scenario.read(scenario.second, 3, 4)

    assert ([], []) == (scenario.failures, scenario.counts)


@pytest.mark.parametrize("begin", [2, 4])
def test_the_next_owner_may_not_begin_before_or_after_the_acknowledged_commit(scenario: Scenario, begin: int) -> None:
    scenario.read(scenario.first, 0, 1, 2)
    scenario.commit(scenario.first, ACKNOWLEDGED)
    scenario.hand_over(ACKNOWLEDGED)
    scenario.read(scenario.second, begin)

    assert [f"second begins ('orders', 0) at {begin}, but committed is 3, perhaps []"] == scenario.failures


def test_the_records_of_a_refused_commit_are_read_again(scenario: Scenario) -> None:
    scenario.read(scenario.first, 0)
    scenario.commit(scenario.first, ACKNOWLEDGED)
    scenario.read(scenario.first, 1, 2)
    scenario.now = 46
    scenario.commit(scenario.first, REFUSED)
    scenario.hand_over(REFUSED)
    scenario.read(scenario.second, 1, 2, 3)

    assert ([], [READ_AGAIN] * 2) == (scenario.failures, scenario.counts)


def test_a_refused_commit_may_not_be_applied(scenario: Scenario) -> None:
    scenario.read(scenario.first, 0)
    scenario.commit(scenario.first, REFUSED)
    scenario.hand_over(REFUSED)
    scenario.read(scenario.second, 1)

    assert ["second begins ('orders', 0) at 1, but committed is 0, perhaps []"] == scenario.failures


@pytest.mark.parametrize(("begin", "again"), [(0, 1), (1, 0)])
def test_a_commit_without_an_answer_may_be_applied_or_not(scenario: Scenario, begin: int, again: int) -> None:
    scenario.read(scenario.first, 0)
    scenario.commit(scenario.first, UNKNOWN)
    scenario.hand_over(UNKNOWN)
    scenario.read(scenario.second, begin)

    assert ([], [READ_AGAIN] * again) == (scenario.failures, scenario.counts)


def test_after_an_acknowledged_commit_an_older_one_may_not_be_applied(scenario: Scenario) -> None:
    scenario.read(scenario.first, 0)
    scenario.commit(scenario.first, UNKNOWN)
    scenario.read(scenario.first, 1)
    scenario.commit(scenario.first, ACKNOWLEDGED)
    scenario.hand_over(ACKNOWLEDGED)
    scenario.read(scenario.second, 1)

    assert ["second begins ('orders', 0) at 1, but committed is 2, perhaps []"] == scenario.failures


@pytest.mark.parametrize("offset", [0, 1, 3])
def test_a_member_may_neither_repeat_nor_skip_a_record(scenario: Scenario, offset: int) -> None:
    scenario.read(scenario.first, 0, 1, offset)

    assert [f"first reads ('orders', 0) at {offset}, but its position is 2"] == scenario.failures


def test_a_client_may_deliver_the_last_record_once_more_after_a_rebalance(scenario: Scenario) -> None:
    scenario.read(scenario.first, 0, 1)
    scenario.reads.assign(scenario.first, [])
    scenario.read(scenario.first, 1, 2)

    assert ([], [REDELIVERED]) == (scenario.failures, scenario.counts)


@pytest.mark.parametrize("offsets", [(1, 1), (2, 2), (0,)])
def test_after_a_rebalance_a_client_may_deliver_no_other_record_again(
    scenario: Scenario, offsets: tuple[int, ...]
) -> None:
    scenario.read(scenario.first, 0, 1)
    scenario.reads.assign(scenario.first, [])
    scenario.read(scenario.first, *offsets)

    assert [f"first reads ('orders', 0) at {offsets[-1]}, but its position is"] == [
        each.rpartition(" ")[0] for each in scenario.failures
    ]


def test_a_member_may_not_read_a_partition_that_it_gave_up(scenario: Scenario) -> None:
    scenario.hand_over(ACKNOWLEDGED)
    scenario.read(scenario.first, 0)

    assert ["first reads ('orders', 0) at 0, but it does not own the partition"] == scenario.failures


def test_a_member_that_does_not_know_of_its_loss_reads_on_but_its_commit_must_be_refused(scenario: Scenario) -> None:
    scenario.read(scenario.first, 0)
    scenario.reads.assign(scenario.second, [ORDERS])
    scenario.read(scenario.second, 0)
    scenario.read(scenario.first, 1)
    assert [] == scenario.failures

    scenario.commit(scenario.first, ACKNOWLEDGED)

    assert ["the broker took a commit of ('orders', 0) from first, which had lost it"] == scenario.failures


def test_a_member_may_not_lose_its_partitions_within_its_session_timeout(scenario: Scenario) -> None:
    scenario.read(scenario.first, 0)
    scenario.commit(scenario.first, ACKNOWLEDGED)
    scenario.now = 44
    scenario.hand_over(REFUSED)

    assert ["first lost its partitions 44.0 s after a commit that the broker took"] == scenario.failures


def test_nothing_to_commit_proves_no_contact_with_the_broker(scenario: Scenario) -> None:
    scenario.reads.commit(scenario.first, {}, lambda: ACKNOWLEDGED)
    scenario.hand_over(REFUSED)

    assert [] == scenario.failures
