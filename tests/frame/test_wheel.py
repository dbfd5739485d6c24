"""The wheel is whole: in an environment that has nothing but it and what it names, it serves."""

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

REPOSITORY = Path(__file__).resolve().parents[2]
SOURCES = ("pyproject.toml", "setup.py", "README.md", "LICENSE", "src")

FIRST_RECORD = """
import logmark, logmark.wire.columns
from confluent_kafka import Producer
from logmark.testing import Broker

with Broker(subprocess=True) as broker:
    broker.create_topic("orders")
    answers = []
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    producer.produce("orders", b"ORD-1001", on_delivery=lambda error, sent: answers.append((error, sent.offset())))
    producer.flush(60)
print(logmark.__file__, logmark.wire.columns.__file__, answers, sep="\\n")
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this source tree, built from a copy, so that the tree itself stays as it is."""
    work = tmp_path_factory.mktemp("wheel")
    for name in SOURCES:
        if (REPOSITORY / name).is_dir():
            # What Cython has written stays, and is written anew where a source is newer.
            built = shutil.ignore_patterns("*.so", "*.egg-info", "__pycache__")
            shutil.copytree(REPOSITORY / name, work / name, ignore=built)
        else:
            shutil.copy(REPOSITORY / name, work / name)
    # What the compiled modules do is asked here, not how fast: the optimiser would run for most of a minute.
    compiler = work / "cc"
    compiler.write_text('#!/bin/sh\nexec cc "$@" -O0\n')
    compiler.chmod(0o755)
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(work / "dist"), str(work)]
    env = {**os.environ, "CC": str(compiler)}
    done = subprocess.run(build, capture_output=True, text=True, check=False, env=env)
    assert 0 == done.returncode, done.stdout + done.stderr
    (made,) = (work / "dist").glob("*.whl")
    return made


def needed(name: str, known: dict[str, metadata.Distribution]) -> None:
    """Adds to `known` what a distribution needs without any extra, down to the last."""
    for line in metadata.requires(name) or []:
        requirement = Requirement(line)
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        if requirement.name.lower() not in known:
            known[requirement.name.lower()] = metadata.distribution(requirement.name)
            needed(requirement.name, known)


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel and its dependencies, and nothing else.

    The dependencies are linked from the environment of this test run instead of fetched again: the test stays quick
    and works without a network, and still fails when the wheel needs what it does not name.
    """
    folder = tmp_path_factory.mktemp("environment") / "venv"
    venv.create(folder, with_pip=False, symlinks=True)
    python = folder / "bin" / "python"
    install = [sys.executable, "-m", "pip", "--python", str(python), "install", "--no-index", "--no-deps", str(wheel)]
    done = subprocess.run(install, capture_output=True, text=True, check=False)
    assert 0 == done.returncode, done.stdout + done.stderr
    site = Path(sysconfig.get_path("purelib", vars={"base": str(folder), "platbase": str(folder)}))
    known: dict[str, metadata.Distribution] = {}
    needed("logmark", known)
    for distribution in known.values():
        for top in {file.parts[0] for file in distribution.files or [] if file.parts[0] not in ("..", "__pycache__")}:
            source = Path(str(distribution.locate_file(top)))
            if source.exists() and not (site / top).exists():
                (site / top).symlink_to(source)
    return folder


def test_the_wheel_holds_compiled_modules_and_not_what_they_were_compiled_from(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()

    compiled = {name.partition(".")[0] for name in names if name.endswith(".so")}
    assert 4 == len(compiled)
    assert "logmark/spark/source/json_columns" in compiled
    assert 3 == sum(name.startswith("logmark/wire/") for name in compiled)
    assert [] == [name for name in names if name.endswith(".c")]


def test_the_wheel_serves_from_an_empty_environment(environment: Path) -> None:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(
        [environment / "bin" / "python", "-c", FIRST_RECORD],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env=clean,
        cwd=environment,
    )

    assert 0 == done.returncode, done.stderr
    package, columns, answers = done.stdout.splitlines()
    assert package.startswith(str(environment))
    assert columns.startswith(str(environment)) and columns.endswith(".so")
    assert "[(None, 0)]" == answers


def test_the_command_is_there_and_no_extra_is(environment: Path) -> None:
    version = subprocess.run(
        [environment / "bin" / "logmark", "--version"], capture_output=True, text=True, check=False
    )
    assert (0, f"logmark {metadata.version('logmark')}") == (version.returncode, version.stdout.strip())
    for extra in ("pyspark", "pyarrow", "pandas", "numpy", "deltalake"):
        absent = subprocess.run(
            [environment / "bin" / "python", "-c", f"import {extra}"], capture_output=True, check=False
        )
        assert 0 != absent.returncode, f"{extra} is in the light core"
