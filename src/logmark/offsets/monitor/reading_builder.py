"""Says what a sample means for every group: its lag, its verdict by its past, and how long it still has."""

from collections.abc import Iterable, Mapping, Sequence

from logmark.client.bulk import chunks
from logmark.names import TopicPartition
from logmark.offsets.lag.ages import Ages, Method
from logmark.offsets.lag.annotations import Annotation
from logmark.offsets.lag.history import History, PartitionSample
from logmark.offsets.lag.sample import GroupSample, Sample
from logmark.offsets.lag.trend import compute_trend
from logmark.offsets.lag.verdicts import WINDOW_MS, WINDOW_POINTS, Finding, Verdict, judge_group, judge_partition
from logmark.offsets.monitor.readings import GroupReading, PartitionReading, Reading
from logmark.offsets.monitor.retention import IdleGroup, Retention, seconds_until_deletion
from logmark.offsets.partitions import compute_lag

_START_WINDOW_MS = 86_400_000
_START_WINDOW_MIN_MS = 600_000
# The past of so many groups is in memory at once.
_GROUPS_AT_ONCE = 20
# So many partitions that are behind get a new verdict at one sample; beyond that they take turns.
PARTITIONS_MAX = 20_000

_CAUGHT_UP = Finding(verdict=Verdict.OK, rule=1, evidence="0 records behind")


class ReadingBuilder:
    """Builds a reading of one sample after the other; a group that is caught up is OK without its history."""

    def __init__(
        self, retention: Retention, *, falling_off: bool = False, partitions_max: int = PARTITIONS_MAX
    ) -> None:
        self._retention = retention
        self._falling_off = falling_off
        self._partitions_max = partitions_max
        self._count = 0
        self._judged: dict[str, int] = {}
        self._last: Mapping[str, GroupReading] = {}

    def read(
        self,
        sample: Sample,
        ages: Ages,
        history: History | None,
        annotations: Iterable[Annotation] = (),
        *,
        idle: Mapping[str, IdleGroup] | None = None,
    ) -> Reading:
        """Return what a stored sample means; without a history there are no verdicts."""
        own: dict[str, list[Annotation]] = {}
        for change in annotations:
            own.setdefault(change.group, []).append(change)
        starts = _StartRates(history, sample) if history is not None and self._falling_off else None
        due = self._due(sample) if history is not None else set()
        groups = []
        for some in chunks(list(sample.groups.values()), _GROUPS_AT_ONCE):
            now = [one.group for one in some if one.group in due]
            windows: Mapping[str, Mapping[TopicPartition, Sequence[PartitionSample]]] = {}
            if history is not None and now:
                windows = history.windows(now, since_ms=sample.at_ms - WINDOW_MS, points_max=WINDOW_POINTS)
            for one in some:
                look = _Look(self._retention, sample, one, ages, own.get(one.group, []), starts)
                window = windows.get(one.group, {}) if one.group in due else None
                before = self._last.get(one.group) if history is not None else None
                groups.append(look.reading(window, before, (idle or {}).get(one.group)))
        self._last = {one.group: one for one in groups}
        return Reading(at_ms=sample.at_ms, groups=groups, is_complete=not sample.notes)

    def _due(self, sample: Sample) -> set[str]:
        """Return the groups that get a new verdict: of those that are behind, the ones that have waited longest."""
        self._count += 1
        behind = {
            one.group: len(one.committed)
            for one in sample.groups.values()
            if any(sample.unread(one.group, partition) is not None for partition in one.committed)
        }
        self._judged = {group: at for group, at in self._judged.items() if group in behind}
        due: set[str] = set()
        partitions = 0
        for group in sorted(behind, key=lambda one: self._judged.get(one, 0)):
            partitions += behind[group]
            if due and partitions > self._partitions_max:
                break
            due.add(group)
            self._judged[group] = self._count
        return due


