"""`--reset-offsets`: where each partition would go, and with `--execute` that it goes there."""

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from logmark.client.answers import EARLIEST, LATEST, GroupDescription
from logmark.client.client import Client
from logmark.client.errors import ClientError, CommitRefused
from logmark.escaping import escape
from logmark.names import TopicPartition
from logmark.offsets.kafka_consumer_groups import java_errors, java_times, plan_files, topic_arguments
from logmark.offsets.kafka_consumer_groups.arguments import Arguments
from logmark.offsets.kafka_consumer_groups.description import Undescribed, committed_of, descriptions
from logmark.offsets.kafka_consumer_groups.failures import Failed, Usage
from logmark.offsets.kafka_consumer_groups.group_list import consumer_groups, state_of
from logmark.offsets.kafka_consumer_groups.journal_entry import JournalEntry
from logmark.offsets.kafka_consumer_groups.options import SCENARIOS
from logmark.offsets.kafka_consumer_groups.printer import Printer, column_width, format_row
from logmark.offsets.reset.plan import keep_metadata

_LIST_CALL = "listOffsets(api=METADATA)"
_COMMIT_CALL = "alterConsumerGroupOffsets(api=FIND_COORDINATOR)"
_INACTIVE = ("Empty", "Dead")


def reset_offsets(client: Client, given: Arguments, printer: Printer) -> None:
    """Print the new offsets of every group, planned or applied, as a table or as CSV."""
    groups = sorted(set(consumer_groups(client) if given.has("all-groups") else given.values("group")))
    try:
        described = descriptions(client, groups)
    except Failed as failure:
        raise Failed(f"{java_errors.EXECUTION}{failure.message}", hint=failure.hint) from None
    plans: dict[str, Mapping[TopicPartition, int]] = {}
    for group in groups:
        plans[group] = _reset_group(client, given, printer, group, described[group])
    if given.has("export"):
        printer.write_file(plan_files.write_plans(plans, with_group=len(given.values("group")) != 1) + "\n")
    else:
        _print_plans(plans, printer)


def _reset_group(
    client: Client, given: Arguments, printer: Printer, group: str, described: GroupDescription | Undescribed
) -> Mapping[TopicPartition, int]:
    if isinstance(described, Undescribed) and not described.is_not_found:
        raise Failed(f"{java_errors.EXECUTION}{described.exception}")
    if isinstance(described, GroupDescription) and (state := state_of(described.state)) not in _INACTIVE:
        printer.error(
            f"Assignments can only be reset if the group '{escape(group)}' is inactive, "
            f"but the current state is {state}."
        )
        return {}
    partitions = _in_scope(client, given, group)
    topic_arguments.check_partitions(client, partitions)
    plan = _Targets(client, given, printer, group, partitions).found()
    if given.has("execute") and plan:
        _commit(client, given, printer, group, plan)
    return plan


def _in_scope(client: Client, given: Arguments, group: str) -> Sequence[TopicPartition]:
    if given.has("all-topics"):
        return sorted(committed_of(client, [group])[group])
    if given.has("topic"):
        return topic_arguments.partitions_named(client, given.values("topic"))
    if not given.has("from-file"):
        raise Usage("One of the reset scopes should be defined: --all-topics, --topic.")
    return []


