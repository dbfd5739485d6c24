"""`--describe`: groups by name, each with a table of offsets, of members or of its state."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from logmark.client.answers import LATEST, Committed, GroupDescription, GroupMember
from logmark.client.client import Client
from logmark.client.errors import ClientError, RefusedByBroker
from logmark.client.logs import by_topic
from logmark.errors import ErrorCode
from logmark.escaping import escape
from logmark.names import TopicPartition
from logmark.offsets.kafka_consumer_groups import java_errors
from logmark.offsets.kafka_consumer_groups.arguments import Arguments
from logmark.offsets.kafka_consumer_groups.failures import Failed
from logmark.offsets.kafka_consumer_groups.group_list import consumer_groups, state_of
from logmark.offsets.kafka_consumer_groups.printer import MISSING, Printer, column_width, format_row, format_value

_CALL = "describeConsumerGroups(api=FIND_COORDINATOR)"
_FETCH_CALL = "listConsumerGroupOffsets(api=FIND_COORDINATOR)"
_REBALANCING = ("PreparingRebalance", "CompletingRebalance", "Assigning", "Reconciling")
_PROTOCOLS = ("", "consumer")


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetRow:
    """A row of the table of offsets; a member that owns the partition, if one does."""

    partition: TopicPartition
    committed: Committed | None
    end: int | None
    member: GroupMember | None

    @property
    def lag(self) -> int | None:
        """As the tool counts it: it can be negative."""
        return None if self.committed is None or self.end is None else self.end - self.committed.offset


@dataclass(frozen=True, slots=True, kw_only=True)
class Undescribed:
    """A group that could not be described, with Java's exception for it."""

    exception: str
    is_not_found: bool = False


def describe_groups(client: Client, given: Arguments, printer: Printer) -> None:
    """Print the groups ordered by name; a group that cannot be described ends the command."""
    groups = sorted(set(consumer_groups(client) if given.has("all-groups") else given.values("group")))
    described = [_described(answer) for answer in descriptions(client, groups).values()]
    is_verbose = given.has("verbose")
    if given.has("members"):
        for group in described:
            _print_members(group, printer, is_verbose=is_verbose)
    elif given.has("state"):
        addresses = client.metadata([]).brokers if described else {}
        for group in described:
            address = addresses.get(group.coordinator)
            coordinator = f"{address.host}:{address.port}" if address else MISSING
            _print_state(group, coordinator, printer, is_verbose=is_verbose)
    else:
        rows = _fetch_rows(client, described)
        for group in described:
            _print_offsets(group, rows[group.group], printer, is_verbose=is_verbose)


def descriptions(client: Client, groups: Sequence[str]) -> dict[str, GroupDescription | Undescribed]:
    """Return the description of each group, or why it could not be described."""
    try:
        answers = client.describe_consumer_groups(groups)
    except ClientError as error:
        raise Failed(java_errors.format_exception(error, _CALL), hint=str(error)) from None
    found: dict[str, GroupDescription | Undescribed] = {}
    for group, answer in answers.items():
        if isinstance(answer, RefusedByBroker):
            is_not_found = answer.code == ErrorCode.GROUP_ID_NOT_FOUND
            found[group] = Undescribed(exception=java_errors.format_exception(answer, _CALL), is_not_found=is_not_found)
        elif answer.protocol_type not in _PROTOCOLS:
            kind = answer.protocol_type
            found[group] = Undescribed(
                exception=f"java.lang.IllegalArgumentException: GroupId {group} is not a consumer group ({kind})."
            )
        else:
            found[group] = answer
    return found


def _described(answer: GroupDescription | Undescribed) -> GroupDescription:
    if isinstance(answer, Undescribed):
        raise Failed(answer.exception)
    return answer


