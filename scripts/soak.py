"""Run the long tests, or those that are named, and write what they saw into docs/soak.md.

The soak runs every test marked `soak`, and every test that searches with Hypothesis, with many more examples than the
fast tests draw. It draws a seed and prints it; `--seed` takes it back, and the run draws the same examples again. All
other arguments go to pytest.
"""

import argparse
import datetime
import os
import platform
import random
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
REPORT = REPOSITORY / "docs" / "soak.md"
SECONDS_PER_TEST = 3600  # unless the test itself sets a limit
HEAD = """# The last soak

Written by `make soak`, only when every test of it passed; `make soak ARGS=tests/offsets` runs some of them and writes
their lines anew, and `make soak ARGS='--seed 7'` draws the examples of that seed again.

## An hour of mixed load

    make soak ARGS=tests/broker/test_mixed_load.py                      # an hour; writes its line below
    .venv/bin/python -m tests.broker.mixed_load --seconds 60 --seed 7   # shorter, with a table of samples

Producers, consumer groups whose members come and go, commits, retention, compaction, listings, and topics that are
created and deleted, all at once on one broker. The test fails if a client sees an error, if a reader does not get every
acknowledged record, if the stop is not clean, or if `logmark verify` finds anything. It also fails if a record is read
twice and Kafka does not allow it: the new owner of a partition begins at the last commit that the broker acknowledged,
or at one whose outcome is unknown. The line below counts the second reads that Kafka allows. The test also fails if
memory, descriptors, threads, files or bytes on disk grow: the median of the last third may be above that of the second
third by the tolerance in `TOLERANCES` (5% and 4 MB for memory). `--samples FILE` keeps every sample.

## The tests

| test | when (UTC) | seconds | what it saw |
|---|---|---|---|
"""


def main(arguments: list[str]) -> int:
    """Return the exit code of the test run; write the report only if every test passed."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--seed", type=int, help="draw the examples of an earlier run again")
    options, rest = parser.parse_known_args(arguments)
    seed = random.SystemRandom().randrange(2**32) if options.seed is None else options.seed
    again = f"Seed {seed}. To draw the same examples again: make soak ARGS='{' '.join(['--seed', str(seed), *rest])}'"
    print(again, flush=True)
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder, "results.xml")
        command = [sys.executable, "-m", "pytest", "-m", "soak or hypothesis", f"--timeout={SECONDS_PER_TEST}"]
        command += ["--hypothesis-profile=soak", f"--hypothesis-seed={seed}", f"--junitxml={results}", *rest]
        code = subprocess.run(command, cwd=REPOSITORY, check=False).returncode  # noqa: S603 - our own interpreter and tests
        if code == 0:
            known = _rows(REPORT.read_text()) if rest and REPORT.exists() else {}
            _write({**known, **_seen(results, seed)})
            print(f"Wrote {REPORT.relative_to(REPOSITORY)}.")
        else:
            print(again)
    return code


def _seen(results: Path, seed: int) -> dict[str, str]:
    """Return the line of every test that was run, by its name."""
    cases = ElementTree.parse(results).getroot().iter("testcase")  # noqa: S314 - pytest has just written it
    now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M")
    lines = {}
    for case in cases:
        seen = [f"{each.get('name')}: {each.get('value')}" for each in case.iter("property")]
        name = f"{str(case.get('classname')).rpartition('.')[2]}: {case.get('name')}"
        lines[name] = f"| {name} | {now} | {float(case.get('time', 0)):.0f} | {', '.join([*seen, f'seed: {seed}'])} |"
    return lines


def _rows(report: str) -> dict[str, str]:
    """Return the lines of a report, by the name of the test."""
    return {found[1]: found[0] for found in re.finditer(r"^\| (\S+: .+?) \| \d{4}-.*$", report, re.MULTILINE)}


def _write(rows: dict[str, str]) -> None:
    machine = f"{os.cpu_count()} cores, {platform.platform()}, Python {platform.python_version()}."
    lines = [rows[name] for name in sorted(rows)]
    REPORT.write_text(HEAD + "\n".join(lines) + f"\n\n{machine}\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
