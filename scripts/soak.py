"""Runs the long tests and writes what they saw into docs/soak.md."""

import datetime
import os
import platform
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
REPORT = REPOSITORY / "docs" / "soak.md"


def main(arguments: list[str]) -> int:
    """The exit code of the test run; the report is written only when everything passed."""
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder, "results.xml")
        command = [sys.executable, "-m", "pytest", "-m", "soak", f"--junitxml={results}", *arguments]
        code = subprocess.run(command, cwd=REPOSITORY, check=False).returncode  # noqa: S603 - our own interpreter and tests
        if code == 0 and not arguments:
            REPORT.write_text(_report(results))
            print(f"Wrote {REPORT.relative_to(REPOSITORY)}.")
    return code


def _report(results: Path) -> str:
    cases = ElementTree.parse(results).getroot().iter("testcase")  # noqa: S314 - pytest has just written it
    now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
    lines = [
        "# The last soak",
        "",
        "Written by `make soak`, only when every test of it passed.",
        "",
        f"{now}, {os.cpu_count()} cores, {platform.platform()}, Python {platform.python_version()}.",
        "",
        "| test | seconds | what it saw |",
        "|---|---|---|",
    ]
    for case in cases:
        seen = [f"{each.get('name')}: {each.get('value')}" for each in case.iter("property")]
        module = str(case.get("classname")).rpartition(".")[2]
        lines.append(f"| {module}: {case.get('name')} | {float(case.get('time', 0)):.0f} | {', '.join(seen)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
