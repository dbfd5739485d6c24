"""The options of `format("logmark")` as a writer, parsed from Spark's text into values; a mistake raises UserError."""

import difflib
import hashlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from logmark.client.properties import Security
from logmark.errors import UserError
from logmark.offsets.times import parse_duration
from logmark.wire import codecs

NAMES = (
    "bootstrap.servers", "topic", "id", "delivery", "compression.type", "batch.size", "waitForBroker", "client.id",
    "checkpointLocation",
)  # fmt: skip
ONCE, AT_LEAST_ONCE = "exactly-once", "at-least-once"
CODECS = ("none", *codecs.NAMES[1:])
STREAM_PATIENCE_S, BATCH_PATIENCE_S = 15 * 60.0, 2 * 60.0
BATCH_BYTES = 1 << 20
_KAFKAS = frozenset(("bootstrap.servers", "compression.type", "batch.size", "client.id"))
# What they tune is not there: a batch goes out when it is full or its task ends, and is sent until it is acknowledged.
WITHOUT_EFFECT = frozenset(
    (
        "acks", "linger.ms", "retries", "enable.idempotence", "delivery.timeout.ms", "request.timeout.ms",
        "max.in.flight.requests.per.connection", "buffer.memory", "max.block.ms", "retry.backoff.ms",
        "retry.backoff.max.ms", "reconnect.backoff.ms", "reconnect.backoff.max.ms", "metadata.max.age.ms",
        "metadata.max.idle.ms", "send.buffer.bytes", "receive.buffer.bytes", "connections.max.idle.ms",
        "max.request.size",
    )
)  # fmt: skip
REFUSED = {
    "partitioner.class": "a key goes to the partition that Kafka's default partitioner gives it; a column partition "
    "names another one",
    "transactional.id": "a batch is written once without transactions; see delivery",
    "key.serializer": "key is a column of strings or binary, which you make yourself",
    "value.serializer": "value is a column of strings or binary, which you make yourself",
    "interceptor.classes": "records are written without Kafka's Java producer",
}
_SECURITY = ("security.", "sasl.", "ssl.", "enable.ssl.")
_SPARK_ADDS = frozenset({"path", "queryname"})
_KNOWN = {name.lower(): name for name in NAMES}


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """What the user asked for; by `id` repeated batches are recognised, None where there is nothing to repeat."""

    bootstrap_servers: str
    topic: str | None = None
    id: str | None = None
    is_once: bool = True
    codec: int = codecs.NONE
    batch_bytes_max: int = BATCH_BYTES
    patience_s: float = STREAM_PATIENCE_S
    client_id: str = "logmark-spark"
    client: Mapping[str, str] = field(default_factory=dict)


def parse_sink_options(given: Mapping[str, str], *, is_stream: bool) -> SinkOptions:
    """Return the options as values; raises UserError for one that is unknown, missing or malformed."""
    ours, client = _split_options(given)
    servers = ours.get("bootstrap.servers")
    if not servers:
        raise UserError(
            "The option bootstrap.servers is missing, so there is no broker to write to. Add for example "
            '.option("bootstrap.servers", "127.0.0.1:9092").'
        )
    Security.of(client)
    is_once = _choice(ours, "delivery", (ONCE, AT_LEAST_ONCE)) == ONCE
    return SinkOptions(
        bootstrap_servers=servers,
        topic=ours.get("topic") or None,
        id=_id(ours, is_stream=is_stream, is_once=is_once),
        is_once=is_once,
        codec=CODECS.index(_choice(ours, "compression.type", CODECS)),
        batch_bytes_max=_size(ours, "batch.size"),
        patience_s=_duration(ours, "waitForBroker", STREAM_PATIENCE_S if is_stream else BATCH_PATIENCE_S),
        client_id=ours.get("client.id") or "logmark-spark",
        client=client,
    )


def _split_options(given: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    ours: dict[str, str] = {}
    client: dict[str, str] = {}
    for name, value in given.items():
        plain = name.lower()
        bare = plain.removeprefix("kafka.")
        if plain in _SPARK_ADDS or bare in WITHOUT_EFFECT:
            continue
        if bare in REFUSED:
            raise UserError(f"The option {name} cannot be set: {REFUSED[bare]}. Nothing was written.")
        if plain in _KNOWN or bare in _KAFKAS:
            _put(ours, bare, str(value).strip())
        elif bare.startswith(_SECURITY):
            _put(client, bare, value)
        else:
            close = difflib.get_close_matches(plain, [*_KNOWN, *(f"kafka.{one}" for one in _KAFKAS)], n=1, cutoff=0.7)
            hint = f"Did you mean {_KNOWN.get(close[0], close[0])}?" if close else f"It knows {', '.join(NAMES)}."
            raise UserError(f'format("logmark") has no option {name} for writing. {hint} Nothing was written.')
    return ours, client


def _put(into: dict[str, str], name: str, value: str) -> None:
    if into.get(name, value) != value:
        raise UserError(f"{name} and kafka.{name} say different things. Keep one of them. Nothing was written.")
    into[name] = value


def _choice(ours: Mapping[str, str], name: str, allowed: tuple[str, ...]) -> str:
    value = ours.get(name.lower(), allowed[0]).lower()
    if value not in allowed:
        raise UserError(f"The option {name} must be {' or '.join(allowed)}, not {value!r}. Nothing was written.")
    return value


def _size(ours: Mapping[str, str], name: str) -> int:
    value = ours.get(name, str(BATCH_BYTES))
    if not value.isdecimal() or int(value) == 0:
        raise UserError(f"The option {name} must be a number of bytes above 0, not {value!r}. Nothing was written.")
    return int(value)


def _duration(ours: Mapping[str, str], name: str, default_s: float) -> float:
    value = ours.get(name.lower())
    if value is None:
        return default_s
    try:
        return (int(value) if value.isdecimal() else parse_duration(value.replace(" ", ""))) / 1000
    except UserError as error:
        raise UserError(f"The option {name}: {error} Nothing was written.") from None


def _id(ours: Mapping[str, str], *, is_stream: bool, is_once: bool) -> str | None:
    """Return the name that the user gave, else one made from the checkpoint's location; a batch write needs none."""
    name = ours.get("id")
    if name:
        if not re.fullmatch(r"[A-Za-z0-9._-]{1,200}", name):
            raise UserError(
                f"The option id must be letters, digits, dots, dashes and underscores, not {name!r}. Nothing was "
                "written."
            )
        return name
    location = ours.get("checkpointlocation")
    if not is_stream or not is_once:
        return None
    if not location:
        raise UserError(
            "A stream that is written exactly once needs the option checkpointLocation or the option id: by it a batch "
            "that is repeated after a restart is recognised. Nothing was written. With delivery=at-least-once it needs "
            "neither."
        )
    return f"{_last_part(location)}-{hashlib.sha256(_plain(location).encode()).hexdigest()[:12]}"


def _plain(location: str) -> str:
    """Return one spelling for the ways to write a directory of this machine; any other location as it is."""
    text = re.sub(r"^file:/+", "/", location)
    return location.rstrip("/") if "://" in text else os.path.abspath(text)


def _last_part(location: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]", "-", location.rstrip("/").rpartition("/")[2])[:100] or "query"
