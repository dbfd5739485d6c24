"""A topic's settings: Kafka's names, Kafka's defaults, checked before anything is kept.

The table SETTINGS is the documentation: name, how it is read, its default, the broker-wide name it inherits from.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from logmark.errors import ErrorCode, Refused

LONG_MAX = 2**63 - 1
INT_MAX = 2**31 - 1


def _integer(low: int, high: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        value = whole(text)
        if not low <= value <= high:
            raise ValueError(f"must be between {low} and {high}")
        return value

    return read


def whole(text: str) -> int:
    """Return the number that Java reads in the text: Python would also read 1_000."""
    if not _WHOLE.fullmatch(text.strip()):
        raise ValueError("must be a whole number")
    return int(text)


_WHOLE = re.compile(r"[+-]?\d+")


def _ratio(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise ValueError("must be a number") from None
    if not 0 <= value <= 1:
        raise ValueError("must be between 0 and 1")
    return value


def _boolean(text: str) -> bool:
    word = text.strip().lower()
    if word not in ("true", "false"):
        raise ValueError("must be true or false")
    return word == "true"


def _no(text: str) -> bool:
    if _boolean(text):
        raise ValueError("must be false: there is no tiered storage here")
    return False


def _one_of(*choices: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text not in choices:
            raise ValueError(f"must be one of {', '.join(choices)}")
        return text

    return read


def _policies(text: str) -> str:
    chosen = [part.strip() for part in text.split(",")] if text.strip() else []
    if any(part not in ("delete", "compact") for part in chosen):
        raise ValueError("must be delete, compact, both, or empty to keep everything")
    return ",".join(chosen)


def _replicas(text: str) -> str:
    if text.strip() not in ("", "*") and not all(_REPLICA.fullmatch(part.strip()) for part in text.split(",")):
        raise ValueError("must be * or pairs of partition:broker")
    return text


_REPLICA = re.compile(r"[0-9]+:[0-9]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One topic setting: how its text is read, its default and the broker setting it inherits."""

    name: str
    read: Callable[[str], object]
    default: str
    broker_name: str | None
    kind: str
    documentation: str

    @property
    def default_synonym(self) -> str | None:
        """The broker setting that Kafka names beside the default; it names none where that comes in several units."""
        return None if self.broker_name in _IN_SEVERAL_UNITS else self.broker_name


_IN_SEVERAL_UNITS = ("log.retention.ms", "log.roll.ms", "log.roll.jitter.ms", "log.flush.interval.ms")


def _setting(
    name: str, read: Callable[[str], object], default: object, broker_name: str | None, kind: str, documentation: str
) -> Setting:
    return Setting(
        name=name, read=read, default=str(default), broker_name=broker_name, kind=kind, documentation=documentation
    )


_KEPT = "Kept for a hand-over to Apache Kafka; without effect on one node."


def _gzip_level(text: str) -> int:
    level = whole(text)
    if level != -1 and not 1 <= level <= 9:
        raise ValueError("must be -1 or between 1 and 9")
    return level


