"""The first minute of the README is what really happens."""

import os
import re
import subprocess
import sys
from pathlib import Path

from logmark.testing import Broker

REPOSITORY = Path(__file__).resolve().parents[2]


def first_minute() -> list[tuple[str, list[str]]]:
    """Every command of that chapter with the lines that it prints there."""
    chapter = (REPOSITORY / "README.md").read_text().partition("## A first minute")[2].partition("\n## ")[0]
    blocks = re.findall(r"```console\n(.*?)```", chapter, re.DOTALL)
    shown: list[tuple[str, list[str]]] = []
    for line in "".join(blocks).splitlines():
        if line.startswith("$ "):
            shown.append((line.removeprefix("$ "), []))
        else:
            shown[-1][1].append(line)
    return shown


def settled(lines: list[str]) -> list[list[str]]:
    """The words of lines, without what differs from run to run: times, ages, and the ids of changes."""
    text = "\n".join(lines)
    text = re.sub(r"\d{4}-\d\d-\d\dT[\d:.]+Z", "TIME", text)
    text = re.sub(r"\b\d+ m?s\b", "AGE", text)
    text = re.sub(r"(undo) [0-9a-z]{11}\b", r"\1 ID", text)
    return [line.split() for line in text.splitlines()]


def test_the_first_minute_of_the_readme_prints_what_it_says(tmp_path: Path) -> None:
    (serve, (ready,)), *commands = first_minute()
    assert "logmark serve" == serve
    assert re.fullmatch(r"Logmark \S+ listening on \S+:9092, \S+:9092, data in \S+-data, durability sync", ready)

    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    with Broker() as broker:
        env = {**os.environ, "PATH": path, "LOGMARK_BOOTSTRAP_SERVERS": broker.bootstrap_servers}
        for command, expected in commands:
            done = subprocess.run(
                command, shell=True, cwd=tmp_path, env=env, capture_output=True, text=True, check=False, timeout=120
            )
            assert settled(expected) == settled((done.stdout + done.stderr).splitlines()), command
