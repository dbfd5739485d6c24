"""Our broker and Apache Kafka answer the same requests alike, in every version that we serve."""

import re
import time
import uuid
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from logmark.broker import api
from logmark.wire.schema import api_versions, metadata
from tests.harness.brokers import BrokerUnderTest
from tests.harness.restartable_broker import own_broker
from tests.oracle import (
    dialogues_of_commits,
    dialogues_of_groups,
    dialogues_of_reading,
    dialogues_of_records,
    dialogues_of_topics,
)
from tests.oracle.dialogue import DIALOGUES, Dialogue, Difference, Talk, dialogue_of, differences
from tests.oracle.dialogues_of_topics import topics_are_made_by_asking
from tests.oracle.kept_differences import KEPT

pytestmark = pytest.mark.kafka

# Importing them has entered their dialogues.
SPOKEN = (
    dialogues_of_topics,
    dialogues_of_records,
    dialogues_of_reading,
    dialogues_of_groups,
    dialogues_of_commits,
)


# A broker that makes topics for those who ask needs settings of its own.
MAKING_TOPICS = {"auto.create.topics.enable": "true", "num.partitions": "3"}
MAKING = dialogue_of(metadata, speak=topics_are_made_by_asking)


def find_differences(dialogue: Dialogue, ours: str, kafkas: str) -> list[tuple[dict[str, int], Difference]]:
    """What the two brokers answered differently, round by round."""
    found = []
    for versions in dialogue.rounds:
        suffix, now_ms = uuid.uuid4().hex[:8], time.time_ns() // 1_000_000
        transcripts = []
        for bootstrap_servers in (ours, kafkas):
            talk = Talk(bootstrap_servers=bootstrap_servers, suffix=suffix, versions=versions, now_ms=now_ms)
            with closing(talk):
                dialogue.speak(talk)
            transcripts.append(talk.steps)
        spoken = {schema.__name__.rpartition(".")[2]: version for schema, version in versions.items()}
        found += [(spoken, difference) for difference in differences(*transcripts)]
    return found


def check(dialogue: Dialogue, ours: str, kafkas: str) -> None:
    """The brokers differ where the table of kept differences says so, and nowhere else."""
    found = find_differences(dialogue, ours, kafkas)
    kept = [each for each in KEPT if re.fullmatch(each.dialogue, dialogue.name)]

    unexplained = [(spoken, each) for spoken, each in found if not any(one.explains(each) for one in kept)]
    outdated = [one for one in kept if one.is_steady and not any(one.explains(each) for _, each in found)]

    assert not unexplained, f"{dialogue.name}:\n" + "\n".join(f"{spoken} {each}" for spoken, each in unexplained)
    assert not outdated, f"{dialogue.name}: these differences are no more: {outdated}"


@pytest.mark.parametrize("name", list(DIALOGUES))
def test_both_brokers_give_the_same_answers(
    name: str, our_broker: BrokerUnderTest, apache_kafka: BrokerUnderTest
) -> None:
    check(DIALOGUES[name], our_broker.bootstrap_servers, apache_kafka.bootstrap_servers)


def test_both_brokers_make_topics_for_those_who_ask(tmp_path: Path) -> None:
    with ExitStack() as started:
        ours, kafkas = (
            started.enter_context(own_broker(kind, tmp_path / kind, MAKING_TOPICS)).clients.bootstrap_servers
            for kind in ("logmark", "kafka")
        )

        check(MAKING, ours, kafkas)


def test_every_kept_difference_names_a_dialogue() -> None:
    names = [*DIALOGUES, MAKING.name]

    assert not [kept for kept in KEPT if not any(re.fullmatch(kept.dialogue, name) for name in names)]


def test_every_api_that_is_served_is_the_subject_of_a_dialogue() -> None:
    spoken = {
        (subject.KEY, round[subject]) for each in DIALOGUES.values() for round in each.rounds for subject in round
    }

    assert {(module.KEY, version) for module in api.MODULES for version in module.VERSIONS} == spoken


def test_apache_kafka_has_every_version_that_is_served(apache_kafka: BrokerUnderTest) -> None:
    talk = Talk(bootstrap_servers=apache_kafka.bootstrap_servers, suffix="", versions={}, now_ms=0)
    answer = talk.do(api_versions.Request(client_software_name="dialogue", client_software_version="1"))
    talk.close()
    kafkas = {each.api_key: range(each.min_version, each.max_version + 1) for each in answer.api_keys}

    assert not {
        module.KEY: module.VERSIONS
        for module in api.MODULES
        if not set(module.VERSIONS) <= set(kafkas.get(module.KEY, ()))
    }
