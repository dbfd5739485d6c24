"""The journal: what was begun is never forgotten, wherever it is kept and whoever died while writing it."""

import json
import multiprocessing
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logmark.client.answers import Committed
from logmark.client.client import Client
from logmark.errors import UserError
from logmark.names import TopicPartition
from logmark.offsets.journal import changes, topic_journal
from logmark.offsets.journal.changes import Change, current_author, new_change_id
from logmark.offsets.journal.file_journal import FileJournal
from logmark.offsets.journal.journal import find_change, open_journal, save_journal_topic_name
from logmark.offsets.journal.topic_journal import TopicJournal
from tests.harness.brokers import BrokerUnderTest

NOW_MS = 1_790_000_000_000


def change(id: str = "a", *, at_ms: int = NOW_MS, name: str = "fraud", cluster_id: str = "c") -> Change:
    return Change(
        id=id,
        at_ms=at_ms,
        cluster_id=cluster_id,
        name=name,
        action="reset",
        how="to the log start",
        who="ann",
        host="desk",
        reason="a fix",
        before={
            TopicPartition("clicks", 0): Committed(offset=7, leader_epoch=3, metadata="é"),
            TopicPartition("clicks", 1): None,
        },
        after={TopicPartition("clicks", 0): Committed(offset=0), TopicPartition("clicks", 1): Committed(offset=2)},
    )


offsets = st.none() | st.builds(
    Committed, offset=st.integers(0, 2**62), leader_epoch=st.integers(-1, 9), metadata=st.text(max_size=9)
)
moves = st.dictionaries(
    st.builds(TopicPartition, st.text(min_size=1, max_size=5), st.integers(0, 99)),
    st.tuples(offsets, offsets),
    max_size=4,
)


@given(moves, st.sampled_from(changes.STATES))
def test_a_change_is_read_as_it_was_written(moved: dict, state: changes.ChangeState) -> None:
    one = replace(
        change(), before={k: v[0] for k, v in moved.items()}, after={k: v[1] for k, v in moved.items()}, state=state
    )
    assert one == Change.from_json(json.loads(json.dumps(one.to_json())))


def test_ids_sort_by_time_and_differ_within_a_millisecond() -> None:
    times = [NOW_MS - 86_400_000, NOW_MS, NOW_MS + 1, NOW_MS + 86_400_000 * 3650]
    ids = [new_change_id(at) for at in times]
    assert ids == sorted(ids)
    assert 11 == len(new_change_id(NOW_MS))
    assert len({new_change_id(NOW_MS) for _ in range(50)}) > 45


def test_behind_sudo_it_is_said_who_became_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUDO_USER", "ann")
    monkeypatch.setattr("getpass.getuser", lambda: "root")
    assert "root (sudo by ann)" == current_author().user


class TestInAFile:
    def test_what_was_begun_and_finished_is_there_for_the_next_process(self, tmp_path: Path) -> None:
        path = tmp_path / "state" / "journal.jsonl"
        FileJournal(path).add(change("a"))
        FileJournal(path).add(change("b", at_ms=NOW_MS + 5, name="other", cluster_id="d"))
        FileJournal(path).set_state("a", "done")

        journal = FileJournal(path)
        assert [replace(change("a"), state="done")] == journal.changes("c")
        assert ["a", "b"] == [one.id for one in journal.changes()]
        assert ["b"] == [one.id for one in journal.changes(name="other")]
        assert ["b"] == [one.id for one in journal.changes(since_ms=NOW_MS + 1)]
        assert 0o600 == path.stat().st_mode & 0o777

    def test_there_is_nothing_before_the_first_change(self, tmp_path: Path) -> None:
        assert [] == FileJournal(tmp_path / "journal.jsonl").changes()

    @pytest.mark.parametrize("kept", [0, 1, 50, -1])
    def test_a_torn_last_line_is_ignored_and_cut_away_by_the_next_writer(self, tmp_path: Path, kept: int) -> None:
        journal = FileJournal(tmp_path / "journal.jsonl")
        journal.add(change("a"))
        whole = journal.path.read_bytes()
        line = json.dumps(change("b").to_json()).encode() + b"\n"
        journal.path.write_bytes(whole + line[:kept])

        assert ["a"] == [one.id for one in journal.changes()]
        journal.add(change("c"))
        assert ["a", "c"] == [one.id for one in journal.changes()]
        assert journal.path.read_bytes().startswith(whole + b'{"version":1,"id":"c"')

    def test_a_torn_line_longer_than_any_buffer_is_cut_away(self, tmp_path: Path) -> None:
        journal = FileJournal(tmp_path / "journal.jsonl")
        journal.add(change("a"))
        with journal.path.open("ab") as file:
            file.write(b"x" * 200_000)
        journal.set_state("a", "done")
        assert ["done"] == [one.state for one in journal.changes()]

    def test_a_damaged_line_in_the_middle_is_named(self, tmp_path: Path) -> None:
        journal = FileJournal(tmp_path / "journal.jsonl")
        journal.add(change("a"))
        journal.path.write_bytes(b"what?\n" + journal.path.read_bytes())
        with pytest.raises(UserError, match=r"Line 1 of the journal .* is damaged .*Nothing was changed"):
            journal.changes()

    def test_what_a_newer_logmark_wrote_is_refused(self, tmp_path: Path) -> None:
        journal = FileJournal(tmp_path / "journal.jsonl")
        journal.path.write_text(json.dumps({**change().to_json(), "version": 2}) + "\n")
        with pytest.raises(UserError, match=r"newer Logmark .*upgrade Logmark"):
            journal.changes()

    def test_a_journal_that_cannot_be_written_is_an_error(self, tmp_path: Path) -> None:
        (tmp_path / "state").write_text("no folder")
        with pytest.raises(UserError, match=r"cannot be written: .*What is not journaled is not done"):
            FileJournal(tmp_path / "state" / "journal.jsonl").add(change())

    def test_several_processes_write_one_file(self, tmp_path: Path) -> None:
        path = tmp_path / "journal.jsonl"
        writers = [multiprocessing.get_context("fork").Process(target=_write_many, args=(path, k)) for k in range(3)]
        for one in writers:
            one.start()
        for one in writers:
            one.join(60)
        assert {f"{k}-{n}" for k in range(3) for n in range(20)} == {one.id for one in FileJournal(path).changes()}


