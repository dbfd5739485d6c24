"""Whose move was it? The table of cases that a query meets when it compares its position with its group's."""

import json
from dataclasses import replace
from itertools import product

import pytest

from logmark.errors import UserError
from logmark.names import TopicPartition
from logmark.offsets.commit_metadata import CommitMetadata, Heartbeat, QueryState
from logmark.spark.source.option_names import check_topic
from logmark.spark.source.position import (
    GroupCommit,
    GroupMoved,
    GroupTakenOver,
    GroupUnmoved,
    Position,
    compare_with_group,
    first_position,
)

P0, P1 = TopicPartition("clicks", 0), TopicPartition("clicks", 1)
START = Position(group="billing", query="me", generation=7, first={P0: 100}, next={P0: 200})


def found(offset: int, *, query: str | None = None, generation: int = 7, says: int | None = None) -> GroupCommit:
    """A commit of this offset: without metadata, or with the mark of a query that says it committed `says`."""
    mark = None
    if query is not None:
        mark = CommitMetadata(query=query, generation=generation, offset=offset if says is None else says)
    return GroupCommit(offset=offset, mark=mark)


KEEP, COMMIT, SEEK, STOP = "go on", "go on and commit", "seek there", "stop: taken over"

RESTARTED = [
    # what the group has                                     what a restarted query makes of it, and why
    (found(200, query="me"), KEEP),  # committed right before the stop
    (found(100, query="me"), COMMIT),  # died between the batch and the next trigger: rightly one batch behind
    (None, COMMIT),  # expired or deleted
    (found(50), SEEK),  # Apache's tool: no metadata
    (found(300), SEEK),  # forward is a move too
    (found(200), COMMIT),  # somebody's commit of where we stand: no move, but not marked as ours
    (found(100), SEEK),  # a foreign move to where the last batch began
    (found(50, query="me", says=200), SEEK),  # a tool that keeps the metadata
    (found(100, query="me", says=200), SEEK),  # the same, to where the last batch began
    (found(200, query="me", says=50), COMMIT),
    (found(50, query="me"), SEEK),  # restored: what this query committed batches ago
    (found(200, query="me", generation=6), COMMIT),
    (found(100, query="me", generation=6), SEEK),  # restored from before a seek
    (found(100, query="me", generation=8), SEEK),  # the checkpoint was restored from a copy, the group was not
    (found(100, query="older", generation=6), SEEK),  # an undo that restored another query's commit
    (found(200, query="older", generation=6), COMMIT),  # the query that we took over from, at our own offset
    (found(150, query="newer", generation=8), STOP),
    (found(200, query="newer", generation=8), STOP),  # also where it stands at the same offset
    (found(50, query="newer", generation=8, says=150), SEEK),  # a reset since: whoever follows it first has the group
    (found(150, query="twin", generation=7), SEEK),  # as old as we are, so no heir
]


@pytest.mark.parametrize(("group", "verdict"), RESTARTED)
def test_a_restarted_query_knows_whose_move_it_was(group: GroupCommit | None, verdict: str) -> None:
    assert verdict == name(compare_with_group(START, {P0: group} if group else {}, held=START.possible_commits()))


RUNNING = [
    (found(100, query="me"), {100}, COMMIT),  # what it remembers to have committed
    (found(100, query="me"), {150}, SEEK),  # restored: it has committed 150 since
    (found(150, query="me"), {150}, COMMIT),
    (found(150, query="me"), {100, 150}, COMMIT),  # a commit without an answer may have arrived
    (found(100, query="me"), {100, 150}, COMMIT),  # or not
    (found(200, query="me"), {200}, KEEP),
    (found(100), {100}, SEEK),  # a reset to where the group already was, before it followed: the metadata is gone
    (found(200, query="older", generation=6), {100}, COMMIT),  # a foreign commit of where the query stands
    (None, {100}, COMMIT),
]


@pytest.mark.parametrize(("group", "ours", "verdict"), RUNNING)
def test_a_running_query_knows_what_it_committed_last(group: GroupCommit | None, ours: set[int], verdict: str) -> None:
    held = {P0: {START.own_commit(offset) for offset in ours}}

    assert verdict == name(compare_with_group(START, {P0: group} if group else {}, held=held))


def name(verdict: GroupUnmoved | GroupMoved | GroupTakenOver) -> str:
    match verdict:
        case GroupUnmoved():
            return COMMIT if verdict.commit else KEEP
        case GroupMoved():
            return SEEK
        case GroupTakenOver():
            return STOP


