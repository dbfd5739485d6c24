"""The catalogue: durable before it is seen, and strict about names and settings."""

import pytest

from logmark.errors import ErrorCode, Refused, UserError
from logmark.log.catalog import PRODUCER_ID_BASE, Catalog, id_of_text, new_id, text_of_id


class Disk:
    """A file that can fail."""

    def __init__(self) -> None:
        self.content: bytes | None = None
        self.is_full = False

    def write(self, content: bytes) -> None:
        if self.is_full:
            raise OSError(28, "No space left on device")
        self.content = content


def catalog_on(disk: Disk) -> Catalog:
    return Catalog(disk.content, write=disk.write)


def test_a_topic_is_there_again_after_a_restart_with_the_same_id() -> None:
    disk = Disk()
    created = catalog_on(disk).create("clicks", 3, {"retention.ms": "-1"})

    assert created == catalog_on(disk).get("clicks")


def test_a_topic_that_could_not_be_written_does_not_exist() -> None:
    disk = Disk()
    catalog = catalog_on(disk)
    disk.is_full = True

    with pytest.raises(OSError, match="No space"):
        catalog.create("clicks", 3, {})
    assert catalog.get("clicks") is None


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a b", "ü", "x" * 250])
def test_an_illegal_name_is_refused(name: str) -> None:
    with pytest.raises(Refused) as refused:
        catalog_on(Disk()).create(name, 1, {})

    assert ErrorCode.INVALID_TOPIC_EXCEPTION is refused.value.code


def test_names_that_differ_in_dots_and_underscores_only_collide() -> None:
    catalog = catalog_on(Disk())
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
        catalog_on(Disk()).create("clicks", 1, overrides)

    assert ErrorCode.INVALID_CONFIG is refused.value.code


def test_a_topic_being_deleted_is_not_seen_but_remembered_until_its_folders_are_gone() -> None:
    disk = Disk()
    catalog = catalog_on(disk)
    catalog.create("clicks", 2, {})
    catalog.begin_deletion("clicks")

    again = catalog_on(disk)
    assert again.get("clicks") is None
    assert ["clicks"] == [entry.name for entry in again.deleting()]
    again.finish_deletion("clicks")
    assert [] == catalog_on(disk).deleting()


def test_producer_ids_begin_where_apache_kafka_does_not_get_to_and_are_never_given_twice() -> None:
    disk = Disk()
    first = catalog_on(disk).reserve_producer_ids()
    second = catalog_on(disk).reserve_producer_ids()

    assert PRODUCER_ID_BASE == first[0] == 2**40
    assert second[0] > first[-1]


def test_an_id_survives_its_text_form() -> None:
    drawn = new_id()

    assert drawn == id_of_text(text_of_id(drawn))
    assert 22 == len(text_of_id(drawn))


def test_a_damaged_catalogue_is_an_error_and_not_an_empty_one() -> None:
    with pytest.raises(UserError, match="restore"):
        Catalog(b'{"version": 1}', write=lambda content: None)
