"""Samples that are kept: what comes back, how little is kept of the past, and what a file refuses."""

import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logmark.client.answers import Committed, GroupMember
from logmark.errors import UserError
from logmark.names import TopicPartition
from logmark.offsets.commit_metadata import CommitMetadata
from logmark.offsets.journal.changes import Change
from logmark.offsets.lag.annotations import Annotation, annotations_from_changes
from logmark.offsets.lag.history import TIERS, History, PartitionSample, Tier, default_history_path, open_history
from logmark.offsets.lag.sample import GroupSample, Sample
from tests.harness.searches import examples

T0 = 1_700_000_000_000
PARTITION = TopicPartition("orders", 0)
SECOND, MINUTE, HOUR, DAY = 1_000, 60_000, 3_600_000, 86_400_000


def sample(
    at_ms: int,
    committed: Mapping[str, Mapping[TopicPartition, int]],
    ends: Mapping[TopicPartition, int],
    *,
    starts: Mapping[TopicPartition, int] | None = None,
    members: int = 0,
    metadata: str = "",
    cluster_id: str = "c",
) -> Sample:
    """A sample as a cluster would give it."""
    member = GroupMember(member_id="m", instance_id=None, client_id="c", host="h")
    groups = {
        name: GroupSample(
            group=name,
            state="Stable" if members else "Empty",
            members=[member] * members,
            committed={one: Committed(offset=at, metadata=metadata) for one, at in offsets.items()},
        )
        for name, offsets in committed.items()
    }
    known = {**dict.fromkeys(ends, 0), **(starts or {})}
    return Sample(at_ms=at_ms, cluster_id=cluster_id, groups=groups, starts=known, ends=ends)


_PARTITIONS = st.builds(TopicPartition, st.sampled_from(["a", "b.c", "ü"]), st.integers(0, 40))
_OFFSETS = st.one_of(st.integers(0, 50), st.integers(0, 2**62))
_ENDS = st.dictionaries(_PARTITIONS, st.tuples(_OFFSETS, _OFFSETS), max_size=12)


@settings(max_examples=examples(40, soak=1000))
@given(st.lists(st.tuples(_ENDS, st.dictionaries(st.sampled_from(["g", "h"]), _ENDS, max_size=2)), max_size=4))
def test_what_was_sampled_comes_back(
    taken: list[tuple[dict[TopicPartition, tuple[int, int]], dict[str, dict]]],
) -> None:
    kept: dict[str, dict[TopicPartition, list[PartitionSample]]] = {}
    totals: dict[str, list[tuple[int, int]]] = {}
    with History(None) as history:
        for number, (bounds, groups) in enumerate(taken):
            at_ms = T0 + number
            starts = {partition: min(both) for partition, both in bounds.items()}
            ends = {partition: max(both) for partition, both in bounds.items()}
            committed = {name: {one: both[0] for one, both in known.items()} for name, known in groups.items()}
            history.add(sample(at_ms, committed, ends, starts=starts, members=number))
            for name, known in committed.items():
                moments = {
                    partition: PartitionSample(at_ms, offset, starts[partition], ends[partition], number)
                    for partition, offset in known.items()
                    if partition in ends
                }
                for partition, moment in moments.items():
                    kept.setdefault(name, {}).setdefault(partition, []).append(moment)
                if known or name in committed:
                    totals.setdefault(name, []).append((at_ms, sum(moment.lag for moment in moments.values())))

        windows = {name: series for name, series in history.windows(["g", "h", "nobody"]).items() if series}
        assert kept == windows
        assert totals == history.totals()
        assert {name: points[-1][0] for name, points in totals.items()} == history.groups()


def test_what_a_mark_says_is_kept_as_a_sign_of_life() -> None:
    with History(None) as history:
        for number in range(2):
            mark = CommitMetadata(query="q", generation=T0, offset=number).to_text()
            history.add(sample(T0 + number, {"g": {PARTITION: number}}, {PARTITION: 9}, metadata=mark))

        first, second = history.series("g")[PARTITION]

    assert first.sign and second.sign and first.sign != second.sign


SMALL = (Tier(10 * SECOND, 0), Tier(60 * SECOND, 5 * SECOND), Tier(600 * SECOND, 60 * SECOND))


