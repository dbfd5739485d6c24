"""The catalogue: read as it was written, and strict about names and settings."""

import json

import pytest

from logmark.errors import ErrorCode, Refused, UserError
from logmark.log.catalog import PRODUCER_ID_BASE, Catalog, id_of_text, new_id, text_of_id


def reread(catalog: Catalog) -> Catalog:
    """The catalogue as a start finds it."""
    return Catalog(catalog.encode())


def test_a_topic_is_there_again_after_a_restart_with_the_same_id() -> None:
    catalog = Catalog(None)
    created = catalog.create("clicks", 3, {"retention.ms": "-1"})

    assert created == reread(catalog).get("clicks")


def test_a_draft_changes_nothing_but_itself() -> None:
    catalog = Catalog(None)
    catalog.create("a.b", 1, {})
    draft = catalog.copy()
    draft.create("clicks", 3, {})
    draft.begin_deletion("a.b")
    draft.finish_deletion("a.b")
    draft.reserve_producer_ids()

    assert ["a.b"] == [entry.name for entry in catalog.entries()]
    assert PRODUCER_ID_BASE == catalog.next_producer_id
    catalog.check_new_name("clicks")
    with pytest.raises(Refused, match=r"a\.b"):
        catalog.check_new_name("a_b")
    draft.check_new_name("a_b")


def test_the_file_has_a_line_for_each_topic_and_the_fields_of_version_2() -> None:
    catalog = Catalog(None, cluster_id="c")
    catalog.create("clicks", 3, {"retention.ms": "-1"})
    gone = catalog.create("orders", 1, {})
    catalog.begin_deletion("orders")
    content = catalog.encode()

    document = json.loads(content)
    assert {"version": 2, "cluster_id": "c", "next_producer_id": PRODUCER_ID_BASE} == {
        name: document[name] for name in document if name not in ("topics", "checksum")
    }
    assert {
        "name": "orders", "id": text_of_id(gone.id), "partitions": 1, "overrides": {}, "is_deleting": True
    } == document["topics"][1]  # fmt: skip
    assert 4 == len(content.splitlines())


def test_a_catalogue_with_any_flipped_bit_is_refused() -> None:
    catalog = Catalog(None, cluster_id="c")
    catalog.create("clicks", 3, {"retention.ms": "-1"})
    content = catalog.encode()

    for at in range(len(content) * 8):
        flipped = bytearray(content)
        flipped[at // 8] ^= 1 << at % 8
        # White space behind the document may change.
        if flipped.strip() != content.strip():
            with pytest.raises(UserError):
                Catalog(bytes(flipped))


def test_a_catalogue_of_version_1_which_people_may_edit_has_no_checksum() -> None:
    catalog = Catalog(None, cluster_id="c")
    catalog.create("clicks", 3, {})
    document = json.loads(catalog.encode()) | {"version": 1}
    document["topics"][0]["partitions"] = 4

    (entry,) = Catalog(json.dumps(document).encode()).entries()

    assert 4 == entry.partitions


def test_what_changed_since_the_last_write_is_in_the_next_one() -> None:
    catalog = Catalog(None)
    for name in ("grown", "changed", "going", "gone"):
        catalog.create(name, 1, {})
    first = catalog.encode()
    draft = catalog.copy()
    draft.grow("grown", 2)
    draft.override("changed", {"retention.ms": "1"})
    draft.begin_deletion("going")
    draft.finish_deletion("gone")
    again = draft.create("new", 3, {})

    assert first == catalog.encode()
    found = reread(draft)
    assert draft.entries() == found.entries()
    assert draft.deleting() == found.deleting()
    assert again == found.get("new")


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a b", "ü", "x" * 250])
def test_an_illegal_name_is_refused(name: str) -> None:
    with pytest.raises(Refused) as refused:
        Catalog(None).create(name, 1, {})

    assert ErrorCode.INVALID_TOPIC_EXCEPTION is refused.value.code


def test_names_that_differ_in_dots_and_underscores_only_collide() -> None:
    catalog = Catalog(None)
    catalog.create("a.b", 1, {})

    with pytest.raises(Refused, match=r"a\.b"):
        catalog.create("a_b", 1, {})


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        ({"retention.millis": "5"}, "Unknown topic config"),
        ({"retention.ms": "soon"}, "retention.ms"),
        ({"retention.ms": "-2"}, "between -1"),
        ({"cleanup.policy": "burn"}, "delete, compact"),
        ({"segment.bytes": "14"}, "1048576"),
    ],
)
def test_an_impossible_setting_is_refused_with_its_reason(overrides: dict[str, str], reason: str) -> None:
    with pytest.raises(Refused, match=reason) as refused:
        Catalog(None).create("clicks", 1, overrides)

    assert ErrorCode.INVALID_CONFIG is refused.value.code


def test_a_topic_being_deleted_is_not_seen_but_remembered_until_its_folders_are_gone() -> None:
    catalog = Catalog(None)
    catalog.create("clicks", 2, {})
    catalog.begin_deletion("clicks")

    again = reread(catalog)
    assert again.get("clicks") is None
    assert ["clicks"] == [entry.name for entry in again.deleting()]
    again.finish_deletion("clicks")
    assert [] == reread(again).deleting()


def test_producer_ids_begin_where_apache_kafka_does_not_get_to_and_are_never_given_twice() -> None:
    catalog = Catalog(None)
    first = catalog.reserve_producer_ids()
    second = reread(catalog).reserve_producer_ids()

    assert PRODUCER_ID_BASE == first[0] == 2**40
    assert second[0] > first[-1]


def test_an_id_survives_its_text_form() -> None:
    drawn = new_id()

    assert drawn == id_of_text(text_of_id(drawn))
    assert 22 == len(text_of_id(drawn))


def test_a_damaged_catalogue_is_an_error_and_not_an_empty_one() -> None:
    with pytest.raises(UserError, match="restore"):
        Catalog(b'{"version": 1}')
