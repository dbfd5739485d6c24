"""Offsets as files, and back."""

import json
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logmark.client.answers import Committed
from logmark.client.client import Client
from logmark.errors import UserError
from logmark.names import TopicPartition
from logmark.offsets.reset.offset_files import OffsetExport, export_offsets, parse_offsets
from tests.harness.brokers import BrokerUnderTest

names = st.text("abcXYZ019._-", min_size=1, max_size=9)
exports = st.dictionaries(
    st.builds(TopicPartition, names, st.integers(0, 999)),
    st.builds(Committed, offset=st.integers(0, 10**17), leader_epoch=st.integers(-1, 9), metadata=st.text(max_size=9)),
    min_size=1,
    max_size=5,
)


@given(exports)
def test_json_brings_back_everything_and_csv_the_offsets(offsets: dict[TopicPartition, Committed]) -> None:
    made = OffsetExport(group="g", cluster_id="c", offsets=offsets)

    exact = parse_offsets(made.to_json(), "g", "a file")
    assert (offsets, True) == (exact.offsets, exact.is_exact)
    assert not parse_offsets(made.to_json(), "another group", "a file").is_exact
    plain = parse_offsets(made.to_csv(), "g", "a file")
    assert ({one: Committed(offset=stored.offset) for one, stored in offsets.items()}, False) == (
        plain.offsets, plain.is_exact,
    )  # fmt: skip


def test_a_file_of_several_groups_has_four_columns() -> None:
    text = '"fraud","clicks",0,5\r\nbilling,clicks,0,7\n\nfraud,clicks,1,6\n\n'
    found = parse_offsets(text, "fraud", "a file").offsets
    assert {TopicPartition("clicks", 0): Committed(offset=5), TopicPartition("clicks", 1): Committed(offset=6)} == found


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "f.csv has no offsets of group g. Nothing was changed."),
        ("other,clicks,0,5\n", "f.csv has no offsets of group g; it has those of other. Nothing"),
        ("clicks,0\n", "f.csv cannot be read: line 1 is no offset of a partition (write topic,partition,offset or"),
        ("clicks,0,1\nclicks,0\n", "line 2 is no offset"),
        ("clicks,0,1\ng,clicks,1,2\n", "line 2 is no offset"),
        ("topic,partition,offset\n", "line 1 is no offset of a partition (partition and offset are numbers from 0 on)"),
        ("clicks,0,-1\n", "numbers from 0 on"),
        ("clicks,0,9999999999999999999\n", "numbers from 0 on"),
        ("clicks,0,1\nclicks,0,2\n", "has two offsets for clicks-0. Nothing was changed."),
        ("{", "f.csv cannot be read: it is no offset of a partition (JSONDecodeError"),
        ("{}", "KeyError"),
        ('{"version": 2, "offsets": []}', "is of version 2, and this Logmark knows 1. Nothing was changed."),
        ('{"version": 1, "offsets": []}', "f.csv has no offsets. Nothing was changed."),
        ('{"version": 1, "offsets": [5]}', "TypeError"),
        (
            '{"version": 1, "offsets": [{"topic": "t", "partition": 0, "offset": true}]}',
            "it needs topic, partition and",
        ),
        ('{"version": 1, "offsets": [{"topic": "t", "partition": 0, "offset": -1}]}', "it needs topic, partition and"),
        ('{"version": 1, "offsets": [{"topic": "t", "partition": 0}]}', "KeyError: 'offset'"),
    ],
)
def test_a_file_that_is_no_file_of_offsets_is_an_error(text: str, message: str) -> None:
    with pytest.raises(UserError) as refused:
        parse_offsets(text, "g", "f.csv")
    assert message in str(refused.value)
    assert str(refused.value).endswith("Nothing was changed.")


@pytest.fixture
def client(broker: BrokerUnderTest) -> Iterator[Client]:
    with Client(broker.bootstrap_servers) as client:
        yield client


def test_what_is_exported_is_what_the_group_has_committed(broker: BrokerUnderTest, client: Client) -> None:
    clicks, views, group = broker.create_topic("clicks"), broker.create_topic("views"), broker.group("fraud")
    here = Committed(offset=7, leader_epoch=0, metadata="m")
    client.commit(group, {TopicPartition(clicks, 0): here, TopicPartition(views, 0): 3})

    everything = export_offsets(client, group)
    assert f"{clicks},0,7\n{views},0,3\n" == everything.to_csv()
    assert {TopicPartition(clicks, 0): here} == export_offsets(client, group, {clicks: None}).offsets
    fields = json.loads(everything.to_json())
    assert (group, client.metadata([]).cluster_id) == (fields["group"], fields["cluster_id"])


def test_there_is_nothing_to_export_of_nobody(broker: BrokerUnderTest, client: Client) -> None:
    topic, group = broker.create_topic("clicks"), broker.group("fraud")
    client.commit(group, {TopicPartition(topic, 0): 1})
    other = broker.create_topic("views")

    with pytest.raises(UserError, match=rf"does not exist\. Did you mean {group}\? Nothing was written"):
        export_offsets(client, broker.group("fruad"))
    with pytest.raises(UserError, match=r"has committed nothing there. Nothing was written"):
        export_offsets(client, group, {other: None})