def test_old_samples_are_thinned_out_and_the_oldest_go() -> None:
    with History(None, tiers=SMALL) as history:
        for second in range(0, 1_000):
            history.add(sample(T0 + second * SECOND, {"g": {PARTITION: second}}, {PARTITION: second}))
        history.thin(now := T0 + 999 * SECOND)
        ages = [(now - at_ms) // SECOND for at_ms in history.times()]
        series = history.series("g")[PARTITION]

    assert list(range(9, -1, -1)) == ages[-10:], "everything of the last ten seconds"
    middle = [age for age in ages if 10 <= age < 60]
    assert 10 == len(middle) and all(4 <= one - other <= 6 for one, other in pairwise(middle))
    assert 9 <= len([age for age in ages if 60 <= age < 600]) <= 10
    assert max(ages) < 600, "nothing is older than the last tier"
    assert [moment.committed for moment in series] == [moment.end for moment in series], "what stays is unchanged"


def test_thinning_keeps_one_sample_of_each_stretch_for_ever_and_not_another_one_each_time() -> None:
    with History(None, tiers=SMALL) as history:
        for second in range(0, 120):
            history.add(sample(T0 + second * SECOND, {}, {PARTITION: second}))
            history.thin(T0 + second * SECOND)
        often = history.times()
    with History(None, tiers=SMALL) as history:
        for second in range(0, 120):
            history.add(sample(T0 + second * SECOND, {}, {PARTITION: second}))
        history.thin(T0 + 119 * SECOND)
        assert history.times() == often


def test_the_number_of_samples_is_bounded_for_good() -> None:
    """At one sample each ten seconds the tiers hold 360 + 1,380 + 576 + 1,992 samples, and never more."""
    bound, before = 0, Tier(0, 0)
    for tier in TIERS:
        bound += (tier.age_ms - before.age_ms) // max(tier.every_ms, 10 * SECOND)
        before = tier
    assert 4_308 == bound


def test_a_file_keeps_below_its_size_and_gives_up_the_oldest_first(tmp_path: Path) -> None:
    partitions = [TopicPartition("t", number) for number in range(400)]
    bytes_max = 150_000
    with History(tmp_path / "h.sqlite", bytes_max=bytes_max) as history:
        for number in range(150):
            ends = {partition: (number * 7919 + partition.partition * 104_729) % 10**9 for partition in partitions}
            history.add(sample(T0 + number * MINUTE, {"g": {one: end // 2 for one, end in ends.items()}}, ends))
            history.thin(T0 + number * MINUTE)
            assert history.bytes_used <= bytes_max
        times = history.times()
    size = (tmp_path / "h.sqlite").stat().st_size

    assert T0 + 149 * MINUTE == times[-1], "the newest is always there"
    assert 10 < len(times) < 149 and times[0] > T0
    assert size <= bytes_max * 1.1, "what is free is given back to the file system"


def test_samples_of_a_clock_that_was_set_back_are_dropped() -> None:
    with History(None) as history:
        for at_ms in (T0, T0 + DAY, T0 + MINUTE):
            history.add(sample(at_ms, {"g": {PARTITION: 1}}, {PARTITION: 5}))

        assert [T0, T0 + MINUTE] == history.times()
        assert 2 == len(history.series("g")[PARTITION])


def test_few_points_are_spread_over_the_whole_time() -> None:
    with History(None) as history:
        for number in range(100):
            history.add(sample(T0 + number, {}, {PARTITION: 5}))

        assert [T0, T0 + 33, T0 + 66, T0 + 99] == history.times(points_max=4)
        assert [T0 + 98, T0 + 99] == history.times(since_ms=T0 + 98, points_max=4)


def test_who_reads_sees_what_is_written_meanwhile(tmp_path: Path) -> None:
    path = tmp_path / "h.sqlite"
    with History(path, cluster_id="c") as writer:
        writer.add(sample(T0, {"g": {PARTITION: 1}}, {PARTITION: 5}))
        with History(path, cluster_id="c", read_only=True) as reader:
            assert ["g"] == list(reader.totals())
            other = TopicPartition("new", 3)
            writer.add(sample(T0 + 1, {"g": {PARTITION: 1}, "young": {other: 2}}, {PARTITION: 5, other: 9}))

            assert {"g": [(T0, 4), (T0 + 1, 4)], "young": [(T0 + 1, 7)]} == reader.totals()
            assert [7] == [moment.lag for moment in reader.series("young")[other]]


def test_two_writers_share_a_file_and_its_names(tmp_path: Path) -> None:
    path = tmp_path / "h.sqlite"
    other = TopicPartition("clicks", 0)
    with History(path) as one, History(path) as two:
        one.add(sample(T0, {"a": {PARTITION: 1}}, {PARTITION: 5}))
        two.add(sample(T0 + 1, {"b": {other: 2}, "a": {PARTITION: 1}}, {other: 9, PARTITION: 5}))
        one.add(sample(T0 + 2, {"b": {other: 3}, "c": {PARTITION: 0}}, {other: 9, PARTITION: 5}))
        two.add(sample(T0 + 3, {"c": {PARTITION: 1}}, {PARTITION: 5}))

        for history in (one, two):
            assert {
                "a": [(T0, 4), (T0 + 1, 4)], "b": [(T0 + 1, 7), (T0 + 2, 6)], "c": [(T0 + 2, 5), (T0 + 3, 4)]
            } == history.totals()  # fmt: skip


def test_names_of_groups_that_no_sample_has_any_more_are_forgotten() -> None:
    with History(None, tiers=SMALL) as history:
        for day in range(3):
            history.add(sample(T0 + day * DAY, {f"g{day}": {PARTITION: 1}}, {PARTITION: 5}))
            history.thin(T0 + day * DAY)
        assert {"g2": T0 + 2 * DAY} == history.groups()
        (names,) = history._db.execute("SELECT COUNT(*) FROM names WHERE kind = 'group'").fetchone()
        assert 1 == names


def test_a_file_of_another_cluster_another_version_or_another_kind_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "h.sqlite"
    History(path, cluster_id="c1").close()
    with pytest.raises(UserError, match=r"is of cluster c1, and this is cluster c2\. Nothing was changed"):
        History(path, cluster_id="c2")
    with sqlite3.connect(path) as database:
        database.execute("PRAGMA user_version = 99")
    with pytest.raises(UserError, match="is of version 99; this Logmark reads and writes version 1"):
        History(path)
    other = tmp_path / "other.sqlite"
    with sqlite3.connect(other) as database:
        database.execute("CREATE TABLE mine (x)")
    with pytest.raises(UserError, match="is no history of lag"):
        History(other)
    text = tmp_path / "text.sqlite"
    text.write_text("no database at all, but a text that is long enough to be looked at" * 20)
    with pytest.raises(UserError, match="cannot be used: file is not a database"):
        History(text)
    assert "no database" in text.read_text()


def test_a_history_is_found_by_its_cluster_and_a_named_one_must_be_there(tmp_path: Path) -> None:
    assert open_history(None, "nowhere") is None
    with pytest.raises(UserError, match="There is no history"):
        open_history(tmp_path / "missing.sqlite", "c")
    assert default_history_path("a/b") != default_history_path("a/b", read_committed=True)
    assert "/" not in default_history_path("a/b").name
    History(default_history_path("c9"), cluster_id="c9").close()
    found = open_history(None, "c9")
    assert found is not None
    found.close()


def _change(state: str = "done", subject: str = "group", id: str = "c1") -> Change:
    return Change(
        id=id, at_ms=T0, cluster_id="c", subject=subject, name="billing", action="reset", how="to-earliest", who="ann",
        reason="bad deploy", before={PARTITION: Committed(offset=9), TopicPartition("orders", 1): Committed(offset=2)},
        after={PARTITION: Committed(offset=0), TopicPartition("orders", 1): None}, state=state,  # type: ignore[arg-type]
    )  # fmt: skip


def test_changes_of_the_journal_become_annotations_once() -> None:
    made = annotations_from_changes([_change(), _change("refused", id="c2"), _change(subject="checkpoint", id="c3")])
    expected = Annotation(
        id="c1", at_ms=T0, group="billing", text="reset to-earliest by ann: bad deploy",
        moves={PARTITION: 0, TopicPartition("orders", 1): None},
    )  # fmt: skip

    assert [expected] == made
    with History(None) as history:
        history.annotate(made)
        history.annotate(made)
        assert [expected] == history.annotations() == history.annotations(group="billing", since_ms=T0)
        assert [] == history.annotations(group="fraud") == history.annotations(since_ms=T0 + 1)


def test_small_texts_are_remembered_over_restarts(tmp_path: Path) -> None:
    with History(tmp_path / "h.sqlite") as history:
        history.set_value("alert", "firing")
        history.set_value("other", "x")
        history.set_value("other", None)
    with History(tmp_path / "h.sqlite") as history:
        assert ("firing", None) == (history.get_value("alert"), history.get_value("other"))


_WRITER = """
import sys
sys.path.insert(0, {root!r})
from pathlib import Path
from logmark.names import TopicPartition
from logmark.offsets.lag.history import History
from tests.offsets.lag.test_history import T0, sample
partitions = [TopicPartition("t", number) for number in range(200)]
with History(Path({path!r})) as history:
    for number in range(1_000_000):
        ends = dict.fromkeys(partitions, number + 10)
        history.add(sample(T0 + number, {{f"g{{one}}": dict.fromkeys(partitions, number) for one in range(5)}}, ends))
        print(number, flush=True)
"""


def test_a_writer_that_is_killed_leaves_whole_samples_only(tmp_path: Path) -> None:
    path = tmp_path / "h.sqlite"
    root = str(Path(__file__).resolve().parents[3])
    writer = subprocess.Popen([sys.executable, "-c", _WRITER.format(root=root, path=str(path))], stdout=subprocess.PIPE)
    try:
        assert writer.stdout is not None
        for _ in range(20):
            told = int(writer.stdout.readline())
        time.sleep(0.003)  # somewhere in the middle of a sample, and never at the same byte
        os.kill(writer.pid, signal.SIGKILL)
    finally:
        writer.kill()
        writer.wait()

    with History(path) as history:
        times, series = history.times(), history.windows([f"g{one}" for one in range(5)])
        assert T0 + told <= times[-1], "what was kept is there"
        for group in series.values():
            assert {len(times)} == {len(moments) for moments in group.values()}
        history.add(sample(times[-1] + 1, {"g0": {PARTITION: 1}}, {PARTITION: 2}))
