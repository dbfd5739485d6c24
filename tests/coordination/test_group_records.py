"""Facts are kept as Kafka's own records."""

import contextlib
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logmark.coordination import group_records
from logmark.coordination.facts import GroupForgotten, GroupRecorded, MemberRecorded, OffsetCommitted, OffsetForgotten
from logmark.errors import Malformed

OFFSET_KEY = b"\x00\x01\x00\x0eanalytics-team\x00\x06orders\x00\x00\x00\x02"
GROUP_KEY = bytes.fromhex("0002 000d") + b"email-service"

COMMITTED = OffsetCommitted(
    group="analytics-team",
    topic="orders",
    partition=2,
    offset=142,
    leader_epoch=7,
    metadata="note",
    committed_at_ms=1_700_000_000_000,
)
COMMITTED_V3 = bytes.fromhex("0003 000000000000008e 00000007 0004") + b"note" + bytes.fromhex("0000018bcfe56800")

RECORDED = GroupRecorded(
    group="email-service",
    generation=7,
    protocol_type="consumer",
    protocol="range",
    leader="m-1",
    state_changed_at_ms=1_700_000_000_000,
    members=(
        MemberRecorded(
            id="m-1",
            instance_id=None,
            client_id="app",
            client_host="/127.0.0.1",
            rebalance_timeout_ms=300_000,
            session_timeout_ms=45_000,
            subscription=b"sub",
            assignment=b"own",
        ),
    ),
)
RECORDED_V3 = (
    b"\x00\x03\x00\x08consumer\x00\x00\x00\x07\x00\x05range\x00\x03m-1"
    + bytes.fromhex("0000018bcfe56800 00000001 0003") + b"m-1" + bytes.fromhex("ffff 0003") + b"app"
    + bytes.fromhex("000a") + b"/127.0.0.1" + bytes.fromhex("000493e0 0000afc8 00000003") + b"sub"
    + bytes.fromhex("00000003") + b"own"
)
EMPTY = GroupRecorded(
    group="email-service", generation=0, protocol_type=None, protocol=None, leader=None, state_changed_at_ms=5
)
EMPTY_V3 = bytes.fromhex("0003 0000 00000000 ffff ffff 0000000000000005 00000000")


@pytest.mark.parametrize(
    ("fact", "key", "value"),
    [
        (COMMITTED, OFFSET_KEY, COMMITTED_V3),
        (OffsetForgotten(group="analytics-team", topic="orders", partition=2), OFFSET_KEY, None),
        (RECORDED, GROUP_KEY, RECORDED_V3),
        (EMPTY, GROUP_KEY, EMPTY_V3),
        (GroupForgotten(group="email-service"), GROUP_KEY, None),
    ],
)
def test_a_fact_is_kafkas_record_and_back(fact, key: bytes, value: bytes | None) -> None:
    assert (key, value) == group_records.encode(fact)
    assert fact == group_records.decode(key, value)


def test_a_commit_with_its_own_retention_is_value_version_1() -> None:
    fact = OffsetCommitted(
        group="analytics-team", topic="orders", partition=2, offset=142, metadata="note",
        committed_at_ms=1, expires_at_ms=9,
    )
    value = bytes.fromhex("0001 000000000000008e 0004") + b"note" + bytes.fromhex("0000000000000001 0000000000000009")

    assert (OFFSET_KEY, value) == group_records.encode(fact)
    assert fact == group_records.decode(OFFSET_KEY, value)


@pytest.mark.parametrize(
    ("value", "leader_epoch"),
    [
        (bytes.fromhex("0000 000000000000008e 0004") + b"note" + bytes.fromhex("0000018bcfe56800"), -1),
        (bytes.fromhex("0001 000000000000008e 0004") + b"note" + bytes.fromhex("0000018bcfe56800") + b"\xff" * 8, -1),
        (bytes.fromhex("0002 000000000000008e 0004") + b"note" + bytes.fromhex("0000018bcfe56800"), -1),
        (COMMITTED_V3, 7),
        (
            bytes.fromhex("0004 000000000000008e 00000000 05") + b"note" + bytes.fromhex("0000018bcfe56800 01 00 10")
            + bytes(16),
            0,
        ),
    ],
)
def test_every_version_of_an_offset_is_read(value: bytes, leader_epoch: int) -> None:
    fact = group_records.decode(OFFSET_KEY, value)

    assert isinstance(fact, OffsetCommitted)
    assert (142, leader_epoch, "note", 1_700_000_000_000) == (
        fact.offset, fact.leader_epoch, fact.metadata, fact.committed_at_ms
    )


MEMBER_V0 = b"\x00\x03m-1\x00\x03app\x00\x0a/127.0.0.1" + bytes.fromhex("0000afc8 00000003") + b"sub\x00\x00\x00\x03own"
MEMBER_V1 = (
    b"\x00\x03m-1\x00\x03app\x00\x0a/127.0.0.1" + bytes.fromhex("000493e0 0000afc8 00000003")
    + b"sub\x00\x00\x00\x03own"
)
MEMBER_V4 = b"\x04m-1\x00\x04app\x0b/127.0.0.1" + bytes.fromhex("000493e0 0000afc8") + b"\x04sub\x04own\x00"
AT = bytes.fromhex("0000018bcfe56800")
HEAD = b"\x00\x08consumer\x00\x00\x00\x07\x00\x05range\x00\x03m-1"


