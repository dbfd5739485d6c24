"""A short life of a broker's logs on the real file system, in a process that can be killed at any system call.

The process tells how many steps it has finished; what each of them promises, the same script in memory knows.
"""

import os
import sys

from logmark.disk.file_system import RealFileSystem
from tests.crash.crash_file_system import CrashFileSystem
from tests.crash.promises import Promises
from tests.crash.scenarios import Script, ScriptRun

SCRIPT: Script = [
    ("create", 0, 2),
    ("append", 0, 0, 2, 300),
    ("append", 1, 100, 1, 200),
    ("settle",),
    ("append", 0, 0, 1, 900),
    ("append", 0, 1, 1, 900),
    ("end transaction", 0, False),
    ("settle",),
    ("checkpoint",),
    ("create", 1, 1),
    ("append", 2, -1, 3, 900),
    ("settle",),
    ("delete records", 0, 2),
    ("restart",),
    ("append", 0, 0, 2, 900),
    ("append", 1, 0, 1, 900),
    ("settle",),
    ("retain", 6),
    ("settle",),
    ("delete", 1),
    ("append", 1, 0, 1, 900),
    ("settle",),
    ("retain", 2),
    ("restart",),
    ("append", 0, 1, 1, 100),
    ("settle",),
]


def promised() -> list[Promises]:
    """What has been promised before the first step and after each."""
    run = ScriptRun(CrashFileSystem(), moments=False)
    return [promises.at(None) for promises in run.steps(SCRIPT)]


def promised_during(step: int, all_promised: list[Promises]) -> Promises:
    """What a process has promised that was killed after so many steps: of the next, everything may be there or not."""
    before = all_promised[step].at(None)
    after = all_promised[min(step + 1, len(all_promised) - 1)].at(None)
    for name, topic in before.topics.items():
        if name not in after.topics:
            topic.is_certain = False
            after.topics[name] = topic
            continue
        for told, possible in zip(topic.partitions, after.topics[name].partitions, strict=True):
            possible.acknowledged, possible.start = told.acknowledged, told.start
    for name, topic in after.topics.items():
        topic.id = None
        topic.is_certain = topic.is_certain and name in before.topics
    return after


if __name__ == "__main__":
    for _ in ScriptRun(RealFileSystem(), path=sys.argv[1], moments=False).steps(SCRIPT):
        os.write(1, b".")
