"""`--delete` and `--delete-offsets`."""

from collections.abc import Mapping, Sequence

from logmark.client.answers import Committed
from logmark.client.client import Client
from logmark.client.errors import ClientError, RefusedByBroker
from logmark.errors import ErrorCode
from logmark.escaping import escape
from logmark.names import TopicPartition
from logmark.offsets.kafka_consumer_groups import java_errors, topic_arguments
from logmark.offsets.kafka_consumer_groups.arguments import Arguments
from logmark.offsets.kafka_consumer_groups.group_list import consumer_groups
from logmark.offsets.kafka_consumer_groups.journal_entry import JournalEntry
from logmark.offsets.kafka_consumer_groups.printer import MISSING, Printer, column_width, format_row

_DELETE_CALL = "deleteConsumerGroups(api=FIND_COORDINATOR)"
_OFFSETS_CALL = "offsetDelete(api=FIND_COORDINATOR)"
_WHOLE = -1  # stands for a topic whose partitions are not known
_OF_THE_GROUP = (
    ErrorCode.INVALID_GROUP_ID, ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ErrorCode.NON_EMPTY_GROUP,
)  # fmt: skip
_OF_A_PARTITION = (
    ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC, ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
)  # fmt: skip


def delete_groups(client: Client, given: Arguments, printer: Printer) -> None:
    """Delete groups, and print which were not deleted and why."""
    groups = sorted(set(consumer_groups(client) if given.has("all-groups") else given.values("group")))
    failures = {group: why for group in groups if (why := _delete_group(client, printer, group)) is not None}
    deleted = ", ".join(f"'{escape(group)}'" for group in groups if group not in failures)
    if not failures:
        printer.write(f"Deletion of requested consumer groups ({deleted}) was successful.\n")
        return
    printer.error("Deletion of some consumer groups failed:")
    for group, why in failures.items():
        printer.write(f"* Group '{escape(group)}' could not be deleted due to: {why}\n")
    if deleted:
        printer.write(f"\nThese consumer groups were deleted successfully: {deleted}\n")


def _delete_group(client: Client, printer: Printer, group: str) -> str | None:
    """Why a group was not deleted."""
    try:
        before = _committed(client, group)
        entry = JournalEntry.open(
            client, printer, group=group, action="delete", how="--delete", before=before, after=dict.fromkeys(before)
        )
        refusal = client.delete_groups([group]).get(group)
    except ClientError as error:
        return java_errors.format_exception(error, _DELETE_CALL)
    entry.close("done" if refusal is None else "refused")
    return None if refusal is None else java_errors.format_exception(refusal, _DELETE_CALL)


def _committed(client: Client, group: str) -> dict[TopicPartition, Committed]:
    """Return the committed offsets of a group that this user may see: the right to delete is not the right to read."""
    try:
        return client.committed(group)
    except RefusedByBroker:
        return {}


def delete_offsets(client: Client, given: Arguments, printer: Printer) -> None:
    """Forgets what a group has committed in topics, and says partition by partition what came of it."""
    group = given.value("group") or ""
    partitions, results = _chosen(client, given.values("topic"))
    code, refusals = _delete_offsets(client, printer, group, partitions)
    results |= {one: refusals.get(one) for one in partitions}
    if code == ErrorCode.NONE:
        printer.write(f"Request succeeded for deleting offsets from group {escape(group)}.\n")
    elif code in _OF_THE_GROUP:
        printer.error(java_errors.message_for(code))
    elif code in _OF_A_PARTITION:
        printer.error("Encountered some partition-level error, see the follow-up details.")
    else:
        printer.error(f"Encountered some unknown error: {code.name}")
    if any(results.values()):
        printer.has_failed = True
    _print_results(results, printer)


def _chosen(client: Client, texts: Sequence[str]) -> tuple[list[TopicPartition], dict[TopicPartition, str | None]]:
    """Return the partitions that the texts name, and for topics that could not be looked up the reason."""
    partitions = [one for text in texts if ":" in text for one in topic_arguments.parse_partitions(text)]
    whole = sorted({text for text in texts if ":" not in text})
    if not whole:
        return sorted(set(partitions)), {}
    try:
        cluster = client.metadata(whole)
    except ClientError as error:
        return sorted(set(partitions)), {
            TopicPartition(topic, _WHOLE): java_errors.format_exception(error, topic_arguments.CALL) for topic in whole
        }
    for topic in whole:
        partitions += cluster.partitions(topic)
    return sorted(set(partitions)), {
        TopicPartition(topic, _WHOLE): java_errors.format_code(code) for topic, code in cluster.errors.items()
    }


def _delete_offsets(
    client: Client, printer: Printer, group: str, partitions: Sequence[TopicPartition]
) -> tuple[ErrorCode, dict[TopicPartition, str]]:
    """Delete offsets; return the error code of the request, and the reason for each refused partition."""
    entry = None
    try:
        before = {one: committed for one, committed in _committed(client, group).items() if one in set(partitions)}
        entry = JournalEntry.open(
            client, printer, group=group, action="delete-offsets", how="--delete-offsets", before=before,
            after=dict.fromkeys(before),
        )  # fmt: skip
        refused = client.delete_offsets(group, partitions)
    except RefusedByBroker as error:
        if entry is not None:
            entry.close("refused")
        return error.code, dict.fromkeys(partitions, java_errors.format_exception(error, _OFFSETS_CALL))
    except ClientError as error:
        return ErrorCode.REQUEST_TIMED_OUT, dict.fromkeys(
            partitions, java_errors.format_exception(error, _OFFSETS_CALL)
        )
    entry.close("done")
    first = next((refused[one].code for one in sorted(refused)), ErrorCode.NONE)
    return first, {one: java_errors.format_code(error.code) for one, error in refused.items()}


def _print_results(results: Mapping[TopicPartition, str | None], printer: Printer) -> None:
    widths = [column_width(15, [one.topic for one in results]), 10, 15]
    rows: list[list[object]] = [["TOPIC", "PARTITION", "STATUS"]]
    # The tool sorts by topic and number as one text, so that 10 comes before 2.
    for one in sorted(results, key=lambda each: f"{each.topic}{each.partition}"):
        why = results[one]
        rows.append(
            [
                one.topic,
                MISSING if one.partition < 0 else one.partition,
                "Successful" if why is None else f"Error: {why}",
            ]
        )
    printer.write("".join(f"\n{format_row(cells, widths)}" for cells in rows) + "\n")