class _Look:
    """One group of one sample."""

    def __init__(
        self,
        retention: Retention,
        sample: Sample,
        group: GroupSample,
        ages: Ages,
        annotations: Sequence[Annotation],
        starts: "_StartRates | None",
    ) -> None:
        self._retention = retention
        self._sample = sample
        self._group = group
        self._ages = ages
        self._annotations = annotations
        self._starts = starts

    def reading(
        self,
        windows: Mapping[TopicPartition, Sequence[PartitionSample]] | None,
        before: GroupReading | None,
        idle: IdleGroup | None,
    ) -> GroupReading:
        """Return what the sample says about the group; without windows the verdict is the previous one."""
        group, sample = self._group, self._sample
        known = {one.partition: one for one in before.partitions} if before and windows is None else {}
        readings: list[PartitionReading] = []
        findings: list[tuple[TopicPartition, Finding, int]] = []
        is_behind = False
        for partition in group.partitions:
            committed, end = group.committed.get(partition), sample.ends.get(partition)
            if committed is None or end is None:
                readings.append(PartitionReading(partition, None, is_uncommitted=committed is None and end is not None))
            elif max(committed.offset, sample.starts[partition]) >= end:
                lost = compute_lag(committed.offset, start=sample.starts[partition], end=end).lost
                readings.append(PartitionReading(partition, 0, lost, 0.0, str(Method.CAUGHT_UP), str(Verdict.OK)))
                findings.append((partition, _CAUGHT_UP, 0))
            else:
                is_behind = True
                one = self._behind(partition)
                if windows is None:
                    was = known.get(partition)
                    readings.append(
                        one
                        if was is None
                        else one._replace(verdict=was.verdict, evidence=was.evidence, left_s=was.left_s)
                    )
                    continue
                finding = judge_partition(
                    windows.get(partition, ()), annotations=self._annotations, partition=partition
                )
                findings.append((partition, finding, one.lag or 0))
                left_s = self._left_s(partition, one.seconds, windows.get(partition, ()))
                readings.append(one._replace(verdict=_known(finding), evidence=finding.evidence, left_s=left_s))
        return self._whole(readings, findings, windows, before, idle, is_behind=is_behind)

    def _whole(
        self,
        readings: Sequence[PartitionReading],
        findings: Sequence[tuple[TopicPartition, Finding, int]],
        windows: Mapping[TopicPartition, Sequence[PartitionSample]] | None,
        before: GroupReading | None,
        idle: IdleGroup | None,
        *,
        is_behind: bool,
    ) -> GroupReading:
        verdict, evidence, catch_up_s = "", "", None
        if not is_behind and findings:
            verdict, evidence, catch_up_s = str(Verdict.OK), _CAUGHT_UP.evidence, 0.0
        elif windows is not None:
            whole = judge_group(findings)
            verdict, evidence = _known(whole), whole.evidence
            catch_up_ms = compute_trend(windows).catch_up_ms
            catch_up_s = None if catch_up_ms is None else catch_up_ms / 1000
        elif before is not None:
            verdict, evidence, catch_up_s = before.verdict, before.evidence, before.catch_up_s
        left_ms = None if idle is None else self._retention.of_offsets_ms - (self._sample.at_ms - idle.since_ms)
        return GroupReading(
            group=self._group.group,
            state=self._group.state,
            members=len(self._group.members),
            partitions=readings,
            verdict=verdict,
            evidence=evidence,
            catch_up_s=catch_up_s,
            problem=self._group.problem,
            reset_at_ms=max((one.at_ms for one in self._annotations), default=None),
            expires_in_s=None if left_ms is None else left_ms / 1000,
        )

    def _behind(self, partition: TopicPartition) -> PartitionReading:
        committed = self._group.committed[partition].offset
        lag = compute_lag(committed, start=self._sample.starts[partition], end=self._sample.ends[partition])
        age = self._ages.of(self._group.group, partition)
        seconds = None if age.ms is None else age.ms / 1000
        return PartitionReading(partition, lag.records, lag.lost, seconds, str(age.method))

    def _left_s(
        self, partition: TopicPartition, age_s: float | None, window: Sequence[PartitionSample]
    ) -> float | None:
        if self._starts is None:
            return None
        return seconds_until_deletion(
            age_s=age_s,
            retention_ms=self._retention.of_topic(partition.topic),
            headroom=max(self._group.committed[partition].offset - self._sample.starts[partition], 0),
            start_per_s=self._starts.of(partition),
            read_per_s=_read_per_s(window),
        )


class _StartRates:
    """Records per second by which log starts have moved within a day, as far as the history goes back."""

    def __init__(self, history: History, sample: Sample) -> None:
        self._history = history
        self._sample = sample
        then = next(iter(history.times(since_ms=sample.at_ms - _START_WINDOW_MS)), None)
        self._then = then if then is not None and sample.at_ms - then >= _START_WINDOW_MIN_MS else None

    def of(self, partition: TopicPartition) -> float | None:
        """Return the rate, None if it is unknown."""
        topic = self._history.topic_id(partition.topic)
        if self._then is None or topic is None:
            return None
        before = self._history.ends_at(self._then).start(topic, partition.partition)
        moved = self._sample.starts[partition] - before
        return None if before < 0 or moved < 0 else moved / ((self._sample.at_ms - self._then) / 1000)


def _read_per_s(window: Sequence[PartitionSample]) -> float:
    if len(window) < 2 or window[-1].at_ms <= window[0].at_ms:
        return 0.0
    return max(window[-1].committed - window[0].committed, 0) / ((window[-1].at_ms - window[0].at_ms) / 1000)


def _known(finding: Finding) -> str:
    return "" if finding.verdict is Verdict.UNKNOWN else str(finding.verdict)