class _Targets:
    """Where the partitions of one group go in each scenario."""

    def __init__(
        self, client: Client, given: Arguments, printer: Printer, group: str, partitions: Sequence[TopicPartition]
    ) -> None:
        self._client = client
        self._given = given
        self._printer = printer
        self._group = group
        self._partitions = partitions

    def found(self) -> Mapping[TopicPartition, int]:
        """Return the new offset of each partition."""
        scenarios: dict[str, Callable[[], Mapping[TopicPartition, int]]] = {
            "to-offset": self._to_offset,
            "to-earliest": lambda: self._listed(EARLIEST),
            "to-latest": lambda: self._listed(LATEST),
            "shift-by": self._shift_by,
            "to-datetime": lambda: self._to_time(java_times.parse_date(self._given.values("to-datetime")[0])),
            "by-duration": self._by_duration,
            "from-file": self._from_file,
            "to-current": self._to_current,
        }
        for name, scenario in scenarios.items():
            if self._given.has(name):
                return scenario()
        names = ", ".join(f"[{name}]" for name in SCENARIOS)
        raise Usage(f"Option '[reset-offsets]' requires one of the following scenarios: [{names}]")

    def _to_offset(self) -> Mapping[TopicPartition, int]:
        self._refuse_repeated()
        return self._within(dict.fromkeys(self._partitions, self._given.numbers("to-offset")[0]))

    def _shift_by(self) -> Mapping[TopicPartition, int]:
        committed = committed_of(self._client, [self._group])[self._group]
        by = self._given.number("shift-by")
        assert by is not None
        for one in self._partitions:
            if one not in committed:
                raise Usage(f"Cannot shift offset for partition {one} since there is no current committed offset")
        self._refuse_repeated()
        return self._within({one: committed[one].offset + by for one in self._partitions})

    def _by_duration(self) -> Mapping[TopicPartition, int]:
        text = self._given.value("by-duration")
        assert text is not None
        return self._to_time(time.time_ns() // 1_000_000 - java_times.parse_duration(text))

    def _to_time(self, timestamp_ms: int) -> Mapping[TopicPartition, int]:
        found = self._listed(timestamp_ms)
        late = [one for one, offset in found.items() if offset < 0]
        for one in late:
            self._printer.write(
                f"\nWarn: Partition {one.partition} from topic {one.topic} is empty. "
                "Falling back to latest known offset.\n"
            )
        return {**found, **self._listed(LATEST, late)}

    def _to_current(self) -> Mapping[TopicPartition, int]:
        committed = committed_of(self._client, [self._group])[self._group]
        self._refuse_repeated()
        ends = self._listed(LATEST, [one for one in self._partitions if one not in committed])
        return {one: committed[one].offset if one in committed else ends[one] for one in self._partitions}

    def _from_file(self) -> Mapping[TopicPartition, int]:
        path = self._given.values("from-file")[0]
        try:
            text = Path(path).read_bytes().decode("utf-8", errors="replace")
        except OSError as error:
            raise Failed(f"java.io.IOException: Unable to read file {path}", hint=str(error)) from None
        plans = plan_files.read_plans(text, self._given.values("group"))
        if self._group not in plans:
            self._printer.error(f"No reset plan for group {escape(self._group)} found")
            return {}
        topic_arguments.check_file_partitions(self._client, sorted(plans[self._group]))
        return self._within(plans[self._group])

    def _within(self, wanted: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, int]:
        """Clamp offsets outside of a log to its nearer end, with a warning."""
        starts, ends = self._listed(EARLIEST, list(wanted)), self._listed(LATEST, list(wanted))
        found = {}
        for one, offset in sorted(wanted.items()):
            found[one] = ends[one] if offset > ends[one] else max(offset, starts[one])
            if found[one] != offset:
                side = "higher than latest" if offset > ends[one] else "lower than earliest"
                self._printer.warn(
                    f"New offset ({offset}) is {side} offset for topic partition {one}. Value will be set to "
                    f"{found[one]} (org.apache.kafka.tools.OffsetsUtils)"
                )
        return found

    def _listed(
        self, timestamp_ms: int, partitions: Sequence[TopicPartition] | None = None
    ) -> dict[TopicPartition, int]:
        if partitions is None:
            self._refuse_repeated()
            partitions = self._partitions
        try:
            answers = self._client.list_offsets(dict.fromkeys(partitions, timestamp_ms))
        except ClientError as error:
            raise Failed(
                f"{java_errors.EXECUTION}{java_errors.format_exception(error, _LIST_CALL)}", hint=str(error)
            ) from None
        return {one: answer.offset for one, answer in answers.items()}

    def _refuse_repeated(self) -> None:
        seen: set[TopicPartition] = set()
        for one in self._partitions:
            if one in seen:
                raise Failed(f"Duplicate key {one}", hint=f"Partition {one} is named twice.")
            seen.add(one)


def _commit(client: Client, given: Arguments, printer: Printer, group: str, plan: Mapping[TopicPartition, int]) -> None:
    """Commit the new offsets and keep the stored metadata, which Kafka's tool removes."""
    before = committed_of(client, [group])[group]
    after = {one: keep_metadata(before.get(one), offset) for one, offset in plan.items()}
    how = " ".join(f"--{name} {' '.join(given.values(name))}".rstrip() for name in SCENARIOS if given.has(name))
    entry = JournalEntry.open(client, printer, group=group, action="reset", how=how, before=before, after=after)
    try:
        client.commit(group, after)
    except CommitRefused as error:
        entry.close("refused" if set(error.errors) == set(after) else "pending")
        failed = ", ".join(str(one) for one in sorted(error.errors))
        raise Failed(
            f"Failed altering group offsets for the following partitions: [{failed}]", hint=str(error)
        ) from None
    except ClientError as error:
        raise Failed(java_errors.format_bare_message(error, _COMMIT_CALL), hint=str(error)) from None
    entry.close("done")


def _print_plans(plans: Mapping[str, Mapping[TopicPartition, int]], printer: Printer) -> None:
    widths = [
        column_width(15, list(plans)), column_width(15, [one.topic for plan in plans.values() for one in plan]), 10,
    ]  # fmt: skip
    rows: list[list[object]] = [["GROUP", "TOPIC", "PARTITION", "NEW-OFFSET"]] if plans else []
    rows += [
        [group, one.topic, one.partition, offset]
        for group, plan in plans.items()
        for one, offset in sorted(plan.items())
    ]
    printer.write("".join(f"\n{format_row(cells, widths)}" for cells in rows) + "\n")
