"""The verification of a whole data directory, Logmark's or Apache Kafka's; it reads and changes nothing."""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from logmark import properties
from logmark.disk.file_system import FileSystem, Lock
from logmark.disk.overlay import OverlayFileSystem
from logmark.errors import Malformed, Refused, UserError
from logmark.log import added_files, checkpoints, folder_names, recovery_preview, sealed_offsets, segment_swap
from logmark.log.added_files import Addition
from logmark.log.catalog import FILE_NAME as CATALOG
from logmark.log.catalog import Catalog, Entry, check_name
from logmark.log.checkpoints import CLEANED, ListedSegments, SegmentList
from logmark.log.clean_stop import CLEAN, CleanStop
from logmark.log.damage import Damage
from logmark.log.directory import LOCK
from logmark.log.findings import Finding, FindingKind, PartitionFindings, of_damage
from logmark.log.folder import METADATA
from logmark.log.identity import KAFKA_METADATA, META
from logmark.log.partition_verification import PartitionVerification
from logmark.log.recovery_preview import Preview
from logmark.log.sealed_offsets import SealedOffsets
from logmark.log.segment import LOG
from logmark.log.settings import TopicSettings
from logmark.log.wal import log as wal
from logmark.names import INTERNAL_TOPICS, TopicPartition

_FOLDER = re.compile(r"(?P<topic>[A-Za-z0-9._-]+)-(?P<index>\d+)")
_ASIDE = re.compile(r".+\.[0-9a-f]{32}-(delete|stray|future)")
# Written after a sync: what lies below these offsets was on disk.
_PROMISES = (checkpoints.RECOVERY_POINTS, checkpoints.HIGH_WATERMARKS)
# Every checkpoint, and what follows when it cannot be read.
_CHECKPOINTS: Mapping[str, str] = {
    checkpoints.RECOVERY_POINTS: "The next start checks every batch.",
    checkpoints.HIGH_WATERMARKS: "The next start finds the visible ends in the logs.",
    checkpoints.LOG_STARTS: "Records that were deleted, and whose segments are still there, can be read again.",
    CLEANED: "Where nothing else says which logs were cleaned, any of them may have holes, and the next compaction "
    "begins at the beginning.",
}


@dataclass(slots=True, kw_only=True)
class Verified:
    """Everything that a verification has seen."""

    path: str
    is_ours: bool
    is_clean: bool
    # A crash has left a write-ahead log: what is said of the segments holds after its recovery.
    has_wal: bool = False
    partitions: list[PartitionFindings] = field(default_factory=list)
    found: list[Finding] = field(default_factory=list)
    wrong_checkpoints: list[str] = field(default_factory=list)
    # The checkpoints of Kafka's that say something else than what a start believes, and what that is.
    right_offsets: dict[str, Mapping[TopicPartition, int]] = field(default_factory=dict)
    # What was added to the folders since the last clean stop; the next start sets it aside.
    additions: dict[str, list[Addition]] = field(default_factory=dict)
    # By folder the files of swaps that a crash interrupted; what is said of the segments holds after they are finished.
    interrupted_swaps: dict[str, list[str]] = field(default_factory=dict)
    # Whether the folders of partitions were exchanged: then nothing may be changed.
    is_exchanged: bool = False
    topic_ids: dict[str, bytes] = field(default_factory=dict)
    size_bytes: int = 0

    @property
    def findings(self) -> list[Finding]:
        """What is wrong."""
        return [finding for finding in self.found if not finding.is_note]

    @property
    def notes(self) -> list[Finding]:
        """What is normal and worth knowing."""
        return [finding for finding in self.found if finding.is_note]

    @property
    def records(self) -> int:
        return sum(partition.records for partition in self.partitions)

    @property
    def segments(self) -> int:
        return sum(len(partition.segments) for partition in self.partitions)


@dataclass(frozen=True, slots=True, kw_only=True)
class VerificationView:
    """A verification as programs read it; `dataclasses.asdict` makes it JSON."""

    data_dir: str
    written_by: str
    closed_cleanly: bool
    has_wal: bool
    partitions: int
    segments: int
    records: int
    size_bytes: int
    findings: Sequence[Finding]
    notes: Sequence[Finding]


