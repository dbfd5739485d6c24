"""What `transform` gets of several topics."""

import json
from pathlib import Path
from typing import Any

import pytest

from logmark.errors import UserError
from logmark.spark import Pipeline, Table
from logmark.spark.pipelines.declaration import Version, format_topics
from logmark.spark.pipelines.inputs import narrow_options
from logmark.spark.pipelines.query import Brokers, read_options

SCHEMAS = {"orders": "id INT", "shop.payments": "id INT, paid BOOLEAN"}


def declared(**more: Any) -> Pipeline:
    fields: dict[str, Any] = {
        "name": "billing", "schema": SCHEMAS, "transform": lambda orders, shop_payments: orders, "sink": Table("t"),
    }  # fmt: skip
    return Pipeline(**fields | more)


def test_the_topics_are_those_of_the_schemas_in_their_order() -> None:
    assert ("orders", "shop.payments") == declared().topics == declared(topics=["shop.payments", "orders"]).topics
    assert "orders, shop.payments" == format_topics(declared())


@pytest.mark.parametrize(
    "more", [{"topics": "orders"}, {"topics": [*SCHEMAS, "x"]}, {"options": {"subscribePattern": ".*"}}]
)
def test_other_topics_than_those_with_a_schema_are_refused(more: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=r"differ in (shop.payments|x|subscribePattern)\. Nothing was read"):
        declared(**more)


def test_schemas_of_no_topic_are_refused() -> None:
    with pytest.raises(UserError, match="would read no topic"):
        declared(schema={})


@pytest.mark.parametrize(
    "transform",
    [lambda records: records, lambda a, b, c: a, lambda a, *, b: a, lambda: None],
    ids=["one", "three", "by name", "none"],
)
def test_a_transform_that_does_not_take_a_frame_for_each_topic_is_refused(transform: Any) -> None:
    with pytest.raises(UserError, match=r"transform\(orders, shop_payments\)\. Its signature is .* Nothing was read"):
        declared(transform=transform)


def test_a_transform_that_names_the_topics_in_another_order_is_refused() -> None:
    with pytest.raises(UserError, match="the parameter shop_payments would get the records of orders"):
        declared(transform=lambda shop_payments, orders: orders)


def test_a_transform_of_one_schema_takes_one_frame() -> None:
    declared(schema="id INT", topics="orders", transform=lambda records: records)
    declared(schema=None, topics="orders", transform=lambda records, factor=2: records)
    declared(transform=lambda *frames: frames[0])
    with pytest.raises(UserError, match=r"gets one DataFrame: transform\(records\)"):
        declared(schema="id INT", topics="orders", transform=lambda orders, payments: orders)


def test_the_source_of_each_topic_reads_it_in_the_group_of_the_pipeline_by_its_own_schema(tmp_path: Path) -> None:
    starts = {"orders": {"0": 5}, "shop.payments": {"0": 7}}
    pipeline = declared(
        schema={**SCHEMAS, "raw": None},
        transform=lambda *frames: frames[0],
        dead_letters="bad",
        options={"startingOffsets": json.dumps(starts)},
    )
    version = Version(number=1, group="billing", checkpoint=tmp_path, sink=pipeline.sink)

    given = {
        topic: read_options(pipeline, version, Brokers(bootstrap_servers="b:1"), {}, topic=topic)
        for topic in pipeline.topics
    }

    common = {"bootstrap.servers": "b:1", "group.id": "billing"}
    typed = {"value.format": "json", "deadLetters.topic": "bad", "deadLetters.pipeline": "billing"}
    assert {
        topic: common
        | typed
        | {"subscribe": topic, "value.schema": schema, "startingOffsets": json.dumps({topic: starts[topic]})}
        for topic, schema in SCHEMAS.items()
    } | {"raw": common | {"subscribe": "raw", "startingOffsets": json.dumps(starts)}} == given


def test_offsets_by_topic_are_narrowed_to_one_and_other_options_stay() -> None:
    ends = json.dumps({"orders": {"0": 5}, "payments": {"0": 7}})
    options = {"endingOffsets": ends, "startingOffsets": "earliest", "startingTimestamp": "12", "group.id": "{}"}

    narrowed = options | {"endingOffsets": json.dumps({"orders": {"0": 5}})}
    assert narrowed == narrow_options(options, "orders")
    assert options == narrow_options(options, "other")
