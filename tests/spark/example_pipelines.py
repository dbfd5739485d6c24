"""The example pipelines on a broker of their own: clicks for them, the command that runs them, what they must find."""

import itertools
import os
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from examples.clicks import topic
from examples.clicks.billing import owed_micros
from examples.clicks.checks import alerts, by_user, count_rows_by_offset, dead_letters
from examples.clicks.generator import DAY_MS, Click, generate
from examples.clicks.truth import ClickOffset, Truth
from logmark.spark import read_table
from tests.harness.sparks import quick_java

REPOSITORY = Path(__file__).resolve().parents[2]
NAMES = ("billing", "fraud", "features")
START_MS = 1_790_000_000_000
PARTITIONS = {"spark.sql.shuffle.partitions": "2"}


class ExamplePipelines:
    """Billing, fraud and features of one topic of clicks; tables, checkpoints and logs are in a folder."""

    def __init__(
        self, servers: str, folder: Path, *, seed: int, clicks: int, start_ms: int = START_MS, days: int = 2
    ) -> None:
        self.servers = servers
        self.folder = folder
        self.truth = Truth()
        self._charged: set[ClickOffset] = set()
        self._left = generate(clicks, seed=seed, start_ms=start_ms, end_ms=start_ms + days * DAY_MS)
        folder.mkdir(parents=True, exist_ok=True)
        topic.create(servers)

    @property
    def home(self) -> Path:
        """Where the pipelines are remembered."""
        return self.folder / "home"

    @property
    def environment(self) -> dict[str, str]:
        """What the files of the pipelines read: where the tables go."""
        return {**os.environ, "CLICKS_TABLES": str(self.folder / "tables")}

    def publish(self, count: int) -> None:
        """So many of the clicks, or as many as are left, are in the topic."""
        topic.publish(self.servers, [self._noted(click) for click in itertools.islice(self._left, count)])

    def command(self, *more: str, master: str = "local[2]", config: Mapping[str, str] | None = None) -> list[str]:
        """`logmark pipelines run` of all three."""
        files = [str(REPOSITORY / "examples" / "clicks" / f"{name}.py") for name in NAMES]
        where = ["--bootstrap-servers", self.servers, "--home", str(self.home), "--master", master]
        settings = _conf(quick_java() | PARTITIONS | dict(config or {}))
        return [sys.executable, "-m", "logmark", "pipelines", "run", *files, *where, *settings, *more]

    def replay_command(self, name: str, *more: str) -> list[str]:
        """`logmark pipelines replay` of one."""
        where = ["--bootstrap-servers", self.servers, "--home", str(self.home), "--master", "local[2]"]
        settings = _conf(quick_java() | PARTITIONS)
        return [sys.executable, "-m", "logmark", "pipelines", "replay", name, *more, "--yes", *where, *settings]

    def output(self) -> str:
        """The last words of Spark, for a test that fails."""
        log = self.home / "spark.log"
        return f"--- {log}\n{log.read_text()[-4000:]}" if log.exists() else ""

    def check(self, what: str) -> None:
        """All that is published was found: charges to the cent, each alert once, no row twice."""
        found, charged = count_rows_by_offset(self.folder / "tables" / "billing"), Counter(self._charged)
        assert charged == found, f"{what}: {_differences(charged, found)}"
        assert self.truth.owed_micros == owed_micros(read_table(self.folder / "tables" / "billing")), what
        sent, wanted = alerts(self.servers), Counter(self.truth.alerts())
        assert wanted, "the clicks are too few for an alert"
        assert wanted == sent, f"{what}: {_differences(wanted, sent)}"
        users, known = by_user(self.folder / "tables" / "features"), self.truth.features()
        wrong = [name for name in {*users, *known} if users.get(name) != known.get(name)]
        assert [] == wrong, f"{what}: {len(wrong)} users, such as {[(users.get(n), known.get(n)) for n in wrong[:3]]}"
        assert read_table(self.folder / "tables" / "features").num_rows == len(known), f"{what}: a user has two rows"
        refused = dead_letters(self.servers)
        assert {*self.truth.undecodable, *self.truth.incomplete} == set(refused["billing"]), what

    def _noted(self, click: Click) -> Click:
        offset = ClickOffset(click.partition, self.truth.ends[click.partition])
        self.truth.note(click)
        if not click.flaw and click.kind != "crawler":
            self._charged.add(offset)
        return click


def _differences(wanted: "Counter[object]", found: "Counter[object]") -> str:
    lost, more = list((wanted - found).elements()), list((found - wanted).elements())
    return f"{len(lost)} lost, such as {lost[:5]}; {len(more)} too many, such as {more[:5]}"


def _conf(settings: Mapping[str, str]) -> list[str]:
    """Return Spark settings as arguments of a command."""
    return [part for one in settings.items() for part in ("--conf", "=".join(one))]
