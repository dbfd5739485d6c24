"""`logmark pipelines`: Spark pipelines that are consumer groups, run, shown and replayed."""

from typing import Any

import typer

from logmark.cli.lazy_group import CommandSource, LazyGroup
from logmark.spark.sessions import check_spark


class PipelineCommands(LazyGroup):
    """The commands about pipelines."""

    package = __name__
    sources = {  # noqa: RUF012
        "run": CommandSource(
            "run:run",
            "Run the pipelines of these files as their consumer groups; a query that fails is restarted.",
            "logmark pipelines run billing.py fraud.py --available-now",
        ),
        "start": CommandSource(
            "control:start",
            "Start a pipeline that was stopped or has failed inside a running `logmark pipelines run`.",
            "logmark pipelines start billing",
        ),
        "stop": CommandSource(
            "control:stop",
            "Stop one pipeline of a running `logmark pipelines run` between two batches; the others run on.",
            "logmark pipelines stop billing",
        ),
        "restart": CommandSource(
            "control:restart",
            "Stop one pipeline of a running `logmark pipelines run` between two batches, and start it again.",
            "logmark pipelines restart billing",
        ),
        "reload": CommandSource(
            "control:reload",
            "Load the file of a pipeline again and restart it; if the file is broken, the pipeline runs on as it was.",
            "logmark pipelines reload billing",
        ),
        "list": CommandSource(
            "status:list_pipelines", "List the pipelines that were ever run from here.", "logmark pipelines list"
        ),
        "status": CommandSource(
            "status:status",
            "Show group, lag, rate, last batch, restarts and last error of pipelines, whether they run or not.",
            "logmark pipelines status billing --output json",
        ),
        "dead-letters": CommandSource(
            "dead_letters:dead_letters",
            "Show the newest dead letters of a pipeline: which record, how large, and why it was refused.",
            "logmark pipelines dead-letters billing --limit 5",
        ),
        "replay": CommandSource(
            "replay:replay",
            "Read records again and count or send nothing twice: in place where that is exact, else as a new version.",
            "logmark pipelines replay fraud --from 3d",
        ),
        "versions": CommandSource(
            "versions:versions",
            "Show the versions of a pipeline: the live one, the one being built, and those kept for a rollback.",
            "logmark pipelines versions fraud",
        ),
        "rollback": CommandSource(
            "replay:rollback",
            "Make a version live again that was live before; the present one is kept.",
            "logmark pipelines rollback fraud",
        ),
        "drop": CommandSource(
            "versions:drop",
            "Remove a kept version: its checkpoint, its rows beside the table, its side topic and its group.",
            "logmark pipelines drop fraud 1",
        ),
    }

    def load_command(self, name: str) -> Any:
        """Return the command; raises UserError if it needs PySpark and there is none."""
        try:
            return super().load_command(name)
        except ModuleNotFoundError:
            check_spark()
            raise


app = typer.Typer(
    cls=PipelineCommands, help="Run, show and replay Spark pipelines that are consumer groups.", no_args_is_help=True
)


@app.callback()
def pipelines() -> None:
    """Run, show and replay Spark pipelines that are consumer groups."""