def _fetch_rows(client: Client, groups: Sequence[GroupDescription]) -> dict[str, list[OffsetRow]]:
    """Return the rows of each group: partitions of members, those with most first, then unassigned partitions."""
    committed = committed_of(client, [group.group for group in groups])
    owned = {one for group in groups for member in group.members for one in member.partitions}
    ends = _ends(client, sorted(owned | {one for offsets in committed.values() for one in offsets}))
    return {group.group: _rows(group, committed[group.group], ends) for group in groups}


def committed_of(client: Client, groups: Sequence[str]) -> dict[str, dict[TopicPartition, Committed]]:
    """Return the committed offsets of each group."""
    try:
        return client.committed_of(groups)
    except ClientError as error:
        raise Failed(
            f"{java_errors.EXECUTION}{java_errors.format_exception(error, _FETCH_CALL)}", hint=str(error)
        ) from None


def _ends(client: Client, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
    """Return the log end offsets of those partitions that have a leader."""
    if not partitions:
        return {}
    call = "describeTopics"
    try:
        cluster = client.metadata(sorted({one.topic for one in partitions}))
        for code in cluster.errors.values():
            raise Failed(f"{java_errors.EXECUTION}{java_errors.format_code(code)}")
        call = "listOffsets(api=METADATA)"
        return {
            one: answer.offset
            for one, answer in client.list_offsets(
                {one: LATEST for one in partitions if cluster.leader(one) >= 0}
            ).items()
        }
    except ClientError as error:
        raise Failed(f"{java_errors.EXECUTION}{java_errors.format_exception(error, call)}", hint=str(error)) from None


def _rows(
    group: GroupDescription, committed: Mapping[TopicPartition, Committed], ends: Mapping[TopicPartition, int]
) -> list[OffsetRow]:
    members = sorted((one for one in group.members if one.partitions), key=lambda one: -len(one.partitions))
    owned = [(one, member) for member in members for one in sorted(member.partitions)]
    taken = {one for one, _ in owned}
    left = [(one, None) for one in sorted(committed) if one not in taken]
    return [
        OffsetRow(partition=one, committed=committed.get(one), end=ends.get(one), member=member)
        for one, member in [*owned, *left]
    ]


def _has_rows(group: GroupDescription, count: int, printer: Printer) -> bool:
    """Says what is remarkable about a group's state, and whether there is a table to show."""
    state, name = state_of(group.state), escape(group.group)
    if state == "Dead":
        printer.error(f"Consumer group '{name}' does not exist.")
    elif state == "Empty":
        printer.say(f"\nConsumer group '{name}' has no active members.")
    elif state in _REBALANCING:
        printer.say(f"\nWarning: Consumer group '{name}' is rebalancing.")
    elif state != "Stable":
        raise Failed(f"Expected a valid consumer group state, but found '{state}'.")
    return state != "Dead" and count > 0


def _print_offsets(group: GroupDescription, rows: Sequence[OffsetRow], printer: Printer, *, is_verbose: bool) -> None:
    if not _has_rows(group, len(rows), printer):
        return
    titles = ["GROUP", "TOPIC", "PARTITION", *(["LEADER-EPOCH"] if is_verbose else [])]
    titles += ["CURRENT-OFFSET", "LOG-END-OFFSET", "LAG", "CONSUMER-ID", "HOST", "CLIENT-ID"]
    table = [_offset_cells(group.group, one, is_verbose=is_verbose) for one in rows]
    widths = [
        column_width(15, [group.group]), column_width(15, [one.partition.topic for one in rows]), 10,
        *([15] * (4 if is_verbose else 3)),
        column_width(15, [cells[-3] for cells in table]), column_width(15, [cells[-2] for cells in table]),
    ]  # fmt: skip
    printer.write("".join(f"\n{format_row(cells, widths)}" for cells in [titles, *table]) + "\n")


def _offset_cells(group: str, one: OffsetRow, *, is_verbose: bool) -> list[str]:
    committed, member = one.committed, one.member
    epoch = None if committed is None or committed.leader_epoch < 0 else committed.leader_epoch
    return [
        group, one.partition.topic, str(one.partition.partition), *([format_value(epoch)] if is_verbose else []),
        format_value(committed.offset if committed else None), format_value(one.end), format_value(one.lag),
        *((member.member_id, member.host, member.client_id) if member else (MISSING, MISSING, MISSING)),
    ]  # fmt: skip


def _print_members(group: GroupDescription, printer: Printer, *, is_verbose: bool) -> None:
    # The tool writes the titles also where there is nobody.
    _has_rows(group, len(group.members), printer)
    members = group.members
    has_instances = any(member.instance_id for member in members)
    has_upgraded = {True, False} <= {member.is_upgraded for member in members}
    columns = ["CONSUMER-ID", *(["GROUP-INSTANCE-ID"] if has_instances else []), "HOST", "CLIENT-ID", "#PARTITIONS"]
    if is_verbose:
        columns += ["CURRENT-EPOCH", "CURRENT-ASSIGNMENT", "TARGET-EPOCH", "TARGET-ASSIGNMENT"]
        columns += ["UPGRADED"] if has_upgraded else []
    table = [{title: _member_cell(group, member, title) for title in columns} for member in members]
    least = {"GROUP-INSTANCE-ID": 17, "CURRENT-ASSIGNMENT": 20, "TARGET-ASSIGNMENT": 20}
    fixed = {"#PARTITIONS", "CURRENT-EPOCH", "TARGET-EPOCH"}
    widths = [column_width(15, [group.group] if members else [])]
    widths += [
        column_width(least.get(title, 15), [] if title in fixed else [cells[title] for cells in table])
        for title in columns
        if title != "UPGRADED"
    ]
    end = "" if is_verbose else " "
    printer.write("\n" + format_row(["GROUP", *columns], widths) + end + "\n")
    for cells in table:
        printer.write(format_row([group.group, *cells.values()], widths) + end + "\n")


def _member_cell(group: GroupDescription, member: GroupMember, title: str) -> str:
    match title:
        case "CONSUMER-ID":
            return member.member_id
        case "GROUP-INSTANCE-ID":
            return member.instance_id or ""
        case "HOST":
            return member.host
        case "CLIENT-ID":
            return member.client_id
        case "#PARTITIONS":
            return str(len(member.partitions))
        case "CURRENT-EPOCH":
            return format_value(member.member_epoch)
        case "CURRENT-ASSIGNMENT":
            return _assignment(member.partitions)
        case "TARGET-EPOCH":
            return format_value(group.assignment_epoch)
        case "TARGET-ASSIGNMENT":
            return _assignment(member.target or ())
        case _:
            return "true" if member.is_upgraded else MISSING if member.is_upgraded is None else "false"


def _assignment(partitions: Sequence[TopicPartition]) -> str:
    """As in `orders:0,1;users:2`."""
    topics = by_topic(sorted(partitions))
    texts = sorted(f"{topic}:{','.join(map(str, numbers))}" for topic, numbers in topics.items())
    return ";".join(texts) or MISSING


def _print_state(group: GroupDescription, address: str, printer: Printer, *, is_verbose: bool) -> None:
    if not _has_rows(group, 1, printer):
        return
    coordinator = f"{address}  ({group.coordinator})"
    titles = ["GROUP", "COORDINATOR (ID)", "ASSIGNMENT-STRATEGY", "STATE"]
    cells = [group.group, coordinator, group.assignor or MISSING, state_of(group.state)]
    widths = [column_width(15, [group.group]), column_width(25, [coordinator]), 20, 20]
    if is_verbose:
        titles += ["GROUP-EPOCH", "TARGET-ASSIGNMENT-EPOCH"]
        cells += [format_value(group.group_epoch), format_value(group.assignment_epoch)]
        widths += [15, 25]
    titles.append("#MEMBERS")
    cells.append(str(len(group.members)))
    printer.write(f"\n{format_row(titles, widths)}\n{format_row(cells, widths)}\n")
