"""`logmark pipelines start`, `stop`, `restart`, `reload`: one pipeline of a run that is another process; no Spark."""

from dataclasses import asdict
from typing import Annotated

import typer

from logmark.cli.options import Output, OutputFormat
from logmark.cli.pipelines.homes import HomeFolder, find_homes, home_root
from logmark.cli.pipelines.known_pipeline import Name
from logmark.cli.tables import print_json, say, write_line
from logmark.spark.pipelines.commands import Action, Outcome, send_command

Takeover = Annotated[
    bool,
    typer.Option(
        "--takeover", help="Take the group from another query that has it: that one ends, and this one resumes."
    ),
]


def start(
    name: Name, takeover: Takeover = False, home: HomeFolder = None, output: Output = OutputFormat.TABLE
) -> None:
    """Start a pipeline that was stopped or has failed inside a running `logmark pipelines run`."""
    _send(name, Action.START, home, output, takeover=takeover)


def stop(name: Name, home: HomeFolder = None, output: Output = OutputFormat.TABLE) -> None:
    """Stop one pipeline of a running `logmark pipelines run` between two batches; the others run on."""
    _send(name, Action.STOP, home, output)


def restart(
    name: Name, takeover: Takeover = False, home: HomeFolder = None, output: Output = OutputFormat.TABLE
) -> None:
    """Stop one pipeline of a running `logmark pipelines run` between two batches, and start it again."""
    _send(name, Action.RESTART, home, output, takeover=takeover)


def reload(name: Name, home: HomeFolder = None, output: Output = OutputFormat.TABLE) -> None:
    """Load the file of a pipeline again and restart it; if the file is broken, the pipeline runs on as it was."""
    _send(name, Action.RELOAD, home, output)


def _send(name: str, action: Action, home: HomeFolder, output: OutputFormat, *, takeover: bool = False) -> None:
    [found] = find_homes(home_root(home), [name])
    answer = send_command(found, action, takeover=takeover)
    if output is OutputFormat.JSON:
        print_json({"pipeline": name, "action": action} | asdict(answer))
    elif answer.outcome is Outcome.DONE:
        write_line(answer.message)
    else:
        say(answer.message)
    if answer.outcome is not Outcome.DONE:
        raise typer.Exit(1)
