"""The broker's settings: Kafka's server.properties names, read once, each with its reason to be here.

A name of Kafka's that means nothing on one node is accepted with a warning; a name that nobody knows is refused.
"""

import builtins
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from logmark.errors import UserError
from logmark.log.settings import INT_MAX, LONG_MAX, SETTINGS, whole

_HOUR_MS = 3_600_000
_MINUTE_MS = 60_000


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSetting:
    """One setting: its kind, default and bounds."""

    name: str
    kind: str
    default: str
    low: int = 0
    high: int = LONG_MAX
    documentation: str = ""

    def check(self, text: str) -> None:
        """Check a value of this setting. Raises ValueError with the reason if it is none."""
        if self.kind in ("INT", "LONG"):
            if not self.low <= whole(text) <= self.high:
                raise ValueError(f"must be between {self.low} and {self.high}")
        elif self.kind == "BOOLEAN" and text.lower() not in ("true", "false"):
            raise ValueError("must be true or false")


def _int(name: str, default: int, documentation: str, *, low: int = 0, high: int = LONG_MAX) -> BrokerSetting:
    kind = "INT" if high <= INT_MAX else "LONG"
    return BrokerSetting(name=name, kind=kind, default=str(default), low=low, high=high, documentation=documentation)


def _bool(name: str, default: bool, documentation: str) -> BrokerSetting:
    return BrokerSetting(name=name, kind="BOOLEAN", default=str(default).lower(), documentation=documentation)


def _list(name: str, default: str, documentation: str) -> BrokerSetting:
    return BrokerSetting(name=name, kind="LIST", default=default, documentation=documentation)


BROKER_SETTINGS: Mapping[str, BrokerSetting] = {
    setting.name: setting
    for setting in (
        _list("log.dirs", "", "The data directory."),
        _list("listeners", "", "Where to listen: PLAINTEXT://HOST:PORT, several with commas."),
        _list("advertised.listeners", "", "What clients are told to connect to, one for each listener."),
        _int("num.partitions", 1, "Partitions of a topic created without a count.", low=1, high=10_000),
        _int("partitions.max", 20_000, "Partitions of all topics together; each takes memory.", high=INT_MAX),
        _bool("auto.create.topics.enable", True, "Asking for a topic's metadata creates it."),
        _bool("delete.topic.enable", True, "Topics can be deleted."),
        _int("socket.request.max.bytes", 104_857_600, "The largest request.", low=1024, high=INT_MAX),
        _int("client.memory.max.bytes", 0, "Memory that all clients together may take; 0 is 256 MiB or less.", low=0),
        _int("max.decompressed.message.bytes", 104_857_600, "The most that one batch may unpack to.", low=1024),
        _int("max.connections", 10_000, "Connections at one time; fewer if descriptors are few.", high=INT_MAX),
        _int("max.connections.per.ip", INT_MAX, "Connections of one address at one time.", high=INT_MAX),
        _list("max.connections.per.ip.overrides", "", "The same for single hosts: HOST:COUNT, several with commas."),
        _int("connections.max.idle.ms", 600_000, "A connection without requests is closed after this.", low=1000),
        _int("fetch.max.bytes", 57_671_680, "The most that one fetch answers.", low=1024, high=INT_MAX),
        _int("max.incremental.fetch.session.cache.slots", 1000, "Fetch sessions kept.", high=INT_MAX),
        _int("log.retention.check.interval.ms", 300_000, "How often old segments are looked for.", low=1),
        _int("log.initial.task.delay.ms", 30_000, "When they are looked for first after start."),
        _int("log.flush.offset.checkpoint.interval.ms", 60_000, "When recovery points are kept.", low=1, high=INT_MAX),
        _int("wal.max.bytes", 268_435_456, "The write-ahead log's size at which records wait.", low=67_108_864),
        _bool("log.cleaner.enable", True, "Compacted logs are cleaned."),
        _int("log.cleaner.backoff.ms", 15_000, "How often dirty logs are looked for."),
        _int("log.cleaner.dedupe.buffer.size", 134_217_728, "Memory for the keys of one cleaning.", low=1_048_576),
        _int("log.cleaner.io.buffer.size", 524_288, "How much a cleaning reads at once.", low=61, high=INT_MAX),
        _int("producer.id.expiration.ms", 86_400_000, "An idle producer's sequence is forgotten.", low=1, high=INT_MAX),
        _int("offsets.retention.minutes", 10_080, "Idle committed offsets expire.", low=1, high=INT_MAX),
        _int("offsets.retention.check.interval.ms", 600_000, "How often expired offsets are looked for.", low=1),
        _int("offset.metadata.max.bytes", 4096, "The longest metadata of a committed offset.", high=INT_MAX),
        _int("offsets.topic.num.partitions", 50, "Fixed: groups would not be found again.", low=50, high=50),
        _int("offsets.topic.segment.bytes", 104_857_600, "Its segment.bytes.", low=1_048_576, high=INT_MAX),
        _int("group.initial.rebalance.delay.ms", 3000, "A new group waits for more members.", high=INT_MAX),
        _int("group.min.session.timeout.ms", 6000, "The shortest session a member may ask for.", high=INT_MAX),
        _int("group.max.session.timeout.ms", 1_800_000, "The longest session a member may ask for.", high=INT_MAX),
        _int("group.max.size", INT_MAX, "Members of one group.", low=1, high=INT_MAX),
        _int("group.member.max.bytes", 1_048_576, "Metadata or assignment of one member.", low=1024, high=INT_MAX),
        _int("group.max.bytes", 16_777_216, "Metadata of all members of one group.", low=1024, high=INT_MAX),
    )
}