SETTINGS: Mapping[str, Setting] = {
    setting.name: setting
    for setting in (
        _setting("cleanup.policy", _policies, "delete", "log.cleanup.policy", "LIST",
                 "What happens to old segments: they are deleted, compacted by key, or both."),
        _setting("compression.type", _one_of("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"), "producer",
                 "compression.type", "STRING", "The codec that batches are stored with; producer keeps the sender's."),
        _setting("compression.gzip.level", _gzip_level, -1, "compression.gzip.level", "INT",
                 "The level at which the broker compresses with gzip; one above 6 counts as 6."),
        _setting("compression.lz4.level", _integer(1, 17), 9, "compression.lz4.level", "INT",
                 "The level at which the broker compresses with lz4; one above 9 counts as 9 of the slow compressor."),
        _setting("compression.zstd.level", _integer(-131072, 22), 3, "compression.zstd.level", "INT",
                 "The level at which the broker compresses with zstd; one above 12 counts as 12."),
        _setting("delete.retention.ms", _integer(0, LONG_MAX), 86_400_000, "log.cleaner.delete.retention.ms", "LONG",
                 "How long a tombstone stays readable in a compacted topic."),
        _setting("file.delete.delay.ms", _integer(0, LONG_MAX), 60_000, "log.segment.delete.delay.ms", "LONG",
                 "How long a deleted segment's file stays on disk."),
        _setting("flush.messages", _integer(1, LONG_MAX), LONG_MAX, "log.flush.interval.messages", "LONG",
                 "Kept for hand-over; durability=sync already syncs before every acknowledgement."),
        _setting("flush.ms", _integer(0, LONG_MAX), LONG_MAX, "log.flush.interval.ms", "LONG",
                 "Kept for hand-over; durability=sync already syncs before every acknowledgement."),
        _setting("follower.replication.throttled.replicas", _replicas, "", None, "LIST", _KEPT),
        _setting("index.interval.bytes", _integer(0, INT_MAX), 4096, "log.index.interval.bytes", "INT",
                 "How many bytes of log lie between two index entries."),
        _setting("leader.replication.throttled.replicas", _replicas, "", None, "LIST", _KEPT),
        _setting("local.retention.bytes", _integer(-2, LONG_MAX), -2, "log.local.retention.bytes", "LONG", _KEPT),
        _setting("local.retention.ms", _integer(-2, LONG_MAX), -2, "log.local.retention.ms", "LONG", _KEPT),
        _setting("max.compaction.lag.ms", _integer(1, LONG_MAX), LONG_MAX, "log.cleaner.max.compaction.lag.ms", "LONG",
                 "The longest time a record stays out of compaction."),
        _setting("max.message.bytes", _integer(0, INT_MAX), 1_048_588, "message.max.bytes", "INT",
                 "The largest batch that is accepted, after compression."),
        _setting("message.timestamp.after.max.ms", _integer(0, LONG_MAX), 3_600_000,
                 "log.message.timestamp.after.max.ms", "LONG", "How far in the future a record's time may lie."),
        _setting("message.timestamp.before.max.ms", _integer(0, LONG_MAX), LONG_MAX,
                 "log.message.timestamp.before.max.ms", "LONG", "How far in the past a record's time may lie."),
        _setting("message.timestamp.type", _one_of("CreateTime", "LogAppendTime"), "CreateTime",
                 "log.message.timestamp.type", "STRING", "Who stamps a record: the producer or the broker."),
        _setting("min.cleanable.dirty.ratio", _ratio, 0.5, "log.cleaner.min.cleanable.ratio", "DOUBLE",
                 "How much of a log is uncompacted before compaction runs."),
        _setting("min.compaction.lag.ms", _integer(0, LONG_MAX), 0, "log.cleaner.min.compaction.lag.ms", "LONG",
                 "The shortest time a record stays uncompacted."),
        _setting("min.insync.replicas", _integer(1, INT_MAX), 1, "min.insync.replicas", "INT",
                 _KEPT),
        _setting("preallocate", _boolean, "false", "log.preallocate", "BOOLEAN", _KEPT),
        _setting("remote.log.copy.disable", _boolean, "false", None, "BOOLEAN", _KEPT),
        _setting("remote.log.delete.on.disable", _boolean, "false", None, "BOOLEAN", _KEPT),
        _setting("remote.storage.enable", _no, "false", None, "BOOLEAN",
                 "There is no tiered storage here."),
        _setting("retention.bytes", _integer(-LONG_MAX, LONG_MAX), -1, "log.retention.bytes", "LONG",
                 "The size above which a partition's oldest segments are deleted; a negative one is no limit."),
        _setting("retention.ms", _integer(-1, LONG_MAX), 604_800_000, "log.retention.ms", "LONG",
                 "The age above which a segment is deleted; -1 is for ever."),
        _setting("segment.bytes", _integer(1_048_576, INT_MAX), 1_073_741_824, "log.segment.bytes", "INT",
                 "The size at which a new segment is begun."),
        _setting("segment.index.bytes", _integer(4, INT_MAX), 10_485_760, "log.index.size.max.bytes", "INT",
                 "The size of a segment's index at which a new segment is begun."),
        _setting("segment.jitter.ms", _integer(0, LONG_MAX), 0, "log.roll.jitter.ms", "LONG",
                 "A random part taken off segment.ms, so that partitions do not roll together."),
        _setting("segment.ms", _integer(1, LONG_MAX), 604_800_000, "log.roll.ms", "LONG",
                 "The age at which a new segment is begun."),
        _setting("unclean.leader.election.enable", _boolean, "false", "unclean.leader.election.enable", "BOOLEAN",
                 _KEPT),
    )
}


# All settings of a topic together, each with its largest number, have less than half of it.
OVERRIDES_LENGTH_MAX = 4096


