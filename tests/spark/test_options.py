"""The options of format("logmark"), and the sentences for mistakes in them."""

import pickle

import pytest

from logmark.errors import UserError
from logmark.names import TopicPartition
from logmark.spark.options import parse

BATCH = {"bootstrap.servers": "b:1", "subscribe": "clicks"}
STREAM = BATCH | {"group.id": "billing"}


def test_kafkas_names_and_the_bare_ones_mean_the_same() -> None:
    bare = parse(STREAM | {"auto.offset.reset": "earliest"}, is_stream=True)
    kafkas = parse(
        {
            "kafka.bootstrap.servers": "b:1",
            "subscribe": "clicks",
            "kafka.group.id": "billing",
            "kafka.auto.offset.reset": "earliest",
        },
        is_stream=True,
    )

    assert bare == kafkas


def test_names_are_read_as_spark_gives_them_in_small_letters() -> None:
    options = parse(
        {
            key.lower(): value
            for key, value in (STREAM | {"maxOffsetsPerTrigger": "5", "includeHeaders": "TRUE"}).items()
        },
        is_stream=True,
    )

    assert (5, True) == (options.records_per_trigger_max, options.with_headers)


def test_several_topics_or_single_partitions_can_be_named() -> None:
    both = parse(BATCH | {"subscribe": "clicks, orders,clicks"}, is_stream=False)
    one = parse({"bootstrap.servers": "b:1", "assign": '{"clicks": [1]}'}, is_stream=False)

    assert ("clicks", "orders") == both.topics
    assert [False, True] == [one.wants(TopicPartition("clicks", number)) for number in (0, 1)]


def test_security_settings_are_passed_to_the_client() -> None:
    options = parse(BATCH | {"kafka.security.protocol": "SASL_SSL", "kafka.sasl.mechanism": "PLAIN"}, is_stream=False)

    assert {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN"} == options.client


def test_offsets_of_a_batch_are_read_from_json() -> None:
    options = parse(
        BATCH | {"startingOffsets": '{"clicks": {"0": 5, "1": -2}}', "endingOffsets": "latest"}, is_stream=False
    )

    assert {TopicPartition("clicks", 0): 5, TopicPartition("clicks", 1): -2} == options.starting
    assert "latest" == options.ending


def test_options_travel_to_the_executors() -> None:
    options = parse(BATCH | {"startingOffsets": '{"clicks": {"0": 5}}'}, is_stream=False)

    assert options == pickle.loads(pickle.dumps(options))


MISTAKES = [
    ({"subscribe": "clicks"}, "bootstrap.servers is missing"),
    ({"bootstrap.servers": "b:1"}, "exactly one of the options subscribe"),
    (BATCH | {"assign": '{"clicks": [0]}'}, "exactly one of the options subscribe"),
    (BATCH | {"subscribePattern": "c.*"}, "has no option subscribePattern. Name the topics with subscribe"),
    (BATCH | {"nonsense": "1"}, "has no option nonsense. It knows: bootstrap.servers"),
    (BATCH | {"failOnDataLoss": "false"}, "is said by auto.offset.reset"),
    (BATCH | {"sasl.mechanism": "PLAIN"}, "write kafka.sasl.mechanism"),
    (BATCH | {"kafka.isolation.level": "read_committed"}, "reads all records"),
    (BATCH | {"startingTimestamp": "5"}, "logmark offsets reset"),
    (BATCH | {"kafka.bootstrap.servers": "other:1"}, "say different things"),
    (BATCH | {"auto.offset.reset": "latest"}, "is for streams"),
    (BATCH | {"maxOffsetsPerTrigger": "5"}, "is for streams"),
    (BATCH | {"startingOffsets": "latest"}, "must be earliest or committed"),
    (BATCH | {"startingOffsets": "committed"}, "needs group.id"),
    (BATCH | {"startingOffsets": '{"clicks": {"0": "5"}}'}, "must be earliest or committed"),
    (BATCH | {"startingOffsets": '{"clicks": {"0": -3}}'}, "must be earliest or committed"),
    (BATCH | {"startingOffsets": '{"clicks": 5}'}, "must be earliest or committed"),
    (BATCH | {"startingOffsets": "{"}, "is not JSON"),
    (BATCH | {"endingOffsets": '{"clicks": {"0": -2}}'}, "must be latest"),
    (BATCH | {"minPartitions": "0"}, "whole number above 0"),
    (BATCH | {"maxRecordsPerPartition": "many"}, "whole number above 0"),
    (BATCH | {"includeHeaders": "yes"}, "must be true or false"),
    ({"bootstrap.servers": "b:1", "assign": "[0]"}, "must be a JSON object"),
    ({"bootstrap.servers": "b:1", "assign": '{"clicks": 0}'}, "must list partitions"),
    ({"bootstrap.servers": "b:1", "assign": "{}"}, "names no partition"),
]


@pytest.mark.parametrize(("given", "sentence"), MISTAKES)
def test_a_mistake_in_a_batch_read_is_a_sentence(given: dict[str, str], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence.replace("{", r"\{")):
        parse(given, is_stream=False)


STREAM_MISTAKES = [
    (BATCH, "group.id is missing"),
    (STREAM | {"startingOffsets": "earliest"}, "is for batch reads"),
    (STREAM | {"endingOffsets": "latest"}, "is for batch reads"),
    (STREAM | {"auto.offset.reset": "now"}, "must be earliest, latest or none"),
]


@pytest.mark.parametrize(("given", "sentence"), STREAM_MISTAKES)
def test_a_mistake_in_a_stream_is_a_sentence(given: dict[str, str], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        parse(given, is_stream=True)
