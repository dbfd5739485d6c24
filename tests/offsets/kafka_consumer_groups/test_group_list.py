"""Which groups are listed."""

import io
from collections.abc import Sequence
from typing import cast

from logmark.client.answers import GroupListing
from logmark.client.client import Client
from logmark.offsets.kafka_consumer_groups.arguments import parse
from logmark.offsets.kafka_consumer_groups.group_list import list_groups
from logmark.offsets.kafka_consumer_groups.printer import Printer


class FakeClient:
    """A client's answers about groups of consumers, of Kafka Connect, of a share and of nobody any more."""

    def list_groups(self, *, states: Sequence[str] = (), types: Sequence[str] = ()) -> list[GroupListing]:
        return [
            GroupListing(group="consumers", protocol_type="consumer", state="Stable", type="Consumer"),
            GroupListing(group="connectors", protocol_type="connect", state="Stable", type="Classic"),
            GroupListing(group="sharers", protocol_type="share", state="Stable", type="Share"),
            GroupListing(group="committers", protocol_type="", state="", type=""),
        ]


def listed(*words: str) -> list[list[str]]:
    out = io.StringIO()
    list_groups(cast(Client, FakeClient()), parse(["--list", *words]), Printer(out, io.StringIO()))
    return [line.split() for line in out.getvalue().splitlines()]


def test_groups_that_are_not_of_consumers_are_left_out() -> None:
    assert [["consumers"], ["committers"]] == listed()


def test_what_an_old_broker_does_not_say_is_unknown() -> None:
    assert [
        ["GROUP", "TYPE", "STATE"],
        ["consumers", "Consumer", "Stable"],
        ["committers", "Unknown", "Unknown"],
    ] == listed("--state", "--type")
