"""What commands about pipelines print as JSON: every field in its order."""

import json
from collections import Counter
from dataclasses import asdict, replace
from pathlib import Path

from logmark.client.views import view_produced
from logmark.names import TopicPartition
from logmark.offsets.dead_letters.dead_letter import DeadLetter
from logmark.offsets.dead_letters.topic import DeadLetterCounts, StoredDeadLetter
from logmark.offsets.dead_letters.views import view_dead_letter, view_tally
from logmark.offsets.lag.ages import Age, Method
from logmark.spark.pipelines.home import Home
from logmark.spark.pipelines.replay.plan import VersionPlan
from logmark.spark.pipelines.replay.publication import Publication
from logmark.spark.pipelines.replay.runner import ReplayResult
from logmark.spark.pipelines.replay.state import ReplayKind, ReplayState
from logmark.spark.pipelines.status import FinishedBatch, RunState, RunStatus, write_status
from logmark.spark.pipelines.versions import PipelineVersion
from logmark.spark.pipelines.views import (
    PipelineLag,
    view_pipeline,
    view_result,
    view_state,
    view_status,
    view_version,
    view_version_plan,
)

CLICKS = TopicPartition("clicks", 0)
HOME = (
    '{"name": "billing", "file": "shop.py", "bootstrap_servers": "b:1", "group": "billing", "topics": "clicks", '
    '"sink": "table /t", "version": 1, "building": null, "is_running": false, "is_replaying": false, "state": '
)
STATUS = RunStatus(
    state=RunState.FAILED, pid=7, version=1, since_ms=1, at_ms=2, batches=3, records=40, rate=1.5, restarts=2,
    batch=FinishedBatch(number=3, records=10, duration_ms=20, at_ms=2, dropped_rows=5), error="It failed.",
    error_at_ms=2, next_try_at_ms=9, dropped_rows=7,
)  # fmt: skip


def make_home(path: Path) -> Home:
    home = Home(path, "billing")
    home.folder.mkdir()
    home.change(
        lambda record: replace(
            record, file="shop.py", bootstrap_servers="b:1", group="billing", topics="clicks", sink="table /t",
            dead_letters="billing.dead",
        )
    )  # fmt: skip
    return home


def test_a_pipeline_in_the_list(tmp_path: Path) -> None:
    assert HOME + '"never ran"}' == json.dumps(asdict(view_pipeline(make_home(tmp_path))))


def test_the_status_of_a_pipeline(tmp_path: Path) -> None:
    home = make_home(tmp_path)
    write_status(home.status_file, STATUS)
    lag = PipelineLag(records=5, age=Age(1500, 500, Method.RECORD), dead_letters=6, restored_at_ms=7)

    assert HOME + (
        '"failed", "lag": 5, "seconds": 1.5, "seconds_bound": 0.5, "seconds_method": "record", '
        '"dead_letters_topic": "billing.dead", "dead_letters": 6, "problem": null, "rate": 0.0, '
        '"batch": {"number": 3, "records": 10, "duration_ms": 20, "at_ms": 2, "dropped_rows": 5}, "batches": 3, '
        '"records": 40, "dropped_rows": 7, "restarts": 2, '
        '"error": "It failed.", "error_at_ms": 2, "next_try_at_ms": null, "since_ms": 1, "pid": null, '
        '"restored_at_ms": 7}'
    ) == json.dumps(view_status(home, home.record(), lag).to_json())


def test_the_status_of_a_pipeline_that_never_ran_and_whose_lag_is_unknown(tmp_path: Path) -> None:
    home = make_home(tmp_path)

    assert HOME + (
        '"never ran", "lag": null, "seconds": null, "dead_letters_topic": "billing.dead", "dead_letters": null, '
        '"problem": "Nobody answered.", "rate": null, "batch": null, "batches": null, "records": null, '
        '"dropped_rows": null, "restarts": null, '
        '"error": null, "error_at_ms": null, "next_try_at_ms": null, "since_ms": null, "pid": null, '
        '"restored_at_ms": null}'
    ) == json.dumps(view_status(home, home.record(), PipelineLag(problem="Nobody answered.")).to_json())


