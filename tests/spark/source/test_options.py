"""The options of format("logmark") as a reader, and the errors for mistakes in them."""

import pickle
import re

import pytest

from logmark.errors import UserError
from logmark.names import TopicPartition
from logmark.spark.source.limits import Limits
from logmark.spark.source.offset_specs import EARLIEST, LATEST, AtOffsets, AtTime, OffsetSpec, RecordsBack, TimeAgo
from logmark.spark.source.option_names import NAMES, REFUSED, WITHOUT_EFFECT
from logmark.spark.source.options import SourceOptions, parse_source_options

BATCH = {"bootstrap.servers": "b:1", "subscribe": "clicks"}
STREAM = BATCH | {"group.id": "billing"}
P0, P1 = TopicPartition("clicks", 0), TopicPartition("clicks", 1)


def stream(**given: str) -> SourceOptions:
    return parse_source_options(STREAM | given, is_stream=True)


def batch(**given: str) -> SourceOptions:
    return parse_source_options(BATCH | given, is_stream=False)


def test_kafkas_names_and_the_bare_ones_mean_the_same() -> None:
    bare = {"auto.offset.reset": "earliest", "isolation.level": "read_committed", "ssl.ca.location": "/ca.pem"}
    kafkas = {f"kafka.{name}": value for name, value in ({"group.id": "billing"} | bare).items()}

    assert stream(**bare) == parse_source_options(
        {"kafka.bootstrap.servers": "b:1", "subscribe": "clicks", **kafkas}, is_stream=True
    )


def test_names_are_read_as_spark_gives_them_in_small_letters() -> None:
    options = stream(**{"maxoffsetspertrigger": "5", "includeheaders": "TRUE"})

    assert (5, True) == (options.limits.records_max, options.with_headers)


def test_columns_are_read_in_the_order_in_which_they_are_named() -> None:
    assert ("offset", "timestampType", "key") == batch(columns="offset, timestamptype ,KEY").columns
    assert (False, True) == (batch(columns="key").with_headers, batch(columns="headers").with_headers)
    everything = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")
    assert (everything, (*everything, "headers")) == (batch().columns, batch(includeHeaders="true").columns)


def test_several_topics_or_single_partitions_or_a_pattern_can_be_named() -> None:
    both = batch(subscribe="clicks, orders,clicks")
    one = parse_source_options({"bootstrap.servers": "b:1", "assign": '{"clicks": [1]}'}, is_stream=False)
    some = parse_source_options({"bootstrap.servers": "b:1", "subscribePattern": "cli.*"}, is_stream=False)

    assert ("clicks", "orders") == both.topics
    assert [False, True] == [one.wants(partition) for partition in (P0, P1)]
    assert [True, False] == [some.wants(partition) for partition in (P0, TopicPartition("old-clicks", 0))]


def test_security_settings_are_passed_to_the_client_under_both_libraries_names() -> None:
    java = {"kafka.security.protocol": "SSL", "kafka.ssl.truststore.location": "/ca.p12"}
    librdkafka = {"security.protocol": "SSL", "ssl.ca.location": "/ca.pem"}

    assert {"security.protocol": "SSL", "ssl.truststore.location": "/ca.p12"} == batch(**java).client
    assert librdkafka == batch(**librdkafka).client