def test_only_a_commit_with_all_three_of_token_generation_and_offset_is_ours() -> None:
    for query, generation, says in product(("me", "older"), (6, 7), (100, 200)):
        commit = found(100, query=query, generation=generation, says=says)
        is_ours = (query, generation, says) == ("me", 7, 100)

        assert is_ours == (
            GroupUnmoved(commit={P0: 200})
            == compare_with_group(START, {P0: commit}, held={P0: {START.own_commit(100)}})
        )


def test_a_reset_of_one_partition_leaves_the_others_where_they_are() -> None:
    start = Position(group="g", query="me", generation=7, first={P0: 0, P1: 0}, next={P0: 200, P1: 90})

    verdict = compare_with_group(start, {P0: found(50), P1: found(0, query="me")}, held=start.possible_commits())

    assert GroupMoved(to={P0: 50}, commit={P1: 90}) == verdict
    assert {P0: 50, P1: 90} == start.seek({P0: 50}, now_ms=5).next


def test_a_seek_reads_nothing_and_starts_a_new_generation() -> None:
    after = START.seek({P0: 50}, now_ms=5)

    assert (8, {}, "me") == (after.generation, after.ranges, after.query)
    assert 1000 == START.seek({P0: 50}, now_ms=1000).generation


def test_a_foreign_commit_is_taken_over_after_the_seek() -> None:
    after = START.seek({P0: 50}, now_ms=5)

    assert GroupUnmoved(commit={P0: 50}) == compare_with_group(after, {P0: found(50)}, held=after.possible_commits())


def test_after_a_failed_commit_a_restarted_query_still_knows_its_own_older_one() -> None:
    position = START.batch(first={P0: 200}, next={P0: 300}, held={P0: {START.own_commit(100)}})

    assert GroupUnmoved(commit={P0: 300}) == compare_with_group(
        position, {P0: found(100, query="me")}, held=position.possible_commits()
    )


@pytest.mark.parametrize(
    "left_there", [found(40), found(40, query="older", generation=6), found(40, query="me", generation=6), found(0)]
)
def test_what_could_not_be_committed_over_is_no_move_after_a_restart_either(left_there: GroupCommit) -> None:
    position = START.batch(first={P0: 200}, next={P0: 300}, held={P0: {left_there}})
    after = START.seek({P0: 250}, now_ms=5, held={P0: {left_there}})

    for one in (position, after):
        assert one == Position.from_json(json.loads(json.dumps(one.to_json())))
        assert GroupUnmoved(commit=one.next) == compare_with_group(one, {P0: left_there}, held=one.possible_commits())
        assert GroupMoved(to={P0: 41}, commit={}) == compare_with_group(
            one, {P0: found(41)}, held=one.possible_commits()
        )


def test_what_follows_from_the_position_is_not_written_twice() -> None:
    position = START.batch(first={P0: 200}, next={P0: 300}, held={P0: {START.own_commit(200)}})

    assert "held" not in position.to_json()["~logmark"]


def test_a_checkpoint_of_an_earlier_version_says_what_the_group_had_as_a_number() -> None:
    fields = json.loads(OF_THE_FIRST_FORM["a query that was moved"]) | {"c": {"clicks": {"0": 40}}}
    position = Position.from_json(fields)

    assert {P0: {position.own_commit(40)}} == position.held


# As they stood in checkpoints.
OF_THE_FIRST_FORM = {
    "a query that was moved": (
        '{"c": {"clicks": {"0": [[90], [95, 6], [97, "logmark query=older generation=3 offset=97"]]}}, '
        '"f": {"clicks": {"0": 100}}, "g": 7, "group": "billing", "i": {"clicks": "0f"}, "q": "me", '
        '"t": {"clicks": {"0": 200}}}'
    ),
    "a query of two topics": (
        '{"f": {"clicks": {"0": 1, "1": 2}, "group": {"0": 3}}, "g": 8, "group": "billing", "q": "me", '
        '"t": {"clicks": {"0": 1, "1": 9}, "group": {"0": 4}}}'
    ),
}


def test_a_checkpoint_of_the_first_form_is_read_and_continues_in_the_present_one() -> None:
    moved, plain = (Position.from_json(json.loads(text)) for text in OF_THE_FIRST_FORM.values())

    left = {found(90), found(95, query="me", generation=6), found(97, query="older", generation=3)}
    ids = {"clicks": "0f"}
    assert Position(
        group="billing", query="me", generation=7, first={P0: 100}, next={P0: 200}, held={P0: frozenset(left)}, ids=ids
    ) == moved
    other = TopicPartition("group", 0)
    first, following = {P0: 1, P1: 2, other: 3}, {P0: 1, P1: 9, other: 4}
    assert Position(group="billing", query="me", generation=8, first=first, next=following) == plain
    for one in (moved, plain):
        assert one == Position.from_json(json.loads(json.dumps(one.to_json())))


