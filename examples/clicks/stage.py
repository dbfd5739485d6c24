"""The stage of the demo: a broker, a Spark, the pipelines that run on it, and whoever waits for them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from examples.clicks.board import Board, View
from examples.clicks.checks import Checks
from examples.clicks.truth import Truth
from logmark.spark import Pipeline, Table
from logmark.spark.pipelines.program import job_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from logmark.spark.pipelines.supervisor import Job

PATIENCE_S = 600
RESTARTS_MAX = 5


@dataclass(slots=True, kw_only=True)
class Stage:
    """Everything that the acts share."""

    servers: str
    spark: "SparkSession"
    board: Board
    checks: Checks
    truth: Truth
    work: Path
    seed: int
    now_ms: int
    queries: "dict[str, StreamingQuery]" = field(default_factory=dict)
    _pipelines: dict[str, Pipeline] = field(default_factory=dict)
    _restarts: int = 0

    def table(self, name: str) -> Path:
        """Where the rows of a pipeline are."""
        return self.work / "tables" / name

    @property
    def journal(self) -> Path:
        """Where resets are noted."""
        return self.work / "journal.jsonl"

    def start(
        self,
        pipeline: Pipeline,
        transform: "Callable[[DataFrame], DataFrame] | None" = None,
        *,
        every: str | None = None,
        options: Mapping[str, str] | None = None,
    ) -> None:
        """The pipeline runs, from its own checkpoint if it has one; `transform` is another version of its code."""
        sink = pipeline.sink
        here = replace(
            pipeline,
            transform=transform or pipeline.transform,
            sink=replace(sink, path=self.table(pipeline.name)) if isinstance(sink, Table) else sink,
            options=dict(pipeline.options) | dict(options or {}),
            every=every,
        )
        self._pipelines[here.name] = here
        self._start(here.name)
        self.board.follow(here.group)
        # One at a time: Spark gives each new Python process ten seconds, and they would share the processors.
        self.wait(lambda view: bool(view.committed.get(here.group)), f"{here.name} to take its place")

    def job(self, name: str, transform: "Callable[[DataFrame], DataFrame] | None" = None) -> "Job":
        """A pipeline that was started, as something to replay, perhaps with other code."""
        pipeline = self._pipelines[name]
        if transform is not None:
            pipeline = self._pipelines[name] = replace(pipeline, transform=transform)
        return job_of(pipeline, home=self.work / "pipelines", bootstrap_servers=self.servers)

    def start_again(self, name: str) -> None:
        """The live version of the pipeline runs, whichever that is now."""
        self._start(name)

    def _start(self, name: str) -> None:
        self.queries[name] = self._pipelines[name].start(
            self.spark, home=self.work / "pipelines", bootstrap_servers=self.servers
        )

    def stop(self, name: str) -> None:
        """The pipeline has stopped; its checkpoint and its table stay."""
        self.queries.pop(name).stop()

    def let_go(self, name: str) -> "StreamingQuery":
        """The query of the pipeline, of which nobody expects any more that it runs."""
        return self.queries.pop(name)

    def wait(self, reached: Callable[[View], bool], what: str) -> View:
        """The first view in which something is so, while every pipeline is well."""
        return self.board.wait(reached, alive=self._check_alive, what=what, timeout_s=PATIENCE_S)

    def wait_until_current(self, *groups: str) -> View:
        """The first view in which these groups have read everything that was written."""
        end = self.truth.count
        return self.wait(
            lambda view: view.end == end and not any(view.lag(group) for group in groups),
            f"{' and '.join(groups)} to read up to the end",
        )

    def check(self, claim: str, held: bool, found: str) -> None:
        """Notes and shows one claim."""
        self.checks.add(claim, held, found)
        self.board.say(f"{'✓' if held else '✗'} {claim}: {found}", "green" if held else "bold red")

    def _check_alive(self) -> None:
        for name, query in list(self.queries.items()):
            error = query.exception()
            if error is None:
                continue
            if "connect back" not in str(error) or self._restarts == RESTARTS_MAX:
                raise RuntimeError(f"The pipeline {name} stopped: {str(error).splitlines()[0]}")
            self._restarts += 1
            self.board.say(f"{name} starts again: on this busy machine Spark lost patience with a Python process")
            self._start(name)