@pytest.mark.parametrize(
    ("value", "rebalance_timeout_ms", "state_changed_at_ms"),
    [
        (b"\x00\x00" + HEAD + b"\x00\x00\x00\x01" + MEMBER_V0, 45_000, -1),
        (b"\x00\x01" + HEAD + b"\x00\x00\x00\x01" + MEMBER_V1, 300_000, -1),
        (b"\x00\x02" + HEAD + AT + b"\x00\x00\x00\x01" + MEMBER_V1, 300_000, 1_700_000_000_000),
        (RECORDED_V3, 300_000, 1_700_000_000_000),
        (
            b"\x00\x04\x09consumer\x00\x00\x00\x07\x06range\x04m-1" + bytes.fromhex("0000018bcfe56800")
            + b"\x02" + MEMBER_V4 + b"\x00",
            300_000,
            1_700_000_000_000,
        ),
    ],
)
def test_every_version_of_a_group_is_read(value: bytes, rebalance_timeout_ms: int, state_changed_at_ms: int) -> None:
    fact = group_records.decode(GROUP_KEY, value)

    assert isinstance(fact, GroupRecorded)
    assert (7, "consumer", "range", "m-1") == (fact.generation, fact.protocol_type, fact.protocol, fact.leader)
    assert state_changed_at_ms == fact.state_changed_at_ms
    (member,) = fact.members
    assert ("m-1", None, "app", "/127.0.0.1") == (member.id, member.instance_id, member.client_id, member.client_host)
    assert (rebalance_timeout_ms, 45_000) == (member.rebalance_timeout_ms, member.session_timeout_ms)
    assert (b"sub", b"own") == (member.subscription, member.assignment)


def test_the_oldest_key_of_an_offset_is_read() -> None:
    assert COMMITTED == group_records.decode(b"\x00\x00" + OFFSET_KEY[2:], COMMITTED_V3)


@pytest.mark.parametrize("kind", [3, 5, 8, 16, 99])
def test_records_of_other_kinds_are_left_alone(kind: int) -> None:
    assert group_records.decode(kind.to_bytes(2, "big") + b"\x00\x01g", b"anything") is None


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (None, b""),
        (b"\x00", None),
        (OFFSET_KEY[:-1], None),
        (OFFSET_KEY, COMMITTED_V3[:-1]),
        (OFFSET_KEY, b"\x00\x09" + COMMITTED_V3[2:]),
        (GROUP_KEY, RECORDED_V3[:-1]),
        (GROUP_KEY, EMPTY_V3[:-4] + b"\x7f\xff\xff\xff"),
    ],
)
def test_broken_records_are_refused_as_malformed(key: bytes | None, value: bytes | None) -> None:
    with pytest.raises(Malformed):
        group_records.decode(key, value)


@given(
    st.builds(
        OffsetCommitted,
        group=st.text(max_size=5),
        topic=st.text(max_size=5),
        partition=st.integers(0, 2**31 - 1),
        offset=st.integers(-(2**63), 2**63 - 1),
        leader_epoch=st.integers(-1, 2**31 - 1),
        metadata=st.text(max_size=5),
        committed_at_ms=st.integers(-1, 2**63 - 1),
        expires_at_ms=st.one_of(st.none(), st.integers(0, 2**63 - 1)),
    )
)
def test_any_committed_offset_comes_back(fact: OffsetCommitted) -> None:
    back = group_records.decode(*group_records.encode(fact))

    # The version that has an expiry has no leader epoch.
    assert (fact if fact.expires_at_ms is None else replace(fact, leader_epoch=-1)) == back


@given(st.binary(max_size=40), st.binary(max_size=40), st.integers(0, 2))
def test_no_bytes_are_anything_but_a_fact_or_malformed(key: bytes, value: bytes, kind: int) -> None:
    for head in (b"", b"\x00\x03"):
        with contextlib.suppress(Malformed):
            group_records.decode(kind.to_bytes(2, "big") + key, head + value)


def test_a_description_of_a_record_names_the_fields_of_its_fact() -> None:
    described = group_records.describe(OFFSET_KEY, COMMITTED_V3)

    assert described["type"] == "OffsetCommitted"
    assert (described["group"], described["topic"], described["offset"]) == ("analytics-team", "orders", 142)


def test_a_description_of_a_record_that_keeps_no_fact_says_what_is_known_of_it() -> None:
    share_group = bytes.fromhex("000b 0001") + b"g"

    assert group_records.describe(share_group, None) == {"type": "group record of type 11", "is_tombstone": True}
    assert group_records.describe(share_group, b"value")["is_tombstone"] is False
    damaged = group_records.describe(OFFSET_KEY[:-1], COMMITTED_V3)
    assert (damaged["type"], damaged["problem"]) == ("unreadable", "4 bytes wanted, 3 left")