def test_a_version() -> None:
    version = PipelineVersion(
        number=2, is_live=True, is_building=False, can_roll_back=True, since_ms=5, how="replay",
        next_offsets={CLICKS: 9}, rows=3, size_bytes=100,
    )  # fmt: skip

    assert (
        '{"version": 2, "live": true, "building": false, "can_roll_back": true, "live_since_ms": 5, "how": "replay", '
        '"next_offsets": {"clicks": {"0": 9}}, "rows": 3, "size_bytes": 100}'
    ) == json.dumps(asdict(view_version(version)))


def test_a_replay_from_its_plan_to_its_result() -> None:
    plan = VersionPlan(
        kind=ReplayKind.SWAP, number=2, starts={CLICKS: 1}, stops={CLICKS: 9}, is_stateful=True, dropped=1,
        notes=("A note.",),
    )  # fmt: skip
    result = ReplayResult(version=2, kind=ReplayKind.SWAP, next_offsets={CLICKS: 9})
    published = replace(result, publication=Publication(sent=4, known=3, missing_id=2))

    assert (
        '{"kind": "swap", "version": 2, "stateful": true, "starts": {"clicks": {"0": 1}}, '
        '"stops": {"clicks": {"0": 9}}, "records": 8, "dropped": 1, "notes": ["A note."]}'
    ) == json.dumps(asdict(view_version_plan(plan)))
    assert '{"version": 2, "kind": "swap", "step": "planned"}' == json.dumps(
        asdict(view_state(ReplayState(version=2, kind=ReplayKind.SWAP)))
    )
    start = '{"pipeline": "billing", "kind": "swap", "version": 2, "next_offsets": {"clicks": {"0": 9}}, '
    assert start + '"sent": null, "sent_before": null, "missing_id": null}' == json.dumps(
        asdict(view_result("billing", result))
    )
    assert start + '"sent": 4, "sent_before": 3, "missing_id": 2}' == json.dumps(
        asdict(view_result("billing", published))
    )


def test_dead_letters_and_their_counts() -> None:
    letter = DeadLetter(
        partition=CLICKS, offset=3, timestamp_ms=4, error="no price", pipeline="billing", key=b"k", value=b"\xff",
        attempts=2, origin="o-1",
    )  # fmt: skip
    kept = StoredDeadLetter(partition=TopicPartition("billing.dead", 1), offset=8, at_ms=9, dead_letter=letter)
    counts = DeadLetterCounts(dead_letters=3, records=2, errors=Counter({"a": 1, "b": 2}))

    assert (
        '{"topic": "clicks", "partition": 0, "offset": 3, "timestamp_ms": 4, "error": "no price", '
        '"pipeline": "billing", "attempts": 2, "origin": "o-1", "key": "k", '
        '"value": {"base64": "/w=="}, "bytes": 1, "missing": null, "written_ms": 9, '
        '"letter": {"topic": "billing.dead", "partition": 1, "offset": 8}}'
    ) == json.dumps(asdict(view_dead_letter(kept)))
    assert (
        '{"pipeline": "billing", "topic": "billing.dead", "dead_letters": 3, "records": 2, "errors": {"b": 2, "a": 1}}'
    ) == json.dumps(asdict(view_tally("billing", "billing.dead", counts)))


def test_what_was_produced() -> None:
    assert (
        '[{"topic": "clicks", "partition": 0, "records": 2, "first_offset": 4, "last_offset": 5}, '
        '{"topic": "clicks", "partition": 1, "records": 1, "first_offset": 9, "last_offset": 9}]'
    ) == json.dumps([asdict(one) for one in view_produced("clicks", {1: [9, 9, 1], 0: [4, 5, 2]})])