def test_people_read_topics_partitions_and_next_offsets_in_an_offset_as_in_one_of_sparks_own_connector() -> None:
    topics = ["0", "logmark", "group", "f", "-", "._", "zz"]
    offsets = {TopicPartition(topic, 0): 5 for topic in topics}
    offset = Position(group="g", query="q", generation=1, first=offsets, next=offsets).to_json()

    ours = offset.pop("~logmark")
    assert {topic: {"0": 5} for topic in topics} == offset
    assert {"first", "generation", "group", "query"} == set(ours)
    with pytest.raises(UserError, match="no topic can be called that"):
        check_topic("~logmark", "subscribe")


def test_a_partition_that_was_never_read_does_not_tell_of_a_newer_query() -> None:
    of_another_beginning = {P0: found(200, query="me"), P1: found(0, query="newer", generation=8)}

    assert GroupUnmoved(commit={}) == compare_with_group(START, of_another_beginning, held=START.possible_commits())


def test_a_new_query_is_above_every_generation_that_the_group_shows() -> None:
    marked = {P0: found(5, query="other", generation=5000), P1: found(5)}

    assert 5001 == first_position(group="g", query="me", now_ms=10, found=marked, starts={P0: 5, P1: 5}).generation
    assert 9000 == first_position(group="g", query="me", now_ms=9000, found=marked, starts={P0: 5, P1: 5}).generation


def test_the_json_is_the_same_text_whatever_the_order_of_the_partitions() -> None:
    partitions = [TopicPartition(topic, number) for topic in ("b", "a") for number in (11, 2, 0)]
    offsets = dict.fromkeys(partitions, 1)
    backwards = dict.fromkeys(reversed(partitions), 1)

    one, other = (
        json.dumps(Position(group="g", query="q", generation=1, first=order, next=order).to_json())
        for order in (offsets, backwards)
    )

    assert one == other == json.dumps(json.loads(one), sort_keys=True)


def test_the_json_of_an_idle_query_goes_back_to_spark_unchanged() -> None:
    text = json.dumps(START.to_json())

    assert text == json.dumps(Position.from_json(json.loads(text)).to_json())


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"clicks": {"0": 5}},
        {"group": "g", "q": "q", "g": 1, "f": 5, "t": 6},
        {"clicks": {"0": 5}, "~logmark": {}},
        {"clicks": 5, "~logmark": {"first": {}, "generation": 1, "group": "g", "query": "q"}},
    ],
)
def test_a_checkpoint_of_another_source_is_an_error(fields: dict[str, object]) -> None:
    with pytest.raises(UserError, match="checkpoint was not written by format"):
        Position.from_json(fields)


@pytest.mark.parametrize("metadata", [None, "", "by hand", "logmark", "logmark query=a generation=x offset=1", "{}"])
def test_metadata_of_others_is_no_mark(metadata: str | None) -> None:
    assert CommitMetadata.parse(metadata) is None


def test_a_mark_survives_the_metadata_of_a_commit() -> None:
    mark = CommitMetadata(query="host-1-ab", generation=7, offset=259_000_000_000)

    assert mark == CommitMetadata.parse(mark.to_text())
    assert "logmark query=host-1-ab generation=7 offset=259000000000" == mark.to_text()


def test_a_heartbeat_survives_the_metadata_of_a_commit_and_makes_it_no_other_one() -> None:
    mark = CommitMetadata(query="host-1-ab", generation=7, offset=259)
    beat = Heartbeat(at_ms=1_700_000_000_000, state=QueryState.STOPPED, process="host/1/2/ab", owner="home-1")
    parsed = CommitMetadata.parse(replace(mark, heartbeat=beat).to_text())

    assert mark == parsed, "who committed it, and what"
    assert parsed is not None and beat == parsed.heartbeat
    assert len(replace(mark, heartbeat=beat).to_text()) < 400, "Kafka allows 4096 bytes"


def test_words_that_a_later_version_adds_to_the_metadata_are_left_out() -> None:
    assert CommitMetadata(query="a", generation=1, offset=2) == CommitMetadata.parse(
        "logmark query=a generation=1 offset=2 heartbeat=5 state=dreaming colour=blue"
    )
