"""The stage of the demo: a broker, a Spark, the pipelines that run on it, and whoever waits for them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from examples.clicks.board import Board, View
from examples.clicks.checks import Checks
from examples.clicks.truth import Truth
from logmark.spark import Pipeline, Table
from logmark.spark.pipelines.job import Job, make_job

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

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
        """Return the folder of a pipeline's table."""
        return self.work / "tables" / name

    @property
    def journal(self) -> Path:
        """The journal of resets."""
        return self.work / "journal.jsonl"

    def start(
        self,
        pipeline: Pipeline,
        transform: "Callable[[DataFrame], DataFrame] | None" = None,
        *,
        every: str | None = None,
        options: Mapping[str, str] | None = None,
    ) -> None:
        """Start the pipeline, from its checkpoint if it has one; `transform` is another version of its code."""
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
        self.wait(lambda view: bool(view.committed.get(here.group)), f"{here.name} to commit its first offsets")

    def job(self, name: str, transform: "Callable[[DataFrame], DataFrame] | None" = None) -> Job:
        """Return a started pipeline as a job to replay, perhaps with other code."""
        pipeline = self._pipelines[name]
        if transform is not None:
            pipeline = self._pipelines[name] = replace(pipeline, transform=transform)
        return make_job(pipeline, home=self.work / "pipelines", bootstrap_servers=self.servers)

    def start_again(self, name: str) -> None:
        """Start the live version of the pipeline, whichever that is now."""
        self._start(name)

    def _start(self, name: str) -> None:
        self.queries[name] = self._pipelines[name].start(
            self.spark, home=self.work / "pipelines", bootstrap_servers=self.servers
        )

    def stop(self, name: str) -> None:
        """Stop the pipeline; its checkpoint and its table stay."""
        self.queries.pop(name).stop()

    def forget_query(self, name: str) -> "StreamingQuery":
        """Return the query of the pipeline, which may stop from now on."""
        return self.queries.pop(name)

    def wait(self, reached: Callable[[View], bool], what: str) -> View:
        """Return the first view that is `reached`; raises if a pipeline stops meanwhile."""
        return self.board.wait(reached, alive=self._check_alive, what=what, timeout_s=PATIENCE_S)

    def wait_until_current(self, *groups: str) -> View:
        """Return the first view in which these groups have no lag."""
        end = self.truth.count
        return self.wait(
            lambda view: view.end == end and not any(view.lag(group) for group in groups),
            f"{' and '.join(groups)} to read up to the end",
        )

    def check(self, claim: str, held: bool, found: str) -> None:
        """Note and show one claim."""
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