def _write_many(path: Path, writer: int) -> None:
    journal = FileJournal(path)
    for number in range(20):
        journal.add(change(f"{writer}-{number}"))


class TestInATopic:
    @pytest.fixture
    def client(self, broker: BrokerUnderTest) -> Iterator[Client]:
        with Client(broker.bootstrap_servers) as client:
            yield client

    @pytest.fixture
    def topic(self, broker: BrokerUnderTest, client: Client) -> Iterator[str]:
        name = broker.unique("__journal")
        plan = topic_journal.plan_journal_topic(client, name)
        assert (1, 1) == (plan.partitions, plan.replication_factor)
        topic_journal.create_journal_topic(client, plan)
        topic_journal.create_journal_topic(client, plan)
        yield name
        client.delete_topics([name])

    def test_what_one_wrote_everybody_sees(self, broker: BrokerUnderTest, client: Client, topic: str) -> None:
        cluster_id = client.metadata([]).cluster_id
        journal = TopicJournal(client, topic)
        journal.add(change("a", cluster_id=cluster_id))
        journal.add(change("b", cluster_id=cluster_id, name="other"))
        journal.set_state("a", "done")
        with Client(broker.bootstrap_servers) as another:
            seen = TopicJournal(another, topic)
            assert [replace(change("a", cluster_id=cluster_id), state="done")] == seen.changes(name="fraud")
            assert ["a", "b"] == [one.id for one in seen.changes(cluster_id)]
            assert [] == seen.changes("another cluster")

    def test_changes_of_the_file_count_and_are_moved_over(self, client: Client, topic: str, tmp_path: Path) -> None:
        cluster_id = client.metadata([]).cluster_id
        file = FileJournal(tmp_path / "journal.jsonl")
        for one in (change("a", cluster_id=cluster_id), change("b", cluster_id=cluster_id), change("c")):
            file.add(one)
        journal = TopicJournal(client, topic, also=file)
        journal.set_state("a", "taken back")
        assert [("a", "taken back"), ("b", "pending")] == [(one.id, one.state) for one in journal.changes()]
        assert ["b"] == [one.id for one in journal.import_file()]
        assert ["a", "b"] == [one.id for one in TopicJournal(client, topic).changes()]

    def test_a_change_of_many_partitions_is_one_record(self, client: Client, topic: str) -> None:
        offsets = {
            TopicPartition("a-topic-with-a-long-name", n): Committed(offset=n, metadata="m" * 60) for n in range(10_000)
        }
        large = replace(change("a", cluster_id=client.metadata([]).cluster_id), before=offsets, after=offsets)
        journal = TopicJournal(client, topic)
        journal.add(large)
        assert [large] == journal.changes()

    def test_the_cluster_says_which_journal_is_in_force(
        self, client: Client, topic: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
        monkeypatch.setenv("LOGMARK_JOURNAL_TOPIC", "no-such-topic")
        assert isinstance(open_journal(client), FileJournal)
        monkeypatch.setenv("LOGMARK_JOURNAL_TOPIC", topic)
        assert isinstance(open_journal(client), TopicJournal)
        monkeypatch.delenv("LOGMARK_JOURNAL_TOPIC")
        assert isinstance(open_journal(client), FileJournal)
        save_journal_topic_name(client.metadata([]).cluster_id, topic)
        assert topic in open_journal(client).location

    def test_a_record_that_is_no_change_is_named(self, broker: BrokerUnderTest, client: Client, topic: str) -> None:
        producer = broker.producer()
        producer.produce(topic, "nonsense", key="k")
        producer.flush(60)
        with pytest.raises(UserError, match="is no change that was journaled"):
            TopicJournal(client, topic).changes()


def test_a_change_is_found_by_the_beginning_of_its_id() -> None:
    known = [change("abc1"), change("abd2")]
    assert "abd2" == find_change(known, " ABD").id
    with pytest.raises(UserError, match="2 changes have ids that begin with ab"):
        find_change(known, "ab")
    for missing in ("x", ""):
        with pytest.raises(UserError, match=r"The journal has no change .*list_changes shows them"):
            find_change(known, missing)
