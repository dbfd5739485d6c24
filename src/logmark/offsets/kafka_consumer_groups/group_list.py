"""`--list`."""

from collections.abc import Sequence

from logmark.client.answers import GroupListing
from logmark.client.client import Client
from logmark.client.errors import BrokerUnreachable, ClientError
from logmark.escaping import escape
from logmark.offsets.kafka_consumer_groups import java_errors
from logmark.offsets.kafka_consumer_groups.arguments import Arguments
from logmark.offsets.kafka_consumer_groups.failures import Failed, Usage
from logmark.offsets.kafka_consumer_groups.printer import Printer, column_width, format_row

UNKNOWN = "Unknown"
STATES = (
    "PreparingRebalance", "CompletingRebalance", "Stable", "Dead", "Empty", "Assigning", "Reconciling",
)  # fmt: skip
_TYPES = ("Classic", "Consumer")
_OTHER_TYPES = ("Share", "Streams")
_NOBODY = "org.apache.kafka.common.KafkaException: Failed to find brokers to send ListGroups"


def state_of(text: str) -> str:
    """Return a state in the tool's spelling, whatever the spelling of the broker or the user."""
    return {one.lower(): one for one in (*STATES, "NotReady")}.get(text.lower(), UNKNOWN)


def _type_of(text: str) -> str:
    return {one.lower(): one for one in (*_TYPES, *_OTHER_TYPES)}.get(text.lower(), UNKNOWN)


def list_groups(client: Client, given: Arguments, printer: Printer) -> None:
    """Names one group a line; with states or types, a table."""
    if not given.has("state") and not given.has("type"):
        printer.write("".join(f"{escape(group)}\n" for group in consumer_groups(client)))
        return
    types = _chosen_types(given.value("type") or "")
    states = _chosen_states(given.value("state") or "")
    try:
        listings = _of_consumers(client.list_groups(states=states, types=types))
    except ClientError as error:
        raise Failed(_exception(error), hint=str(error)) from None
    titles = ["GROUP", *(["TYPE"] if given.has("type") else []), *(["STATE"] if given.has("state") else [])]
    widths = [column_width(15, [one.group for one in listings]) + 10, 20, 20][: len(titles)]
    printer.write(format_row(titles, widths) + "\n")
    for one in listings:
        cells = {"GROUP": one.group, "TYPE": _type_of(one.type), "STATE": state_of(one.state)}
        printer.write(format_row([cells[title] for title in titles], widths) + "\n")


def consumer_groups(client: Client) -> list[str]:
    """Return the names of all consumer groups, sorted."""
    try:
        return [one.group for one in _of_consumers(client.list_groups(types=_TYPES))]
    except ClientError as error:
        raise Failed(f"{java_errors.EXECUTION}{_exception(error)}", hint=str(error)) from None


def _exception(error: ClientError) -> str:
    return _NOBODY if isinstance(error, BrokerUnreachable) else java_errors.format_exception(error, "listGroups")


def _of_consumers(listings: Sequence[GroupListing]) -> list[GroupListing]:
    """Others keep groups too, such as Kafka Connect; a group that only ever committed has no protocol."""
    return [one for one in listings if one.protocol_type in ("", "consumer")]


def _chosen_states(text: str) -> list[str]:
    chosen = {state_of(one.strip()) for one in _parts(text)} if text else set()
    if not chosen <= set(STATES):
        raise Usage(f"Invalid state list '{text}'. Valid states are: {', '.join(STATES)}")
    return sorted(chosen)


def _chosen_types(text: str) -> list[str]:
    chosen = {_type_of(one.strip()) for one in _parts(text)} if text else set()
    if not chosen <= set(_TYPES):
        raise Usage(f"Invalid types list '{text}'. Valid types are: {', '.join(_TYPES)}")
    return sorted(chosen)


def _parts(text: str) -> list[str]:
    """Split at commas; empty parts at the end do not count."""
    return text.rstrip(",").split(",") if text.strip(",") else []
