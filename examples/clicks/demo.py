"""The demo: a month of clicks, Spark pipelines that are consumer groups, bugs, resets, and replays of what has state.

Run it from the repository with `make demo`, or `python -m examples.clicks.demo --help`.
"""

import argparse
import contextlib
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from rich.console import Console
from rich.table import Table

from examples.clicks import topic
from examples.clicks.board import Board
from examples.clicks.checks import Checks
from examples.clicks.generator import DAY_MS, generate
from examples.clicks.lags import Lags
from examples.clicks.stage import Stage
from examples.clicks.story import tell
from examples.clicks.truth import Truth
from examples.clicks.world import PARTITIONS, TOPIC
from logmark.errors import UserError
from logmark.spark import session
from logmark.spark.sessions import check_java, check_spark
from logmark.testing import Broker

DAYS = 30
# In a run of a minute the JVM's second compiler and its parallel garbage collector cost more than they give.
SPARK_SETTINGS = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}


def main(arguments: Sequence[str] | None = None) -> int:
    """The demo's exit code: 0 only if every check held."""
    options = _parser().parse_args(arguments)
    console = Console(no_color=True if options.plain else None, highlight=False)
    try:
        check_spark()
        check_java()
        work = _work_directory(options.keep)
    except UserError as error:
        Console(stderr=True, highlight=False).print(str(error), soft_wrap=True)
        return 1
    checks = Checks()
    began_s = time.monotonic()
    problem = drawn = ""
    try:
        drawn = _run(options, console, work, checks)
    except KeyboardInterrupt:
        problem = "interrupted"
    except (RuntimeError, TimeoutError, UserError) as error:
        problem = str(error)
    except _spark_errors() as error:
        problem = f"Spark failed: {str(error).partition(chr(10))[0]}"
    _summary(console, checks, problem, time.monotonic() - began_s, is_plain=_is_plain(options, console))
    if problem or checks.failed:
        console.print(f"The data and Spark's own log are kept in {work}.", soft_wrap=True)
        return 1
    if options.keep is None:
        shutil.rmtree(work, ignore_errors=True)
    if drawn:
        console.print(drawn, soft_wrap=True)
    return 0


def _spark_errors() -> tuple[type[Exception], ...]:
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    return PySparkException, Py4JError


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="examples.clicks.demo", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--clicks", type=_count, default=500_000, help="how many clicks are in the log at first")
    parser.add_argument("--seed", type=int, default=7, help="another seed gives other clicks")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep the log, the tables and the checkpoints here")
    parser.add_argument("--plot", type=_picture, default=Path("demo-lag.png"), help="the picture, .png or .svg")
    parser.add_argument("--plain", action="store_true", help="plain lines, also in a terminal")
    return parser


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1000:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1000 on")
    return int(text)


def _picture(text: str) -> Path:
    if Path(text).suffix.lower() not in (".png", ".svg"):
        raise argparse.ArgumentTypeError(f"{text!r} is neither a .png nor an .svg file")
    return Path(text)


def _is_plain(options: argparse.Namespace, console: Console) -> bool:
    return bool(options.plain) or not console.is_terminal


def _work_directory(keep: Path | None) -> Path:
    if keep is None:
        return Path(tempfile.mkdtemp(prefix="logmark-demo-"))
    if keep.exists() and (not keep.is_dir() or any(keep.iterdir())):
        raise UserError(f"{keep} is there already and not empty; nothing was changed. Give --keep a new directory.")
    keep.mkdir(parents=True, exist_ok=True)
    return keep.resolve()


def _run(options: argparse.Namespace, console: Console, work: Path, checks: Checks) -> str:
    """Everything that is to be seen; returns where the picture of it is."""
    is_live = not _is_plain(options, console)
    truth, now_ms = Truth(), time.time_ns() // 1_000_000
    made = generate(options.clicks, seed=options.seed, start_ms=now_ms - DAYS * DAY_MS, end_ms=now_ms)
    with (
        _stderr_to(work / "spark.log"),
        Broker(durability="sync", data_dir=str(work / "log")) as broker,
        ThreadPoolExecutor(max_workers=1) as beside,
        contextlib.closing(Lags()) as lags,
    ):
        topic.create(broker.bootstrap_servers)
        with Board(console, broker.bootstrap_servers, TOPIC, PARTITIONS, is_live=is_live, lags=lags) as board:
            board.act(f"A log of {options.clicks:,} clicks over the last {DAYS} days")
            board.say(f"broker at {broker.bootstrap_servers}, every record synced to disk before it is acknowledged")
            written = beside.submit(
                topic.publish,
                broker.bootstrap_servers,
                truth.noting(made),
                lambda done: board.progress("clicks written", done, options.clicks),
            )
            board.say("Spark starts meanwhile")
            spark = session("logmark-demo", master="local[2]", config=SPARK_SETTINGS)
            try:
                board.say(f"{written.result():,} clicks are in the log, and Spark {spark.version} is there")
                stage = Stage(
                    servers=broker.bootstrap_servers, spark=spark, board=board, checks=checks, truth=truth,
                    work=work, seed=options.seed, now_ms=now_ms,
                )  # fmt: skip
                tell(stage)
            finally:
                spark.stop()
        drawn = lags.draw(options.plot, stage.journal)
        return f"The lag of {drawn}: {options.plot.absolute()}"


@contextlib.contextmanager
def _stderr_to(path: Path) -> Iterator[None]:
    """Standard error goes to a file, also that of child processes: Spark's chatter would tear the board apart."""
    sys.stderr.flush()
    kept = os.dup(2)
    try:
        with path.open("wb") as file:
            os.dup2(file.fileno(), 2)
        yield
    finally:
        sys.stderr.flush()
        os.dup2(kept, 2)
        os.close(kept)


def _summary(console: Console, checks: Checks, problem: str, seconds: float, *, is_plain: bool) -> None:
    console.print()
    if is_plain:
        for check in checks.made:
            console.print(f"{'held  ' if check.held else 'FAILED'}  {check.claim}: {check.found}", soft_wrap=True)
    else:
        table = Table("", "what was checked", "found", title="Summary", title_justify="left")
        for check in checks.made:
            mark = "[green]✓[/green]" if check.held else "[bold red]✗[/bold red]"
            table.add_row(mark, check.claim, check.found)
        console.print(table)
    if problem:
        console.print(f"The demo did not get to its end: {problem}", style="bold red", soft_wrap=True, markup=False)
    for check in checks.failed:
        console.print(f"Failed: {check.claim}: {check.found}", style="bold red", soft_wrap=True, markup=False)
    if not problem and not checks.failed:
        console.print(f"All {len(checks.made)} checks held, in {seconds:.0f} seconds.", style="bold green")


if __name__ == "__main__":
    sys.exit(main())
