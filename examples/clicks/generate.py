"""Writes clicks into a topic: so many at once, or at a steady rate until it is stopped.

python -m examples.clicks.generate --clicks 500000                  # a month of clicks, now
python -m examples.clicks.generate --rate 2000                      # from now on, until Ctrl-C
"""

import argparse
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from examples.clicks import topic
from examples.clicks.generator import DAY_MS, Click, endless, generate
from examples.clicks.world import TOPIC
from logmark.client.errors import ClientError
from logmark.errors import UserError

# So that two seeds never give the same id to different clicks.
IDS_OF_A_SEED = 100_000_000


def paced(clicks: Iterable[Click]) -> Iterator[Click]:
    """The same clicks, none before the time of its arrival."""
    for click in clicks:
        wait_s = click.arrived_ms / 1000 - time.time()
        if wait_s > 0:
            time.sleep(wait_s)
        yield click


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code: 0 if every click was acknowledged."""
    options = _parser().parse_args(arguments)
    console = Console(stderr=True, highlight=False)
    try:
        topic.create(options.bootstrap_servers)
        sent = _write(options, console)
    except (UserError, ClientError, RuntimeError) as error:
        console.print(str(error), soft_wrap=True, markup=False)
        return 1
    console.print(f"{sent:,} clicks are in the topic {TOPIC} at {options.bootstrap_servers}.", soft_wrap=True)
    return 0


def _write(options: argparse.Namespace, console: Console) -> int:
    now_ms = time.time_ns() // 1_000_000
    count, first_id = options.clicks, options.seed * IDS_OF_A_SEED
    columns = SpinnerColumn(), TextColumn("clicks"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task("clicks", total=count)
        if options.rate is None:
            count = 500_000 if count is None else count
            start_ms = now_ms - round(options.days * DAY_MS)
            made = generate(count, seed=options.seed, start_ms=start_ms, end_ms=now_ms, first_id=first_id)
        else:
            made = paced(islice(endless(options.rate, seed=options.seed, start_ms=now_ms, first_id=first_id), count))
        return topic.publish(
            options.bootstrap_servers,
            _until_stopped(made),
            lambda done: progress.update(task, completed=done),
            every=topic.REPORT_EVERY if options.rate is None else max(int(options.rate / 10), 1),
        )


def _until_stopped(clicks: Iterable[Click]) -> Iterator[Click]:
    """The clicks up to Ctrl-C, which ends the stream and loses nothing that was made before."""
    try:
        yield from clicks
    except KeyboardInterrupt:
        return


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="examples.clicks.generate", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--bootstrap-servers", default="127.0.0.1:9092", metavar="HOST:PORT")
    parser.add_argument("--clicks", type=_number, help="how many; 500000 at once, or without an end at a --rate")
    parser.add_argument("--rate", type=_number, help="clicks a second, from now on; without it all are written at once")
    parser.add_argument("--days", type=float, default=30, help="over how many days up to now they are spread at once")
    parser.add_argument("--seed", type=int, default=7, help="another seed gives other clicks")
    return parser


def _number(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 on")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
