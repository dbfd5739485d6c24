"""Runs the long tests, or those that are named, and writes what they saw into docs/soak.md."""

import datetime
import os
import platform
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
REPORT = REPOSITORY / "docs" / "soak.md"
HEAD = """# The last soak

Written by `make soak`, only when every test of it passed; `make soak ARGS=tests/offsets` runs some of them and writes
their lines anew.

| test | when (UTC) | seconds | what it saw |
|---|---|---|---|
"""


def main(arguments: list[str]) -> int:
    """The exit code of the test run; the report is written only when everything passed."""
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder, "results.xml")
        command = [sys.executable, "-m", "pytest", "-m", "soak", f"--junitxml={results}", *arguments]
        code = subprocess.run(command, cwd=REPOSITORY, check=False).returncode  # noqa: S603 - our own interpreter and tests
        if code == 0:
            known = _rows(REPORT.read_text()) if arguments and REPORT.exists() else {}
            _write({**known, **_seen(results)})
            print(f"Wrote {REPORT.relative_to(REPOSITORY)}.")
    return code


def _seen(results: Path) -> dict[str, str]:
    """The line of every test that was run, by its name."""
    cases = ElementTree.parse(results).getroot().iter("testcase")  # noqa: S314 - pytest has just written it
    now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M")
    lines = {}
    for case in cases:
        seen = [f"{each.get('name')}: {each.get('value')}" for each in case.iter("property")]
        name = f"{str(case.get('classname')).rpartition('.')[2]}: {case.get('name')}"
        lines[name] = f"| {name} | {now} | {float(case.get('time', 0)):.0f} | {', '.join(seen)} |"
    return lines


def _rows(report: str) -> dict[str, str]:
    """The lines of a report, by the name of the test."""
    return {found[1]: found[0] for found in re.finditer(r"^\| (\S+: .+?) \| \d{4}-.*$", report, re.MULTILINE)}


def _write(rows: dict[str, str]) -> None:
    machine = f"{os.cpu_count()} cores, {platform.platform()}, Python {platform.python_version()}."
    lines = [rows[name] for name in sorted(rows)]
    REPORT.write_text(HEAD + "\n".join(lines) + f"\n\n{machine}\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