# One name, several units: the finest wins, as in Kafka.
_OTHER_UNITS: Mapping[str, tuple[str, int]] = {
    "log.retention.minutes": ("log.retention.ms", _MINUTE_MS),
    "log.retention.hours": ("log.retention.ms", _HOUR_MS),
    "log.roll.hours": ("log.roll.ms", _HOUR_MS),
    "log.roll.jitter.hours": ("log.roll.jitter.ms", _HOUR_MS),
}

_TOPIC_DEFAULTS: Mapping[str, str] = {
    setting.broker_name: name for name, setting in SETTINGS.items() if setting.broker_name is not None
}

# What a topic inherits from the broker can be asked for as any setting of the broker.
_ALL_SETTINGS = (
    *BROKER_SETTINGS.values(),
    *(
        BrokerSetting(
            name=setting.broker_name, kind=setting.kind, default=setting.default, documentation=setting.documentation
        )
        for setting in SETTINGS.values()
        if setting.broker_name is not None
    ),
)

# Names of a server.properties that a single node has no use for.
_WITHOUT_MEANING_EXACT = frozenset((
    "auto.leader.rebalance.enable", "background.threads", "broker.heartbeat.interval.ms", "broker.id",
    "broker.rack", "broker.session.timeout.ms", "default.replication.factor",
    "delete.records.purgatory.purge.interval.requests",
    "early.start.listeners", "fetch.purgatory.purge.interval.requests", "inter.broker.listener.name",
    "inter.broker.protocol.version", "log.dir", "log.flush.scheduler.interval.ms",
    "log.flush.start.offset.checkpoint.interval.ms", "log.message.downconversion.enable",
    "log.message.format.version", "max.connection.creation.rate", "message.downconversion.enable",
    "metric.reporters", "metrics.num.samples", "metrics.recording.level", "metrics.sample.window.ms", "node.id",
    "num.io.threads", "num.network.threads", "num.recovery.threads.per.data.dir", "num.replica.fetchers",
    "offsets.commit.timeout.ms", "offsets.load.buffer.size", "offsets.topic.compression.codec",
    "offsets.topic.replication.factor", "process.roles", "producer.id.expiration.check.interval.ms",
    "producer.purgatory.purge.interval.requests", "queued.max.request.bytes", "queued.max.requests",
    "request.timeout.ms",
    "security.inter.broker.protocol", "unclean.leader.election.enable",
))  # fmt: skip
_WITHOUT_MEANING_PREFIXES = (
    "controller.", "controlled.shutdown.", "replica.", "leader.", "zookeeper.", "transaction.", "transactional.",
    "group.consumer.", "group.coordinator.", "group.share.", "group.streams.", "socket.", "connection.failed.",
    "listener.security.", "confluent.", "remote.log.", "log.cleaner.", "metadata.", "kafka.", "quota.",
    "replication.quota.", "telemetry.", "share.", "initial.broker.", "sasl.kerberos.",
)  # fmt: skip


class BrokerConfig:
    """Every setting of this broker by Kafka's name."""

    def __init__(self, given: Mapping[str, str] | None = None) -> None:
        """Read settings; raises UserError for unknown names and impossible values. `warnings` says what was ignored."""
        self.warnings: list[str] = []
        self._given: dict[str, str] = {}
        by_unit: dict[str, str] = {}
        for name, text in (given or {}).items():
            self._take(name.strip(), text.strip(), by_unit)
        self._given = {**by_unit, **self._given}

    def _take(self, name: str, text: str, by_unit: dict[str, str]) -> None:
        try:
            if name in BROKER_SETTINGS:
                BROKER_SETTINGS[name].check(text)
                self._given[name] = text
            elif name in _TOPIC_DEFAULTS:
                SETTINGS[_TOPIC_DEFAULTS[name]].read(text)
                self._given[name] = text
            elif name in _OTHER_UNITS:
                target, unit_ms = _OTHER_UNITS[name]
                # Hours come before minutes in no particular order of the file: the finer unit overrides.
                if target not in by_unit or unit_ms == _MINUTE_MS:
                    by_unit[target] = str(whole(text) * unit_ms if whole(text) >= 0 else -1)
            elif name in _WITHOUT_MEANING_EXACT or name.startswith(_WITHOUT_MEANING_PREFIXES):
                self.warnings.append(f"{name} has no meaning on a single Logmark node and is left aside.")
            else:
                raise UserError(
                    f"Unknown setting {name!r}: it is neither one of Kafka's server.properties nor Logmark's. "
                    "Nothing was started; correct the name or take the line out.",
                    exit_code=2,
                )
        except ValueError as error:
            raise UserError(
                f"Setting {name}={text!r} is not possible: {error}. Nothing was started; correct it.", exit_code=2
            ) from None

    def text(self, name: str) -> str:
        """Return the text in force for a broker setting."""
        return self._given.get(name, BROKER_SETTINGS[name].default)

    def is_given(self, name: str) -> builtins.bool:
        """Return whether somebody has given this setting a value."""
        return name in self._given

    def int(self, name: str) -> builtins.int:
        """Return the number in force for a broker setting."""
        return builtins.int(self.text(name))

    def bool(self, name: str) -> builtins.bool:
        """Return the boolean in force for a broker setting."""
        return self.text(name).lower() == "true"

    def in_force(self) -> Iterator[tuple[BrokerSetting, str | None]]:
        """Return every setting, what topics inherit included, with the text that somebody gave it."""
        return ((setting, self._given.get(setting.name)) for setting in _ALL_SETTINGS)

    def topic_defaults(self) -> dict[str, str]:
        """Return the topic settings whose default this broker's file changed."""
        return {_TOPIC_DEFAULTS[name]: text for name, text in self._given.items() if name in _TOPIC_DEFAULTS}
