"""From a fresh install to the first reset: the commands that the tour names are run as they stand there."""

import os
import subprocess
import sys
from pathlib import Path

from logmark.client.client import Client
from logmark.names import TopicPartition
from logmark.tour.elements import Element, Prose, Steps
from logmark.tour.firststeps import INSTALL, KAFKAS, OURS, SERVE, tell


def test_the_first_reset_takes_fewer_commands_than_kafkas_quickstart_takes_to_read_a_record() -> None:
    elements: list[Element] = []
    tell(elements.append)

    assert [Steps(OURS), Steps(KAFKAS)] == [element for element in elements if isinstance(element, Steps)]
    assert (6, 8) == (len(OURS), len(KAFKAS))
    said = " ".join(element.text for element in elements if isinstance(element, Prose))
    assert "Your turn: six commands" in said
    assert "needs eight until a record is read" in said


def test_the_commands_lead_to_a_reset_as_they_stand_there(tmp_path: Path) -> None:
    install, serve, *others = OURS
    # What is installed here is what `pip install .` installs: tests/frame/test_wheel.py.
    assert (INSTALL, SERVE) == (install, serve)
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    env = {**os.environ, "PATH": path}
    # Kafka's port may be taken on this machine, and a new group need not wait three seconds for more members.
    here = ["--listen", "127.0.0.1:0", "--set", "group.initial.rebalance.delay.ms=0"]
    with subprocess.Popen(
        [*serve.split(), *here], cwd=tmp_path, env=env, stdout=subprocess.PIPE, text=True
    ) as broker:
        try:
            assert broker.stdout is not None
            ready = broker.stdout.readline()
            servers = ready.partition("listening on ")[2].partition(",")[0]
            printed = [_run(command, tmp_path, {**env, "LOGMARK_BOOTSTRAP_SERVERS": servers}) for command in others]
            with Client(servers) as client:
                committed = client.committed("billing")[TopicPartition("clicks", 0)]
            again = _run(others[2], tmp_path, {**env, "LOGMARK_BOOTSTRAP_SERVERS": servers})
        finally:
            broker.terminate()

    assert "/home\n/shoes\n/cart\n" == printed[2]
    assert 0 == committed.offset
    assert printed[2] == again


def _run(command: str, folder: Path, env: dict[str, str]) -> str:
    done = subprocess.run(
        command, shell=True, cwd=folder, env=env, capture_output=True, text=True, check=False, timeout=120
    )
    assert 0 == done.returncode, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout
