"""A replay that has begun, as it is remembered beside the pipeline's record, so that it can be gone on with."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from dataclasses import fields as dataclass_fields
from enum import StrEnum
from pathlib import Path

from logmark.client.answers import Committed
from logmark.errors import UserError
from logmark.names import TopicPartition
from logmark.spark.errors import Superseded
from logmark.spark.pipelines.home import Home, write_whole
from logmark.spark.source.position import Offsets

_FILE = "replay.json"


class Kind(StrEnum):
    """What a replay does.

    LIVE    the pipeline reads again as it runs: rows replace those of the same offsets
    COPY    what was read again goes to a side topic, and what of it was not sent before is sent; the pipeline runs on
    SWAP    a version is built beside, and takes the place of the live one
    BACK    a version that was live before takes that place again
    """

    LIVE = "live"
    COPY = "copy"
    SWAP = "swap"
    BACK = "back"


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """A version on its way.

    From `is_prepared` on whatever is in its table, its side topic and its group was made by it.
    From `is_handing_over` on the live version must not run any more: it would send what the new one has sent already.
    `is_handed_over` says that what the version made is where readers look.
    `replaced` is the version that was live until this one was: what is not kept of it is removed at the very end.
    """

    number: int
    kind: Kind
    starts: Offsets = field(default_factory=dict)
    stops: Offsets = field(default_factory=dict)
    keep: bool = True
    keep_side_topic: bool = False
    without_id: str | None = None
    is_prepared: bool = False
    is_handing_over: bool = False
    is_handed_over: bool = False
    replaced: int | None = None
    before: Mapping[TopicPartition, Committed] = field(default_factory=dict)  # what the pipeline's group had


def read_work(home: Home) -> Work | None:
    """The replay that has begun and is not done."""
    path = _path(home)
    try:
        fields = json.loads(path.read_text())
        fields |= {"kind": Kind(fields["kind"]), "starts": _flat(fields["starts"]), "stops": _flat(fields["stops"])}
        before = {
            TopicPartition(topic, partition): Committed(offset=offset, metadata=metadata)
            for topic, partition, offset, metadata in fields["before"]
        }
        return Work(**fields | {"before": before})
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise UserError(
            f"{path} cannot be read, so nobody knows how far the replay was. Nothing was changed. Take the file away "
            "and begin the replay again."
        ) from None


def taking_over(home: Home) -> Work | None:
    """The replay because of which the live version must not run any more, if one is that far and not done."""
    work = read_work(home)
    return work if work is not None and work.is_handing_over and work.number != home.record().live else None


def check_may_run(home: Home) -> None:
    """Raises a sentence if another version is being put in the place of the live one."""
    work = taking_over(home)
    if work is not None:
        raise Superseded(
            f"Version {work.number} of {home.name} is being put in place, and that is not done: version "
            f"{home.record().live} must not run any more, because it would make again what was handed over already. "
            f"Nothing was read or written. Go on with `logmark pipelines replay {home.name}`, and run it then."
        )


def remember_work(home: Home, work: Work) -> None:
    """The replay is on disk as it is now."""
    before = [[place.topic, place.partition, one.offset, one.metadata] for place, one in sorted(work.before.items())]
    fields = {one.name: getattr(work, one.name) for one in dataclass_fields(work)}
    fields |= {"starts": _nested(work.starts), "stops": _nested(work.stops), "before": before}
    write_whole(_path(home), json.dumps(fields, indent=1) + "\n")


def forget_work(home: Home) -> None:
    """There is no replay that has begun."""
    _path(home).unlink(missing_ok=True)


def _path(home: Home) -> Path:
    return home.folder / _FILE


def _nested(offsets: Offsets) -> dict[str, dict[str, int]]:
    nested: dict[str, dict[str, int]] = {}
    for place, offset in sorted(offsets.items()):
        nested.setdefault(place.topic, {})[str(place.partition)] = offset
    return nested


def _flat(nested: Mapping[str, Mapping[str, int]]) -> dict[TopicPartition, int]:
    return {TopicPartition(topic, int(one)): offset for topic, some in nested.items() for one, offset in some.items()}