EDGES: list[tuple[dict[str, str], OffsetSpec]] = [
    ({"startingOffsets": "earliest"}, EARLIEST),
    ({"startingOffsets": "LATEST"}, LATEST),
    ({"startingOffsets": '{"clicks": {"0": 5, "1": -2}}'}, AtOffsets({P0: 5, P1: -2})),
    ({"startingOffsets": "-2h"}, TimeAgo(7_200_000)),
    ({"startingOffsets": "-1000"}, RecordsBack(1000)),
    ({"startingOffsets": "-1 records"}, RecordsBack(1)),
    ({"startingTimestamp": "1700000000"}, AtTime(1_700_000_000)),
    ({"startingTimestamp": "2023-11-14T22:13:20Z"}, AtTime(1_700_000_000_000)),
    ({"startingTimestamp": "3d ago"}, TimeAgo(3 * 86_400_000)),
    ({"startingTimestamp": "5", "startingOffsetsByTimestampStrategy": "latest"}, AtTime(5, is_strict=False)),
    ({"startingOffsetsByTimestamp": '{"clicks": {"0": 7}}'}, AtTime({P0: 7})),
    ({"auto.offset.reset": "by_duration:PT2H"}, TimeAgo(7_200_000)),
    ({"auto.offset.reset": "earliest", "startingOffsets": "latest"}, LATEST),
    ({"startingTimestamp": "5", "startingOffsetsByTimestamp": '{"clicks": {"0": 7}}'}, AtTime(5)),
    ({"startingOffsetsByTimestamp": '{"clicks": {"0": 7}}', "startingOffsets": "earliest"}, AtTime({P0: 7})),
    ({}, LATEST),
]


@pytest.mark.parametrize(("given", "edge"), EDGES)
def test_a_stream_can_start_at(given: dict[str, str], edge: OffsetSpec) -> None:
    assert edge == stream(**given).starting


ENDS: list[tuple[dict[str, str], OffsetSpec | None]] = [
    ({}, None),
    ({"endingOffsets": "latest"}, LATEST),
    ({"endingOffsets": '{"clicks": {"0": 5, "1": -1}}'}, AtOffsets({P0: 5, P1: -1})),
    ({"endingTimestamp": "-1d"}, TimeAgo(86_400_000)),
    ({"endingTimestamp": "9", "startingOffsetsByTimestampStrategy": "error"}, AtTime(9, is_strict=False)),
    ({"endingOffsetsByTimestamp": '{"clicks": {"0": 7}}'}, AtTime({P0: 7}, is_strict=False)),
]


@pytest.mark.parametrize(("given", "edge"), ENDS)
def test_a_stream_and_a_batch_read_can_end_at(given: dict[str, str], edge: OffsetSpec | None) -> None:
    assert edge == stream(**given).ending
    assert (edge or LATEST) == batch(**given).ending


LOSSES: list[tuple[dict[str, str], OffsetSpec | None]] = [
    ({}, None),
    ({"failOnDataLoss": "true", "auto.offset.reset": "earliest"}, None),
    ({"failOnDataLoss": "false"}, EARLIEST),
    ({"failOnDataLoss": "false", "auto.offset.reset": "latest"}, LATEST),
    ({"failOnDataLoss": "false", "auto.offset.reset": "none"}, EARLIEST),
    ({"auto.offset.reset": "earliest"}, EARLIEST),
    ({"auto.offset.reset": "latest"}, LATEST),
    ({"auto.offset.reset": "none"}, None),
    ({"startingOffsets": "earliest"}, None),
]


@pytest.mark.parametrize(("given", "edge"), LOSSES)
def test_where_reading_continues_after_a_loss_is_said_by_two_options(
    given: dict[str, str], edge: OffsetSpec | None
) -> None:
    assert edge == stream(**given).lost


def test_a_stream_is_limited_in_records_in_bytes_and_in_time() -> None:
    given = {"maxOffsetsPerTrigger": "50", "maxBytesPerTrigger": "4096", "minOffsetsPerTrigger": "10"}

    assert Limits(records_max=50, bytes_max=4096, records_min=10, delay_max_ms=900_000) == stream(**given).limits
    for text in ("2m", "120s", "PT2M", "120000", "2 minutes", "2min"):
        assert 120_000 == stream(maxTriggerDelay=text).limits.delay_max_ms


def test_a_query_is_patient_and_says_how_patient() -> None:
    assert (900.0, 120.0, 3600.0) == (stream().patience_s, batch().patience_s, stream(waitForBroker="1h").patience_s)


