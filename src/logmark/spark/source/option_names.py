"""The names of options: which are known, which change nothing, which are refused, and what a mistyped one resembles."""

import difflib
import re
from collections.abc import Mapping

from logmark.errors import UserError
from logmark.offsets.times import parse_duration
from logmark.wire.primitives import STRING_BYTES_MAX

INT32_MAX, INT64_MAX = 2**31 - 1, 2**63 - 1
_DAYS_MAX = 100_000  # 273 years: Python's waits end at 292
_SHOWN_MAX = 40
_TOPIC = re.compile(r"(?!\.{1,2}\Z)[a-zA-Z0-9._-]{1,249}")

# What the reader does something with.
NAMES = (
    "bootstrap.servers", "subscribe", "subscribePattern", "assign", "group.id", "group.id.before", "groupIdPrefix",
    "stateful",
    "auto.offset.reset",
    "startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp", "startingOffsetsByTimestampStrategy",
    "endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp", "failOnDataLoss", "maxOffsetsPerTrigger",
    "maxBytesPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay", "minPartitions", "maxRecordsPerPartition",
    "includeHeaders", "isolation.level", "waitForBroker", "partition.metadata.cache.ttl.ms", "metadata.max.age.ms",
    "client.id", "max.partition.fetch.bytes", "fetch.max.bytes", "fetchesInFlight", "value.format",
    "value.schema", "deadLetters.topic", "deadLetters.pipeline", "takeover", "group.owner", "tombstones", "columns",
)  # fmt: skip
# Of these Spark's connector has the name without kafka. before it, and Kafka's clients the one with it.
_KAFKAS = frozenset(
    (
        "bootstrap.servers", "group.id", "auto.offset.reset", "isolation.level", "metadata.max.age.ms", "client.id",
        "max.partition.fetch.bytes", "fetch.max.bytes",
    )
)  # fmt: skip
# They tune what is not there: a read is sent again for as long as `waitForBroker` says, and nothing joins a group.
WITHOUT_EFFECT = frozenset(
    (
        "kafkaconsumer.polltimeoutms", "fetchoffset.numretries", "fetchoffset.retryintervalms",
        "kafka.max.poll.records", "kafka.max.poll.interval.ms", "kafka.session.timeout.ms",
        "kafka.heartbeat.interval.ms", "kafka.fetch.min.bytes", "kafka.fetch.max.wait.ms", "kafka.request.timeout.ms",
        "kafka.default.api.timeout.ms", "kafka.receive.buffer.bytes", "kafka.send.buffer.bytes",
        "kafka.reconnect.backoff.ms", "kafka.reconnect.backoff.max.ms", "kafka.retry.backoff.ms",
        "kafka.retry.backoff.max.ms", "kafka.connections.max.idle.ms", "kafka.socket.connection.setup.timeout.ms",
        "kafka.socket.connection.setup.timeout.max.ms", "kafka.client.dns.lookup", "kafka.check.crcs",
        "kafka.allow.auto.create.topics", "kafka.exclude.internal.topics", "kafka.metric.reporters",
        "kafka.metrics.num.samples", "kafka.metrics.recording.level", "kafka.metrics.sample.window.ms",
        "kafka.enable.metrics.push", "kafka.auto.include.jmx.reporter", "kafka.client.rack", "kafka.retries",
        "kafka.partition.assignment.strategy", "kafka.group.instance.id",
    )
)  # fmt: skip
REFUSED = {
    "kafka.enable.auto.commit": (
        "The option kafka.enable.auto.commit cannot be set: offsets are committed when Spark has finished a batch."
    ),
    "kafka.auto.commit.interval.ms": (
        "The option kafka.auto.commit.interval.ms cannot be set: offsets are committed when Spark has finished a batch."
    ),
    "kafka.key.deserializer": (
        "The option kafka.key.deserializer cannot be set: key is a binary column, which you cast or decode yourself."
    ),
    "kafka.value.deserializer": (
        "The option kafka.value.deserializer cannot be set: value is a binary column, which you cast or decode "
        "yourself, or columns of your own with value.format=json."
    ),
    "kafka.interceptor.classes": (
        "The option kafka.interceptor.classes cannot be set: records are read without Kafka's Java consumer."
    ),
    "kafka.group.protocol": (
        "The option kafka.group.protocol cannot be set: a stream commits to its group without being a member of it."
    ),
    "kafka.group.remote.assignor": (
        "The option kafka.group.remote.assignor cannot be set: a stream is no member of its group."
    ),
    "kafka.config.providers": (
        "The option kafka.config.providers cannot be set: give the values themselves, or read them in your program."
    ),
}
_SECURITY = ("security.", "sasl.", "ssl.", "enable.ssl.")
_SPARK_ADDS = frozenset({"path"})
_KNOWN = {name.lower(): name for name in NAMES}


def split_options(given: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Return our options in lower case, and the client's properties; raises UserError for an unknown option."""
    ours: dict[str, str] = {}
    client: dict[str, str] = {}
    for name, value in given.items():
        plain = name.lower()
        bare = plain.removeprefix("kafka.")
        if plain in WITHOUT_EFFECT or plain in _SPARK_ADDS:
            continue
        if plain in REFUSED:
            ours[plain] = value
        elif plain in _KNOWN or bare in _KAFKAS:
            _put(ours, bare, str(value).strip())
        elif bare.startswith(_SECURITY):
            _put(client, bare, value)
        else:
            raise UserError(f'format("logmark") has no option {name}.{_hint(plain)} Nothing was read.')
    return ours, client


def _put(into: dict[str, str], name: str, value: str) -> None:
    if into.get(name, value) != value:
        raise UserError(f"{name} and kafka.{name} say different things. Keep one of them. Nothing was read.")
    into[name] = value


def _hint(plain: str) -> str:
    known = {**_KNOWN, **{f"kafka.{name}": f"kafka.{name}" for name in _KAFKAS}}
    known |= {name: name for name in (*WITHOUT_EFFECT, *REFUSED)}
    close = difflib.get_close_matches(plain, known, n=1, cutoff=0.7)
    if close:
        return f" Did you mean {known[close[0]]}?"
    if plain.startswith("kafka."):
        return " Kafka's own settings that it knows are listed in docs/spark-source.md."
    return " It knows: " + ", ".join(NAMES) + ", and kafka.security.*, kafka.sasl.*, kafka.ssl.*."


def parse_choice(ours: Mapping[str, str], name: str, allowed: tuple[str, ...]) -> str | None:
    """Return the option as one of these words; None if it was not given."""
    value = ours.get(name.lower())
    if value is None or value.lower() in allowed:
        return None if value is None else value.lower()
    raise UserError(
        f"The option {name} must be {', '.join(allowed[:-1])} or {allowed[-1]}, not {quote_value(value)}. Nothing was "
        "read."
    )


def is_true(ours: Mapping[str, str], name: str) -> bool:
    """Return whether the option was given and is true."""
    return parse_choice(ours, name, ("true", "false")) == "true"


def quote_value(value: str) -> str:
    """Return the value in quotes, cut off where it is too long for a message."""
    return repr(value if len(value) <= _SHOWN_MAX else f"{value[:_SHOWN_MAX]}…")


def parse_whole(text: str, most: int = INT64_MAX) -> int | None:
    """Return the number that these digits are; None if they are none, or more than that."""
    digits = text.lstrip("0")
    if not text.isdecimal() or len(digits) > len(str(most)):  # Python reads no number of 5,000 digits
        return None
    number = int(digits or "0")
    return number if number <= most else None


def parse_count(ours: Mapping[str, str], name: str, most: int = INT64_MAX) -> int | None:
    """Return the option as a whole number above 0; None if it was not given."""
    value = ours.get(name.lower())
    if value is None:
        return None
    number = parse_whole(value, most)
    if not number:
        limit = f" and at most {most}" if value.isdecimal() else ""
        raise UserError(
            f"The option {name} must be a whole number above 0{limit}, not {quote_value(value)}. Nothing was read."
        )
    return number


def parse_seconds(ours: Mapping[str, str], name: str, default_s: float) -> float:
    """Return the option in seconds; it may be 15m, 1h30m or PT15M, and a bare number is milliseconds, as in Spark."""
    value = ours.get(name.lower())
    if value is None:
        return default_s
    return parse_duration_ms(f"{value}ms" if value.isdecimal() else _spelt(value), name) / 1000


def parse_duration_ms(text: str, name: str) -> int:
    """Return a length of time that an option gives, in milliseconds."""
    try:
        length = parse_duration(text)
    except UserError as error:
        raise UserError(f"The option {name}: {error} Nothing was read.") from None
    except OverflowError:
        length = None
    if length is None or length > _DAYS_MAX * 86_400_000:
        raise UserError(
            f"The option {name} gives a length of time of {quote_value(text)}. The longest is {_DAYS_MAX}d. Nothing "
            "was read."
        )
    return length


def parse_text(ours: Mapping[str, str], name: str, *, room: int = 0) -> str | None:
    """Return the option as a text that Kafka can carry with `room` bytes more; None if it is missing or empty."""
    value = ours.get(name.lower()) or None
    most = STRING_BYTES_MAX - room
    if value is not None and len(value.encode(errors="replace")) > most:
        raise UserError(
            f"The option {name} is {quote_value(value)}, of {len(value):,} characters. Kafka carries {most:,} bytes "
            "there. Nothing was read."
        )
    return value


def check_topic(topic: str, name: str) -> None:
    """Raise UserError if the option names a topic that cannot be."""
    if not _TOPIC.fullmatch(topic):
        raise UserError(
            f"The option {name} names the topic {quote_value(topic)}, and no topic can be called that: a name has 1 to "
            "249 letters, digits, dots, underscores and hyphens, and is not . or .. alone. Nothing was read."
        )


def _spelt(value: str) -> str:
    """Return Spark's units, which are longer than ours: 30 seconds, 15min."""
    text = value.replace(" ", "").lower()
    if text.startswith("p"):
        return text
    for unit, short in (("milliseconds", "ms"), ("seconds", "s"), ("second", "s"), ("minutes", "m"), ("minute", "m"),
                        ("min", "m"), ("hours", "h"), ("hour", "h"), ("days", "d"), ("day", "d")):  # fmt: skip
        if text.endswith(unit):
            return text.removesuffix(unit) + short
    return text
