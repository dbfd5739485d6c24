"""`make` brings system packages only when they are missing and it may, and prints why not otherwise."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "system-packages.sh"
TOOLS = ("cc", "java", "mvn", "kcat", "strace")


class FakeMachine:
    """A machine that has the commands it is given, and nothing else but a shell."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.installed = folder / "installed"

    def has(self, *commands: str) -> "FakeMachine":
        for command in commands:
            self._script(command, "exit 0")
        return self

    def with_apt_get(self, *, as_root: bool) -> "FakeMachine":
        self._script("apt-get", f'echo "$@" >> {self.installed}')
        self._script("id", "echo 0" if as_root else "echo 1000")
        return self

    def set_up(self, **env: str) -> tuple[int, str]:
        done = subprocess.run(
            ["/bin/bash", SCRIPT],
            env={"PATH": str(self.folder), "PYTHON": sys.executable, **env},
            capture_output=True,
            text=True,
            check=False,
        )
        return done.returncode, done.stdout + done.stderr

    def _script(self, name: str, body: str) -> None:
        path = self.folder / name
        path.write_text(f"#!/bin/bash\n{body}\n")
        path.chmod(0o755)


@pytest.fixture
def machine(tmp_path: Path) -> FakeMachine:
    return FakeMachine(tmp_path)


def test_a_machine_that_has_everything_is_left_alone(machine: FakeMachine) -> None:
    assert (0, "") == machine.has(*TOOLS).with_apt_get(as_root=True).set_up()
    assert not machine.installed.exists()


def test_root_gets_what_is_missing_and_no_more(machine: FakeMachine) -> None:
    code, said = machine.has("cc", "java", "strace").with_apt_get(as_root=True).set_up()

    assert 0 == code
    assert "maven kcat" in said
    install = machine.installed.read_text().splitlines()[-1]
    assert install.startswith("install -y") and install.endswith("maven kcat")


def test_others_are_told_the_command(machine: FakeMachine) -> None:
    code, said = machine.has("cc", "strace").with_apt_get(as_root=False).set_up()

    assert 1 == code
    assert "sudo apt-get install -y --no-install-recommends openjdk-17-jre-headless maven kcat" in said
    assert not machine.installed.exists()


def test_a_system_without_apt_get_is_told_what_is_missing(machine: FakeMachine) -> None:
    code, said = machine.has("cc", "java", "mvn").set_up()

    assert 1 == code
    assert "kcat" in said and "Install" in said


def test_without_java_it_goes_on_when_that_is_allowed(machine: FakeMachine) -> None:
    code, said = machine.has("cc").with_apt_get(as_root=False).set_up(ALLOW_NO_KAFKA="1")

    assert 0 == code
    assert "going on without" in said


def test_without_a_compiler_it_never_goes_on(machine: FakeMachine) -> None:
    code, said = machine.has("java", "mvn", "kcat").with_apt_get(as_root=False).set_up(ALLOW_NO_KAFKA="1")

    assert 1 == code
    assert "build-essential" in said


def test_an_old_or_missing_python_is_named(machine: FakeMachine) -> None:
    machine.has(*TOOLS)
    machine._script("python3.9", 'case "$1" in -V) echo Python 3.9.2;; *) exit 1;; esac')

    assert (1, True) == (machine.set_up(PYTHON="python3.9")[0], "Python 3.9.2" in machine.set_up(PYTHON="python3.9")[1])
    code, said = machine.set_up(PYTHON="python4")
    assert 1 == code and "there is no python4" in said