def view_verification(verified: Verified) -> VerificationView:
    """Return how much was verified, what is wrong and what is worth knowing."""
    return VerificationView(
        data_dir=verified.path,
        written_by="logmark" if verified.is_ours else "apache kafka",
        closed_cleanly=verified.is_clean,
        has_wal=verified.has_wal,
        partitions=len(verified.partitions),
        segments=verified.segments,
        records=verified.records,
        size_bytes=verified.size_bytes,
        findings=verified.findings,
        notes=verified.notes,
    )


def hold(path: str, files: FileSystem) -> Lock:
    """Lock a data directory; raise UserError if it is none, or if a broker runs on it."""
    if not files.is_directory(path):
        raise UserError(f"{path} is not a directory. Name a data directory of Logmark or Apache Kafka.", exit_code=2)
    names = files.listdir(path)
    if META not in names and CATALOG not in names and not any(_FOLDER.fullmatch(name) for name in names):
        raise UserError(
            f"{path} is not a data directory: it has neither {META} nor a folder of a partition.", exit_code=2
        )
    try:
        lock = files.lock(f"{path}/{LOCK}")
    except OSError as error:
        raise UserError(f"{path}/{LOCK} cannot be opened: {error.strerror}. Nothing was changed.") from error
    if lock is None:
        raise UserError(
            f"The data directory {path} is in use by a running broker, which writes while others look. Nothing was "
            "changed. Stop the broker, or look at a backup."
        )
    return lock


class Verification:
    """One data directory that nobody writes to."""

    def __init__(self, path: str, files: FileSystem) -> None:
        self._path = path
        self._files = files
        self._names = files.listdir(path)
        self._folders = [name for name in self._names if files.is_directory(f"{path}/{name}")]
        has_wal = wal.FOLDER in self._names
        self._result = Verified(
            path=path,
            is_ours=CATALOG in self._names,
            is_clean=CLEAN in self._names and not has_wal,
            has_wal=has_wal,
        )
        self._preview: Preview | None = None
        self._topics: dict[str, Entry] = {}
        self._next_producer_id: int | None = None
        self._cluster_id: str | None = None
        self._offsets: dict[str, dict[TopicPartition, int]] = {}
        # The segments that the last clean stop has left; None if there is no list of it.
        self._listed: ListedSegments | None = None
        self._ids: dict[str, tuple[str, bytes]] = {}

    @property
    def size_bytes(self) -> int:
        """How many bytes of batches there are to go through."""
        return sum(self._files.size(path) for path in self._logs())

    def _logs(self) -> Iterator[str]:
        for folder in self._partition_folders():
            for name in self._files.listdir(f"{self._path}/{folder}"):
                if name.endswith(LOG):
                    yield f"{self._path}/{folder}/{name}"

    def _partition_folders(self) -> list[str]:
        return [name for name in self._folders if _FOLDER.fullmatch(name)]

    def run(self, on_progress: Callable[[int], None] = lambda size: None) -> Verified:
        """Verify everything; `on_progress` is called with the number of bytes read."""
        with OverlayFileSystem(self._files) as overlay:
            return self._run(overlay, on_progress)

    def _run(self, overlay: OverlayFileSystem, on_progress: Callable[[int], None]) -> Verified:
        self._check_meta()
        self._check_catalogue()
        self._read_checkpoints()
        if self._result.has_wal:
            self._check_wal(overlay)
        else:
            self._check_additions(overlay)
        for folder in self._folders:
            match = _FOLDER.fullmatch(folder)
            if match is not None and self._is_being_deleted(match["topic"]):
                self._note(folder, "its topic is being deleted", "The next start removes it; it was not looked at.")
            elif match is not None:
                self._finish_swaps(folder, overlay)
                self._check_partition(folder, TopicPartition(match["topic"], int(match["index"])), on_progress)
            elif folder == wal.FOLDER:
                continue
            elif folder in wal.UNFINISHED:
                self._note(folder, "it is left over", "The next start removes it; nothing in it is needed.")
            elif _ASIDE.fullmatch(folder):
                self._note(folder, "it is not in use", "It is deleted, set aside or being moved; it was not looked at.")
            else:
                self._add(FindingKind.CATALOGUE, folder, "it is not the folder of a partition",
                          "A broker refuses to start on such a directory. Move it elsewhere.")  # fmt: skip
        self._check_missing_logs()
        self._check_producer_ids()
        return self._result

    def _is_being_deleted(self, topic: str) -> bool:
        return topic in self._topics and self._topics[topic].is_deleting

    # Top-level files

    def _check_meta(self) -> None:
        if META not in self._names:
            self._add(FindingKind.CATALOGUE, META, "it is missing", "Apache Kafka refuses to start without it, and "
                      "Logmark would take the directory for a new cluster. Restore it from a copy.")  # fmt: skip
            return
        meta = properties.parse(self._files.read(f"{self._path}/{META}").decode("utf-8", "replace"))
        self._cluster_id = meta.get("cluster.id")
        missing = {"cluster.id", "directory.id", "node.id", "version"} - meta.keys()
        if missing or meta["version"] != "1" or not meta["node.id"].isdigit():
            self._add(FindingKind.CATALOGUE, META,
                      f"it is not whole ({', '.join(sorted(missing)) or 'version or node.id'})",
                      "No broker starts on it. Restore it from a copy.")  # fmt: skip

    def _check_catalogue(self) -> None:
        if not self._result.is_ours:
            return
        content = self._files.read(f"{self._path}/{CATALOG}")
        try:
            catalogue = Catalog(content, path=f"{self._path}/{CATALOG}", cluster_id=self._cluster_id)
            self._next_producer_id = int(json.loads(content)["next_producer_id"])
        except UserError as error:
            self._add(FindingKind.CATALOGUE, CATALOG, str(error).rstrip("."), "Without it nobody knows the topics.")
            return
        for entry in catalogue.deleting():
            self._note(CATALOG, f"topic {entry.name} is being deleted", "The next start removes its folders.")
        for entry in (*catalogue.entries(), *catalogue.deleting()):
            self._topics[entry.name] = entry
            self._result.topic_ids[entry.name] = entry.id
            try:
                check_name(entry.name)
                TopicSettings(entry.overrides)
            except Refused as refused:
                self._add(FindingKind.CATALOGUE, CATALOG, f"topic {entry.name}: {refused.message or refused}",
                          "The broker refuses to start with it. Correct the entry.")  # fmt: skip
            if len(entry.id) != 16 or entry.partitions < 1:
                self._add(FindingKind.CATALOGUE, CATALOG, f"topic {entry.name} has no whole id or no partitions",
                          "Restore the file from a copy.")  # fmt: skip

    def _read_checkpoints(self) -> None:
        for name, meaning in _CHECKPOINTS.items():
            self._offsets[name] = {}
            if name in self._names:
                try:
                    self._offsets[name] = checkpoints.read_offsets(self._files.read(f"{self._path}/{name}"))
                except Malformed as error:
                    self._result.wrong_checkpoints.append(name)
                    self._add(FindingKind.STATE, name, str(error), f"It is not used. {meaning} A repair sets it aside, "
                              "or writes it again if its content is known.")  # fmt: skip
        found = None
        try:
            found = CleanStop.read(self._path, self._files).read_segment_list()
            if found is not None:
                self._listed = found.segments
        except Malformed as error:
            self._result.wrong_checkpoints.append(checkpoints.SEGMENTS)
            self._add(FindingKind.STATE, checkpoints.SEGMENTS, str(error), "It is not used. Without it the next "
                      "start does not notice that a segment is missing. A repair sets it aside.")  # fmt: skip

        self._check_sealed(found)

    def _check_sealed(self, listed: SegmentList | None) -> None:
        """Compare Kafka's files without checksum with what a start believes."""
        cleaned = None if CLEANED in self._result.wrong_checkpoints else self._offsets[CLEANED]
        of_kafka = SealedOffsets(self._offsets[checkpoints.LOG_STARTS], cleaned)
        known = sealed_offsets.read_in_force(self._path, self._files, listed, of_kafka)
        self._compare(checkpoints.LOG_STARTS, known.log_starts, "the log starts at")
        if known.cleaned is None:
            # Nobody knows any more which logs were cleaned, so that any log may have holes.
            keys = (folder_names.partition_of(name) for name in self._folders)
            self._offsets[CLEANED] = self._result.right_offsets[CLEANED] = {key: 0 for key in keys if key is not None}
        else:
            self._compare(CLEANED, known.cleaned, "the log was cleaned up to")

    def _compare(self, name: str, in_force: Mapping[TopicPartition, int], meaning: str) -> None:
        said = self._offsets[name]
        self._offsets[name] = dict(in_force)
        if said == in_force:
            return
        self._result.right_offsets[name] = in_force
        # A crash may have come between the writes of the two files.
        kind = FindingKind.NOTE if self._result.has_wal else FindingKind.STATE
        for key in sorted(said.keys() | in_force.keys()):
            wrong, right = said.get(key), in_force.get(key)
            if wrong != right and (name == CLEANED or (wrong or 0) != (right or 0)):
                said_of_log = "nothing" if wrong is None else wrong
                truth = "the log was never cleaned" if right is None else f"{meaning} {right}"
                self._add(kind, name, f"it says {said_of_log} for {key}, and {truth}", "The next start goes by that, "
                          "and Apache Kafka would go by this file. A repair writes it again.")  # fmt: skip

    # The write-ahead log

    def _check_wal(self, overlay: OverlayFileSystem) -> None:
        """Check the WAL, and continue with the segments as its recovery will leave them."""
        try:
            before = recovery_preview.segment_sizes(self._path, self._files)
            found = self._preview = recovery_preview.replay_on(overlay, self._path)
        except UserError as error:
            self._add(FindingKind.RECORDS, wal.FOLDER, str(error).rstrip("."), "No broker starts on the directory. "
                      "Acknowledged records may be in the write-ahead log only.")  # fmt: skip
            return
        # From here on everything is read as the recovery will leave it.
        self._files = overlay
        self._folders = [name for name in overlay.listdir(self._path) if overlay.is_directory(f"{self._path}/{name}")]
        for first, last in found.content.damaged:
            which = f"entry {first}" if first == last else f"entries {first} to {last}"
            self._add(FindingKind.RECORDS, wal.FOLDER, f"{which} cannot be read", "Records in it were acknowledged, "
                      "and are lost where the segments do not have them.")  # fmt: skip
        entries = found.content.entry_count
        self._note(wal.FOLDER, f"the last stop was a crash; it holds {entries} entr{'y' if entries == 1 else 'ies'}",
                   "The next start, or `logmark recover`, does what the next lines say.")  # fmt: skip
        for one in found.partitions:
            self._note(f"{one.topic}-{one.partition}", f"a recovery writes offsets {one.first_offset} to "
                       f"{one.end_offset - 1} ({one.bytes} bytes)", "They were acknowledged.")  # fmt: skip
        after = recovery_preview.segment_sizes(self._path, overlay)
        for cut in recovery_preview.find_cuts(self._path, before, after, overlay):
            self._note(cut.path, f"a recovery cuts {cut.size_bytes} bytes from byte {cut.position} on",
                       "They were never acknowledged.")  # fmt: skip

    # Additions

    def _check_additions(self, overlay: OverlayFileSystem) -> None:
        """Report what was added since the clean stop; continue with the folders as the next start will leave them."""
        if self._listed is None:
            return
        topics = [entry for entry in self._topics.values() if not entry.is_deleting]
        try:
            added_files.check_all_owners(self._path, self._listed, topics, self._files)
        except UserError as error:
            self._result.is_exchanged = True
            problem = str(error).rstrip(".")
            self._add(FindingKind.CATALOGUE, checkpoints.SEGMENTS, problem, "No broker starts on the directory.")
            return
        found = self._result.additions = added_files.find_all(self._path, self._listed, topics, self._files)
        for folder, each in found.items():
            for name, position, problem in each:
                self._result.found.append(
                    Finding(
                        kind=FindingKind.STATE,
                        path=f"{folder}/{name}",
                        problem=problem,
                        position=position,
                        meaning="No broker has written it. The next start, or a repair, keeps it in a file beside the "
                        "log that nobody reads.",
                    )
                )
            added_files.set_aside(f"{self._path}/{folder}", each, overlay)
        self._files = overlay

    # Partitions

    def _finish_swaps(self, folder: str, overlay: OverlayFileSystem) -> None:
        """Continue with a folder as it is when the next start has finished the swaps that a crash interrupted."""
        path = f"{self._path}/{folder}"
        left_over = segment_swap.find_interrupted(self._files.listdir(path))
        if not left_over:
            return
        more = f", and {len(left_over) - 1} more" if len(left_over) > 1 else ""
        self._note(f"{folder}/{left_over[0]}", f"it is left over{more}", "The next start finishes or removes such "
                   "files; the segments were checked as it will leave them.")  # fmt: skip
        segment_swap.finish_interrupted(path, left_over, overlay)
        self._result.interrupted_swaps[folder] = left_over
        self._files = overlay

    def _check_partition(self, folder: str, key: TopicPartition, on_progress: Callable[[int], None]) -> None:
        found = PartitionVerification(
            self._path,
            folder,
            files=self._files,
            cleaned_to=self._cleaned_to(key),
            # A clean stop writes the very end of each log as its recovery point.
            end=self._offsets[checkpoints.RECOVERY_POINTS].get(key) if self._result.is_clean else None,
            is_clean=self._result.is_clean,
            is_ours=self._result.is_ours,
            flushed_to=self._flushed_to(key),
            rebuilt_from=self._rebuilt_from(key),
            log_start_offset=self._offsets[checkpoints.LOG_STARTS].get(key),
            listed=(self._listed or {}).get(key, ()),
            is_synced=self._result.is_ours and (self._result.is_clean or self._preview is not None),
            on_progress=on_progress,
        ).run()
        self._result.partitions.append(found)
        self._result.found += found.found
        self._result.size_bytes += sum(segment.size_bytes for segment in found.segments)
        self._check_owner(found, folder, key)
        if found.segments:
            self._check_offsets(found, folder, key)

    def _flushed_to(self, key: TopicPartition) -> int | None:
        """Return below which offset all files of a partition were durable at the crash; None if no WAL says."""
        if self._preview is None:
            return None
        known = self._preview.recovered.get(key)
        return None if known is None else known.recovery_point

    def _rebuilt_from(self, key: TopicPartition) -> int | None:
        """Return the recovery point, from which on the next start makes indexes again; None after a clean stop."""
        if self._result.is_clean:
            return None
        flushed_to = self._flushed_to(key)
        return self._offsets[checkpoints.RECOVERY_POINTS].get(key, 0) if flushed_to is None else flushed_to

    def _cleaned_to(self, key: TopicPartition) -> int | None:
        """Return how far a log was cleaned; a log that never was has no gaps."""
        # Kafka cleans its own topics.
        is_cleaned_anyway = key.topic in INTERNAL_TOPICS and not self._result.is_ours
        return self._offsets[CLEANED].get(key, 0 if is_cleaned_anyway else None)

    def _check_owner(self, found: PartitionFindings, folder: str, key: TopicPartition) -> None:
        """Check that every folder has an id, the topic's, and that the catalogue has it."""
        path = f"{folder}/{METADATA}"
        topic_id = None
        try:
            topic_id = checkpoints.read_partition_metadata(self._files.read(f"{self._path}/{path}"))
        except FileNotFoundError:
            problem = "it is missing"
        except Malformed as error:
            problem = str(error)
        if topic_id is None:
            if found.segments:
                found.metadata_is_wrong = True
                self._add(FindingKind.STATE, path, problem, "A broker refuses to start with it, unless a crash may "
                          "have torn it. A repair takes the id from the catalogue.")  # fmt: skip
        else:
            name, known = self._ids.setdefault(key.topic, (folder, topic_id))
            if known != topic_id:
                here, there = checkpoints.id_text(topic_id), checkpoints.id_text(known)
                problem = f"the topic's id here is {here}, and {there} in {name}"
                self._add(FindingKind.CATALOGUE, path, problem, "One of the folders is of another topic.")
        if not self._result.is_ours or folder == KAFKA_METADATA:
            return
        entry = self._topics.get(key.topic)
        if entry is None or key.partition >= entry.partitions:
            meaning = "Nobody can read it. Restore logmark.catalog from a copy, or move the folder elsewhere."
            self._add(FindingKind.CATALOGUE, folder, "the catalogue does not have this partition", meaning)
        elif topic_id is not None and topic_id != entry.id:
            here, there = checkpoints.id_text(topic_id), checkpoints.id_text(entry.id)
            meaning = "A broker refuses to start with it."
            self._add(FindingKind.CATALOGUE, path, f"its topic id is {here}, and the catalogue's is {there}", meaning)

    def _check_offsets(self, found: PartitionFindings, folder: str, key: TopicPartition) -> None:
        """Check that the log reaches as far as anything that was written after a sync says."""
        end = found.log_end_offset
        promises = [(self._offsets[name].get(key, 0), name) for name in self._promises()]
        if self._result.is_ours:
            promises += [(int(name[:20]), name) for name in found.snapshots]
        if self._preview is not None and key in self._preview.recovered:
            promises.append((self._preview.recovered[key].end, wal.FOLDER))
        promised, who = max(promises)
        if promised > end:
            self._miss(found, folder, promised, who)
        for name in (checkpoints.LOG_STARTS, CLEANED):
            offset = self._offsets[name].get(key, 0)
            if offset > max(end, promised):
                self._add(FindingKind.STATE, folder, f"the log ends at {end}, and {name} says {offset}",
                          "Apache Kafka would drop the log. A repair cannot say which is right.")  # fmt: skip

    def _promises(self) -> Sequence[str]:
        """Return the checkpoints that say what was on disk; after a crash high watermarks may be of a deleted topic."""
        return _PROMISES if self._result.is_clean or not self._result.is_ours else (checkpoints.RECOVERY_POINTS,)

    def _check_missing_logs(self) -> None:
        """Check that every partition has a log if something written after a sync says that it had records."""
        promises = {(key, offset, name) for name in self._promises() for key, offset in self._offsets[name].items()}
        if self._preview is not None:
            promises |= {(key, found.end, wal.FOLDER) for key, found in self._preview.recovered.items()}
        starts = self._offsets[checkpoints.LOG_STARTS]
        ends = {key: (offset, name) for key, offset, name in sorted(promises) if offset > starts.get(key, 0)}
        for key, (promised, name) in ends.items():
            entry, folder = self._topics.get(key.topic), f"{key.topic}-{key.partition}"
            if entry is None or entry.is_deleting or key.partition >= entry.partitions or self._has_log(folder):
                continue
            problem = "it has no segments" if folder in self._folders else "the folder is missing"
            self._result.found.append(
                Finding(
                    kind=FindingKind.RECORDS,
                    path=folder,
                    problem=f"{problem}, and {name} says that the log ends at {promised}",
                    first_offset=starts.get(key, 0),
                    next_offset=promised,
                    meaning="These records are lost. The next start gives none of their offsets out again.",
                    records_lost_max=promised - starts.get(key, 0),
                )
            )

    def _has_log(self, folder: str) -> bool:
        path = f"{self._path}/{folder}"
        return self._files.exists(path) and any(name.endswith(LOG) for name in self._files.listdir(path))

    def _miss(self, found: PartitionFindings, folder: str, promised: int, who: str) -> None:
        """Report records that were on disk once and are missing at the log's end."""
        last = found.segments[-1]
        problem = f"the log ends at {found.log_end_offset}, and {who} says {promised}"
        tail = last.damage[-1] if last.damage and last.damage[-1].next_offset is None else None
        if tail is not None:
            last.damage[-1] = tail._replace(next_offset=promised)
            at = next(at for at, one in enumerate(self._result.found)
                      if one.position == tail.position and one.path.startswith(f"{folder}/"))  # fmt: skip
            self._result.found[at] = of_damage(self._result.found[at].path, last.damage[-1])
            return
        if last.torn is not None:
            last.damage.append(last.torn._replace(next_offset=promised))
            last.torn = None
        else:
            last.gap = Damage(last.size_bytes, 0, found.log_end_offset, promised, problem)
        self._result.found.append(
            Finding(
                kind=FindingKind.RECORDS,
                path=folder,
                problem=problem,
                first_offset=found.log_end_offset,
                next_offset=promised,
                meaning="Records that were on disk are missing at its end. A repair makes that a gap.",
                records_lost_max=promised - found.log_end_offset,
            )
        )

    def _check_producer_ids(self) -> None:
        highest = max((found.producer_id_max for found in self._result.partitions), default=-1)
        if self._next_producer_id is not None and highest >= self._next_producer_id:
            problem = f"the next free producer id is {self._next_producer_id}, and {highest} has written"
            meaning = "Two producers could get the same id. The catalogue is older than the logs."
            self._add(FindingKind.CATALOGUE, CATALOG, problem, meaning)

    def _note(self, path: str, problem: str, meaning: str) -> None:
        self._add(FindingKind.NOTE, path, problem, meaning)

    def _add(self, kind: FindingKind, path: str, problem: str, meaning: str) -> None:
        self._result.found.append(Finding(kind=kind, path=path, problem=problem, meaning=meaning))