def check(name: str, text: str | None) -> object:
    """Return the value of a setting's text; raise Refused, with the reason, if it is not allowed."""
    setting = SETTINGS.get(name)
    if setting is None:
        raise Refused(ErrorCode.INVALID_CONFIG, f"Unknown topic config name: {name}")
    if text is None:
        raise Refused(ErrorCode.INVALID_CONFIG, f"Null value not supported for topic configs: {name}")
    try:
        return setting.read(text)
    except ValueError as error:
        raise Refused(ErrorCode.INVALID_CONFIG, f"Invalid value {text} for configuration {name}: {error}") from None


def check_size(overrides: Mapping[str, str]) -> None:
    """Refuse overrides that take more memory and room in the catalogue than a topic may; raises Refused."""
    if sum(len(name) + len(text) for name, text in overrides.items()) > OVERRIDES_LENGTH_MAX:
        raise Refused(
            ErrorCode.INVALID_CONFIG,
            f"The settings of a topic may have {OVERRIDES_LENGTH_MAX} characters, names and values together.",
        )


class TopicSettings:
    """A topic's overrides over the broker's defaults, read once into values."""

    def __init__(self, overrides: Mapping[str, str], defaults: Mapping[str, str] | None = None) -> None:
        """Refuse any override that is unknown or out of range; `defaults` maps topic names to broker-wide texts."""
        for name, text in overrides.items():
            check(name, text)
        self.overrides = dict(overrides)
        self._defaults = dict(defaults or {})
        if self._int("min.compaction.lag.ms") > self._int("max.compaction.lag.ms"):
            raise Refused(
                ErrorCode.INVALID_CONFIG,
                f"min.compaction.lag.ms ({self.text('min.compaction.lag.ms')}) is larger than "
                f"max.compaction.lag.ms ({self.text('max.compaction.lag.ms')}).",
            )

    def in_force(self) -> Iterator[tuple[str, str, str]]:
        """Return every setting with the text in force and where it comes from: override, broker or default."""
        for name, setting in SETTINGS.items():
            text = self.text(name)
            inherited = "default" if text == setting.default else "broker"
            yield name, text, "override" if name in self.overrides else inherited

    def text(self, name: str) -> str:
        """Return the text in force for a setting."""
        for texts in (self.overrides, self._defaults):
            if name in texts:
                return texts[name]
        return SETTINGS[name].default

    def _int(self, name: str) -> int:
        return int(self.text(name))

    @cached_property
    def cleanup_policy(self) -> frozenset[str]:
        return frozenset(self.text("cleanup.policy").split(","))

    @cached_property
    def is_compacted(self) -> bool:
        return "compact" in self.cleanup_policy

    @cached_property
    def is_deleted(self) -> bool:
        return "delete" in self.cleanup_policy

    @cached_property
    def compression_type(self) -> str:
        return self.text("compression.type")

    @cached_property
    def compression_level(self) -> int | None:
        """The level of the topic's codec; None if it has none."""
        name = f"compression.{self.compression_type}.level"
        return self._int(name) if name in SETTINGS else None

    @cached_property
    def is_log_append_time(self) -> bool:
        return self.text("message.timestamp.type") == "LogAppendTime"

    @cached_property
    def timestamp_before_max_ms(self) -> int:
        return self._int("message.timestamp.before.max.ms")

    @cached_property
    def timestamp_after_max_ms(self) -> int:
        return self._int("message.timestamp.after.max.ms")

    @cached_property
    def max_message_bytes(self) -> int:
        return self._int("max.message.bytes")

    @cached_property
    def segment_bytes(self) -> int:
        return self._int("segment.bytes")

    @cached_property
    def segment_ms(self) -> int:
        return self._int("segment.ms")

    @cached_property
    def segment_jitter_ms(self) -> int:
        return self._int("segment.jitter.ms")

    @cached_property
    def segment_index_bytes(self) -> int:
        return self._int("segment.index.bytes")

    @cached_property
    def index_interval_bytes(self) -> int:
        return self._int("index.interval.bytes")

    @cached_property
    def retention_ms(self) -> int:
        return self._int("retention.ms")

    @cached_property
    def retention_bytes(self) -> int:
        return self._int("retention.bytes")

    @cached_property
    def dirty_ratio_min(self) -> float:
        return float(self.text("min.cleanable.dirty.ratio"))

    @cached_property
    def compaction_lag_min_ms(self) -> int:
        return self._int("min.compaction.lag.ms")

    @cached_property
    def compaction_lag_max_ms(self) -> int:
        return self._int("max.compaction.lag.ms")

    @cached_property
    def delete_retention_ms(self) -> int:
        return self._int("delete.retention.ms")

    @cached_property
    def file_delete_delay_ms(self) -> int:
        return self._int("file.delete.delay.ms")