def test_the_largest_numbers_names_and_lengths_are_taken() -> None:
    most = {"fetch.max.bytes": str(255 << 20), "client.id": "c" * 32_767, "waitForBroker": "100000d"}
    most |= {"startingTimestamp": str(2**63 - 1), "endingOffsets": f'{{"clicks": {{"{2**31 - 1}": {2**63 - 1}}}}}'}

    options = batch(**most, subscribe="x" * 249)

    assert (255 << 20, 32_767, 8.64e9) == (options.fetch_bytes_max, len(options.client_id), options.patience_s)
    assert (AtTime(2**63 - 1), ("x" * 249,)) == (options.starting, options.topics)
    assert AtOffsets({TopicPartition("clicks", 2**31 - 1): 2**63 - 1}) == options.ending


def test_every_option_of_sparks_connector_is_known() -> None:
    theirs = re.findall(
        r"\S+",
        """assign subscribe subscribePattern startingTimestamp startingOffsetsByTimestamp startingOffsets
        startingOffsetsByTimestampStrategy endingTimestamp endingOffsetsByTimestamp endingOffsets failOnDataLoss
        kafkaConsumer.pollTimeoutMs fetchOffset.numRetries fetchOffset.retryIntervalMs partition.metadata.cache.ttl.ms
        maxOffsetsPerTrigger minOffsetsPerTrigger maxTriggerDelay minPartitions maxRecordsPerPartition groupIdPrefix
        includeHeaders kafka.bootstrap.servers kafka.group.id kafka.isolation.level""",
    )
    ours = {name.lower() for name in (*NAMES, *(f"kafka.{name}" for name in NAMES), *WITHOUT_EFFECT, *REFUSED)}

    assert [] == [name for name in theirs if name.lower() not in ours]


def test_what_tunes_only_javas_client_is_accepted_and_changes_nothing() -> None:
    assert stream() == stream(**dict.fromkeys(WITHOUT_EFFECT, "512"))


def test_options_travel_to_the_executors() -> None:
    options = parse_source_options(
        {"bootstrap.servers": "b:1", "subscribePattern": "c.*", "startingOffsets": '{"clicks": {"0": 5}}'},
        is_stream=False,
    )

    assert options == pickle.loads(pickle.dumps(options))


