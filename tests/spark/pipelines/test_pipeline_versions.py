"""Which versions of a pipeline can be taken back."""

import json
from pathlib import Path

from logmark.spark.pipelines.declaration import Table
from logmark.spark.pipelines.home import Home
from logmark.spark.pipelines.job import Job
from logmark.spark.pipelines.pipeline import Pipeline
from logmark.spark.pipelines.query import Brokers
from logmark.spark.pipelines.versions import is_complete, list_versions
from logmark.spark.tables.modes import Rules
from logmark.spark.tables.versions import swap_in_version, version_path
from tests.spark.table_batches import P0, batch, write

TOTALS = {"campaign": "string", "total": "long"}
UPSERT = Rules.of("upsert", keys="campaign")


def count(table: Path, *, query: str) -> None:
    one = batch({P0: 0}, {P0: 10}, UPSERT, is_stateful=True, query=query, group=query)
    write(table, one, UPSERT, TOTALS, [{"campaign": query, "total": 1}])


def test_a_version_whose_rows_were_not_kept_cannot_be_rolled_back_though_its_checkpoint_is_there(
    tmp_path: Path,
) -> None:
    table = tmp_path / "table"
    job = Job(
        pipeline=Pipeline(name="totals", topics="clicks", transform=lambda rows: rows, sink=Table(table)),
        brokers=Brokers(bootstrap_servers="nowhere:1"),
        home=Home(tmp_path / "home", "totals"),
    )
    for number in (1, 2, 3):
        offsets = job.home.checkpoint(number) / "offsets"
        offsets.mkdir(parents=True)
        position = batch({P0: 0}, {P0: 10}, UPSERT).position
        (offsets / "0").write_text(f"v1\n{{}}\n{json.dumps(position.sources[0].to_json())}")
        count(table if number == 1 else version_path(table, number), query=f"q{number}")

    swap_in_version(table, 2)
    swap_in_version(table, 3, keep=False)

    assert [True, False] == [is_complete(job, number) for number in (1, 2)]
    assert {1: 1, 2: None, 3: 1} == {one.number: one.rows for one in list_versions(job)}
