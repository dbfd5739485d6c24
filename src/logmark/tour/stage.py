"""The stage of a chapter: an embedded broker with empty logs, and ways to show what is done there."""

import ast
import contextlib
import inspect
import io
import linecache
import logging
import os
import re
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from types import FrameType

import confluent_kafka

from logmark.client.client import Client
from logmark.errors import UserError
from logmark.names import TopicPartition
from logmark.testing import Broker
from logmark.tour import pictures
from logmark.tour.elements import Code, Command, Element, Keep, Output, Pause, Picture, Prose
from logmark.wire import batches

# The story's first click; one follows each minute, so that every run shows the same times.
MIDNIGHT_MS = 1_709_596_800_000  # 2024-03-05T00:00:00Z
MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
PATIENCE_S = 120.0

Show = Callable[[Element], None]
# Runs `logmark` with these arguments; returns its exit code and what it wrote.
Logmark = Callable[[Sequence[str]], tuple[int, str]]


class Stage:
    """What a chapter has to act with: a broker, a client, and somebody to show things to."""

    def __init__(self, broker: Broker, client: Client, *, show: Show, logmark: Logmark) -> None:
        self.broker = broker
        self.client = client
        self._show = show
        self._logmark = logmark

    @property
    def servers(self) -> str:
        """What a client puts into bootstrap.servers."""
        return self.broker.bootstrap_servers

    # -- words ---------------------------------------------------------------------------------

    def say(self, text: str) -> None:
        """Says a paragraph or a list."""
        self._show(Prose(text))

    def keep(self, sentence: str) -> None:
        """Says the one sentence to keep."""
        self._show(Keep(sentence))

    def pause(self) -> None:
        """Lets the reader breathe."""
        self._show(Pause())

    # -- deeds ---------------------------------------------------------------------------------

    def fill(self, topic: str, *counts: int) -> None:
        """Create a topic with `counts` clicks in its partitions, one each minute from midnight on."""
        self._fill(topic, counts, lambda number, count: MIDNIGHT_MS + number * MINUTE_MS)

    def fill_lately(self, topic: str, *counts: int, every_ms: int) -> None:
        """Create a topic with clicks this far apart, the last ones seconds ago: for commands that show ages."""
        # Ages are told in minutes or coarser then, and the seconds that a slow machine takes do not show.
        newest_ms = time.time_ns() // 1_000_000 - 10_000
        self._fill(topic, counts, lambda number, count: newest_ms - (count - 1 - number) * every_ms)

    def _fill(self, topic: str, counts: Sequence[int], when_ms: Callable[[int, int], int]) -> None:
        self.broker.create_topic(topic, len(counts))
        for partition, count in enumerate(counts):
            # One batch: how a producer would cut them differs from run to run, and so would sizes that are shown.
            batch = batches.build(
                [(None, f"click {number}".encode()) for number in range(count)],
                timestamp_ms=[when_ms(number, count) for number in range(count)],
            )
            self.client.produce(TopicPartition(topic, partition), batch)

    def code(self) -> contextlib.AbstractContextManager[None]:
        """Show the body of the one-line `with` statement as it stands in the source, run it, show what it printed."""
        self._show(Code(_block_source(sys._getframe(1))))
        return self._show_output()

    @contextlib.contextmanager
    def _show_output(self) -> Iterator[None]:
        printed = io.StringIO()
        try:
            with contextlib.redirect_stdout(printed):
                yield
        finally:
            if printed.getvalue():
                self._show(Output(printed.getvalue().rstrip()))

    def command(self, line: str, *, exit_code: int = 0, varying: str = "") -> None:
        """Show a `logmark` command, run it, and show its output, with dots for what matches `varying`."""
        self._show(Command(line))
        name, *arguments = line.split()
        assert name == "logmark"
        code, written = self._logmark(arguments)
        if code != exit_code:
            raise UserError(f"`{line}` ended with exit code {code} and not {exit_code}: {written.strip()}")
        self._show(Output(re.sub(varying, "...", written.rstrip()) if varying else written.rstrip()))

    def process(
        self, program: Callable[[str], None], *, until: Callable[[], bool] | None = None, lines: int = 0
    ) -> None:
        """Show a function, run it in a process of its own, which dies, and show what it printed.

        It dies by its own hand, or by ours as soon as `until` is true and it has printed so many lines.
        """
        self._show(Code(textwrap.dedent(inspect.getsource(program)).rstrip()))
        run = f"import sys; from {program.__module__} import {program.__name__} as run; run(sys.argv[1])"
        with subprocess.Popen(  # noqa: S603 - our own interpreter and our own function
            [sys.executable, "-u", "-c", run, self.servers], stdout=subprocess.PIPE, text=True
        ) as child:
            assert child.stdout is not None
            printed: list[str] = []
            reader = threading.Thread(target=_collect, args=(child.stdout, printed))
            reader.start()
            try:
                if until is not None:
                    self._wait(lambda: until() and len(printed) >= lines, child)
                    child.kill()
                child.wait(PATIENCE_S)
            finally:
                child.kill()
                reader.join()
        if child.returncode >= 0:
            raise UserError(f"the process ended by itself, with exit code {child.returncode}")
        self._show(Output(f"{''.join(printed)}Killed"))

    def _wait(self, until: Callable[[], bool], child: subprocess.Popen[str]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not until():
            if time.monotonic() > deadline or child.poll() is not None:
                raise UserError("the process did not get to where it was to die")
            time.sleep(0.01)

    # -- pictures ------------------------------------------------------------------------------

    def committed(self, group: str, topic: str, partition: int = 0) -> int | None:
        """Return a group's committed offset from the broker, None if it has none."""
        found = self.client.committed(group).get(TopicPartition(topic, partition))
        return found.offset if found else None

    def picture(
        self,
        topic: str,
        *groups: str,
        running: Mapping[str, confluent_kafka.Consumer] | None = None,
        workers_of: str = "",
    ) -> None:
        """Draw the topic's logs and committed offsets as the broker says them, and running consumers' positions."""
        partitions = self.client.metadata([topic]).partitions(topic)
        starts, ends = self.client.earliest(partitions), self.client.latest(partitions)
        commits = {group: self.client.committed(group) for group in groups}
        owners = self._owners(workers_of) if workers_of else {}
        lines: list[str] = []
        for one in partitions:
            log = pictures.Log(
                topic=topic, partition=one.partition, start=starts[one], end=ends[one], owner=owners.get(one, "")
            )
            marks: list[pictures.Mark] = []
            for reader, consumer in (running or {}).items():
                (found,) = consumer.position([confluent_kafka.TopicPartition(*one)])
                if found.offset >= 0:
                    marks.append(pictures.Position(reader=reader, offset=found.offset))
            for group, committed in commits.items():
                found_offset = committed.get(one)
                marks.append(pictures.Committed(group=group, offset=found_offset.offset if found_offset else None))
            lines += pictures.draw(log, marks)
        self._show(Picture(lines))

    def _owners(self, group: str) -> dict[TopicPartition, str]:
        members = self.client.describe_groups([group])[group].members
        return {partition: member.client_id for member in members for partition in member.partitions}


def _collect(lines: Iterable[str], into: list[str]) -> None:
    for line in lines:
        into.append(line)


def _block_source(frame: FrameType) -> str:
    """Return the body of the `with` statement at which this frame is, so that what is shown is what runs."""
    file = frame.f_code.co_filename
    block = _blocks(file)[frame.f_lineno]
    # From the line below the `with`, and not from its first statement, so that a comment above that is shown too.
    lines = linecache.getlines(file)[block.lineno : block.body[-1].end_lineno]
    return textwrap.dedent("".join(lines)).rstrip()


@lru_cache
def _blocks(file: str) -> dict[int, ast.With]:
    tree = ast.parse("".join(linecache.getlines(file)))
    return {node.lineno: node for node in ast.walk(tree) if isinstance(node, ast.With)}


@contextlib.contextmanager
def open_stage(show: Show, logmark: Logmark) -> Iterator[Stage]:
    """Open a stage with a broker of its own, on a free port and in a temporary folder that is removed at the end."""
    # Clicks of 2024 must not expire in the middle of a sentence.
    with (
        _without_warnings(),
        tempfile.TemporaryDirectory(prefix="logmark-tour-") as home,
        Broker({"log.retention.ms": "-1"}) as broker,
        Client(broker.bootstrap_servers) as client,
        _surroundings(broker.bootstrap_servers, home),
    ):
        yield Stage(broker, client, show=show, logmark=logmark)


@contextlib.contextmanager
def _without_warnings() -> Iterator[None]:
    """Keep away from the learner what the tour's own broker warns of, such as the slow turns of a busy machine."""
    logger = logging.getLogger("logmark.broker")
    kept = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(kept)


@contextlib.contextmanager
def _surroundings(servers: str, home: str) -> Iterator[None]:
    """Commands find the tour's broker, and neither read the user's settings nor write to the user's journal."""
    kept = dict(os.environ)
    for name in [name for name in os.environ if name.startswith("LOGMARK_")]:
        del os.environ[name]
    os.environ.update(LOGMARK_BOOTSTRAP_SERVERS=servers, XDG_STATE_HOME=home, XDG_CONFIG_HOME=home)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(kept)