MISTAKES = [
    ({"subscribe": "clicks"}, "bootstrap.servers is missing"),
    ({"bootstrap.servers": "b:1"}, "exactly one of the options subscribe"),
    (BATCH | {"assign": '{"clicks": [0]}'}, "exactly one of the options subscribe"),
    (BATCH | {"subscribePattern": "c.*"}, "exactly one of the options subscribe"),
    ({"bootstrap.servers": "b:1", "subscribePattern": "("}, "cannot be used: missing ), unterminated"),
    (BATCH | {"nonsense": "1"}, "has no option nonsense. It knows: bootstrap.servers"),
    (BATCH | {"startingOffset": "earliest"}, "has no option startingOffset. Did you mean startingOffsets?"),
    (BATCH | {"kafka.isolation.levl": "x"}, "Did you mean kafka.isolation.level?"),
    (BATCH | {"kafka.ssl.ca.locaton": "x"}, "ssl.ca.locaton is not known"),
    (BATCH | {"kafka.quite.new": "x"}, "has no option kafka.quite.new"),
    (BATCH | {"kafka.enable.auto.commit": "true"}, "when Spark has finished a batch"),
    (BATCH | {"kafka.value.deserializer": "x"}, "value is a binary column"),
    (BATCH | {"kafka.isolation.level": "serializable"}, "must be read_uncommitted or read_committed"),
    (BATCH | {"kafka.bootstrap.servers": "other:1"}, "say different things"),
    (BATCH | {"auto.offset.reset": "latest"}, "is for streams"),
    (BATCH | {"maxOffsetsPerTrigger": "5"}, "is for streams"),
    (BATCH | {"startingOffsets": "latest"}, "would always be empty"),
    (BATCH | {"startingOffsets": "committed"}, "needs group.id"),
    (BATCH | {"startingOffsets": "sometime"}, "must be latest or earliest, offsets by topic"),
    (BATCH | {"startingOffsets": "-2"}, "could mean earliest or so many records before the end"),
    (BATCH | {"startingOffsets": '{"clicks": {"0": "5"}}'}, "must hold a number for each partition"),
    (BATCH | {"startingOffsets": '{"clicks": {"0": -3}}'}, "must hold a number for each partition"),
    (BATCH | {"startingOffsets": '{"clicks": 5}'}, "must hold a number for each partition"),
    (BATCH | {"startingOffsets": "{"}, "is not JSON"),
    (BATCH | {"startingTimestamp": "yesterday"}, "startingTimestamp: 'yesterday' is not a point in time"),
    (BATCH | {"startingOffsetsByTimestampStrategy": "guess"}, "must be error or latest"),
    (BATCH | {"endingOffsets": "earliest"}, "must be latest, offsets"),
    (BATCH | {"endingOffsets": '{"clicks": {"0": -2}}'}, "must hold a number for each partition"),
    (BATCH | {"minPartitions": "0"}, "whole number above 0"),
    (BATCH | {"maxRecordsPerPartition": "many"}, "whole number above 0"),
    (BATCH | {"includeHeaders": "yes"}, "must be true or false"),
    (BATCH | {"failOnDataLoss": "maybe"}, "must be true or false"),
    (BATCH | {"waitForBroker": "soon"}, "waitForBroker: 'soon' is not a length of time"),
    ({"bootstrap.servers": "b:1", "assign": "[0]"}, "must be a JSON object"),
    ({"bootstrap.servers": "b:1", "assign": '{"clicks": 0}'}, "must list partitions"),
    ({"bootstrap.servers": "b:1", "assign": "{}"}, "names no partition"),
    (BATCH | {"subscribe": ","}, "The option subscribe is ',' and names no topic"),
    (BATCH | {"subscribe": "clicks,my topic"}, "The option subscribe names the topic 'my topic', and no topic can be"),
    (BATCH | {"subscribe": "x" * 250}, f"names the topic '{'x' * 40}…', and no topic can be called that: a name has 1"),
    (BATCH | {"subscribe": ".."}, "names the topic '..', and no topic can be called that"),
    ({"bootstrap.servers": "b:1", "assign": '{"": [0]}'}, "The option assign names the topic ''"),
    (BATCH | {"fetchesInFlight": "65"}, "fetchesInFlight must be a whole number above 0 and at most 64"),
    (BATCH | {"fetch.max.bytes": "3000000000"}, "fetch.max.bytes must be a whole number above 0 and at most 267386880"),
    (BATCH | {"max.partition.fetch.bytes": str(256 << 20)}, "max.partition.fetch.bytes must be a whole number above 0"),
    (BATCH | {"maxRecordsPerPartition": "9" * 5000}, f"and at most {2**63 - 1}, not '{'9' * 40}…'. Nothing was read."),
    (BATCH | {"minPartitions": str(2**31)}, f"whole number above 0 and at most {2**31 - 1}, not '2147483648'"),
    (BATCH | {"startingTimestamp": "9" * 20}, f"startingTimestamp asks for '{'9' * 20}' milliseconds since 1970"),
    (BATCH | {"endingTimestamp": "9" * 5000}, f"endingTimestamp asks for '{'9' * 40}…' milliseconds since 1970"),
    (BATCH | {"startingOffsetsByTimestamp": f'{{"clicks": {{"0": {2**63}}}}}'}, "of at most 64 bits, and not"),
    (BATCH | {"startingOffsetsByTimestamp": f'{{"clicks": {{"0": " {2**63} "}}}}'}, "asks for '9223372036854775808'"),
    (BATCH | {"startingOffsets": f'{{"clicks": {{"0": {2**63}}}}}'}, "of at most 64 bits, and not '{\"clicks"),
    (BATCH | {"endingOffsets": f'{{"clicks": {{"{2**31}": 0}}}}'}, "must hold a number for each partition"),
    (BATCH | {"endingOffsets": f'{{"clicks": {{"{"9" * 5000}": 0}}}}'}, "must hold a number for each partition"),
    (BATCH | {"endingOffsets": '{"clicks":' + "[" * 100_000}, "The option endingOffsets is not JSON"),
    (BATCH | {"startingOffsets": f"-{2**63}"}, "No log has so many records"),
    (BATCH | {"startingOffsets": f"-{'9' * 400}d"}, f"startingOffsets gives a length of time of '{'9' * 40}…'. The"),
    (BATCH | {"startingTimestamp": "-100001d"}, "startingTimestamp gives a length of time of '100001d'. The longest"),
    (BATCH | {"endingTimestamp": "-5"}, "The option endingTimestamp: '5' is not a length of time"),
    (BATCH | {"waitForBroker": f"P{'9' * 400}D"}, "waitForBroker gives a length of time of"),
    (BATCH | {"waitForBroker": "9" * 5000}, "waitForBroker gives a length of time of"),
    (BATCH | {"takeover": "true"}, "The option takeover is for streams"),
    (BATCH | {"client.id": "é" * 16_384}, "of 16,384 characters. Kafka carries 32,767 bytes there. Nothing was read."),
    (BATCH | {"group.id": "g" * 32_768}, f"The option group.id is '{'g' * 40}…', of 32,768 characters."),
]


