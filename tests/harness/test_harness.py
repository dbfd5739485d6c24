"""The harness brings Apache Kafka or says why it cannot."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness import distribution, file_scheduler
from tests.harness.brokers import BrokerUnderTest
from tests.harness.tools import GET_OFFSETS, TOPICS, run_tool

PROBE = """
import pytest

@pytest.mark.kafka
def test_that_needs_kafka():
    pass
"""


def run_probe(tmp_path: Path, **env: str) -> "subprocess.CompletedProcess[str]":
    """Runs one test marked `kafka` under this repository's conftest, on a machine without Java."""
    tests = tmp_path / "tests"
    tests.mkdir()
    repository = distribution.REPOSITORY
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = kafka: needs Apache Kafka\n")
    (tests / "conftest.py").write_text(
        f"import sys; sys.path.insert(0, {str(repository)!r})\nfrom tests.conftest import pytest_runtest_setup\n"
    )
    (tests / "test_probe.py").write_text(PROBE)
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tests)],
        cwd=tmp_path,
        env={"PATH": str(tmp_path), "PYTHONPATH": str(repository / "src"), **env},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_a_run_without_java_fails_with_an_error_message(tmp_path: Path) -> None:
    done = run_probe(tmp_path)
    assert 1 == done.returncode, done.stdout
    assert "No Java was found, and Apache Kafka 4.3.1 needs one" in done.stdout
    assert "set ALLOW_NO_KAFKA=1" in done.stdout
    assert "Traceback" not in done.stdout


def test_a_run_without_java_skips_when_that_is_allowed(tmp_path: Path) -> None:
    done = run_probe(tmp_path, ALLOW_NO_KAFKA="1")
    assert 0 == done.returncode, done.stdout
    assert "1 skipped" in done.stdout


def test_a_fetch_without_maven_is_refused_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(distribution.KafkaUnavailable, match="No Maven was found"):
        distribution._fetch(tmp_path / "cache" / "lib")
    assert not (tmp_path / "cache" / "lib").exists()


@pytest.mark.kafka
def test_a_tool_reads_what_a_client_wrote(apache_kafka: BrokerUnderTest) -> None:
    topic = apache_kafka.create_topic("orders", partitions=2)
    apache_kafka.produce(topic, ["ORD-1001", "ORD-1002"], partition=1)

    assert topic in run_tool(TOPICS, "--list", broker=apache_kafka).check().stdout.split()
    offsets = run_tool(GET_OFFSETS, "--topic", topic, broker=apache_kafka).check().stdout
    assert [f"{topic}:0:0", f"{topic}:1:2"] == offsets.split()


def test_one_worker_gets_all_that_uses_spark_and_every_other_file_stays_whole() -> None:
    assert {file_scheduler.SPARK} == {
        file_scheduler.unit_of(f"tests/spark/{name}.py") for name in ("source/test_streams", "tables/test_tables")
    }
    for file in ("tests/spark/source/test_options.py", "tests/harness/test_harness.py"):
        assert file == file_scheduler.unit_of(file)


def test_what_uses_spark_comes_first(request: pytest.FixtureRequest) -> None:
    units = [file_scheduler.unit_of(item.nodeid.partition("::")[0]) for item in request.session.items]
    assert sorted(units, key=lambda unit: unit != file_scheduler.SPARK) == units