MISTAKES += [
    (BATCH | {"columns": ""}, "The option columns names '', and there is no such column. Nothing was read. The"),
    (BATCH | {"columns": "key,offset,KEY"}, "The option columns names key twice."),
    (BATCH | {"columns": "timestmp"}, "Did you mean timestamp?"),
    (BATCH | {"columns": "key", "includeHeaders": "true"}, "includeHeaders is true, but the option columns leaves out"),
    (
        BATCH | {"columns": "key", "value.format": "json", "value.schema": "a INT"},
        "value.format is json, but the option columns leaves out value",
    ),
]


@pytest.mark.parametrize(("given", "message"), MISTAKES)
def test_a_mistake_in_a_batch_read_is_an_error(given: dict[str, str], message: str) -> None:
    with pytest.raises(UserError, match=re.escape(message)):
        parse_source_options(given, is_stream=False)


JSON = {"value.format": "json", "value.schema": "a INT"}
STREAM_MISTAKES = [
    (STREAM | {"auto.offset.reset": "now"}, "must be earliest, latest, none or by_duration:PT2H"),
    (STREAM | {"auto.offset.reset": "by_duration:x"}, "'x' is not a length of time"),
    (STREAM | {"minOffsetsPerTrigger": "5", "maxOffsetsPerTrigger": "4"}, "no batch can hold both"),
    (STREAM | {"maxBytesPerTrigger": "1 MB"}, "whole number above 0"),
    (STREAM | {"maxOffsetsPerTrigger": str(2**63)}, f"whole number above 0 and at most {2**63 - 1}, not"),
    (STREAM | {"maxTriggerDelay": f"{'9' * 400}h"}, "maxTriggerDelay gives a length of time of"),
    (STREAM | {"auto.offset.reset": f"by_duration:P{'9' * 400}D"}, "auto.offset.reset gives a length of time of"),
    (STREAM | {"group.id.before": "g" * 32_768}, "The option group.id.before is"),
    (STREAM | {"groupIdPrefix": "g" * 32_767}, "Kafka carries 32,730 bytes there"),
    (STREAM | {"takeover": "yes"}, "The option takeover must be true or false, not 'yes'. Nothing was read."),
    (STREAM | {"group.owner": "a b"}, "The option group.owner must be 1 to 128 letters, digits, '-', '_' and '.'"),
    (STREAM | {"tombstones": "skip"}, "The option tombstones needs value.format=json and value.schema beside it."),
    (STREAM | JSON | {"tombstones": "drop"}, "The option tombstones must be rows, dead-letters or skip, not 'drop'"),
    (STREAM | JSON | {"tombstones": "dead-letters"}, "but the option deadLetters.topic is missing"),
    (
        STREAM | {"value.format": "json", "value.schema": "a INT", "deadLetters.topic": "bad ones"},
        "The option deadLetters.topic names the topic 'bad ones'",
    ),
]


@pytest.mark.parametrize(("given", "message"), STREAM_MISTAKES)
def test_a_mistake_in_a_stream_is_an_error(given: dict[str, str], message: str) -> None:
    with pytest.raises(UserError, match=re.escape(message)):
        parse_source_options(given, is_stream=True)
