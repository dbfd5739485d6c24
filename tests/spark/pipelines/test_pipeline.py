"""What may be declared as a pipeline."""

from typing import Any

import pytest

from logmark.errors import UserError
from logmark.spark import Pipeline, Table, Topic
from logmark.spark.pipelines.declaration import Version, format_sink, format_topics
from logmark.spark.pipelines.query import Brokers, read_options


def declared(**more: Any) -> Pipeline:
    fields: dict[str, Any] = {
        "name": "billing", "topics": "clicks", "transform": lambda frame: frame, "sink": Table("tables/billing"),
    }  # fmt: skip
    return Pipeline(**fields | more)


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "-a", "a b", "a.v2", "ü", "a" * 101])
def test_a_name_that_could_be_no_folder_is_refused(name: str) -> None:
    with pytest.raises(UserError, match="cannot name a pipeline"):
        declared(name=name)


def test_the_group_is_the_name_unless_it_is_given() -> None:
    assert "billing" == declared().group
    assert "money" == declared(group="money").group


@pytest.mark.parametrize("more", [{"sink": Topic("clicks")}, {"dead_letters": "clicks"}])
@pytest.mark.parametrize("topics", ["clicks", ("orders", "clicks")])
def test_a_pipeline_that_would_read_what_it_writes_is_refused(topics: Any, more: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="reads the topic clicks and writes to it too"):
        declared(topics=topics, **more)


def test_topics_and_sinks_are_shown_to_people() -> None:
    assert "clicks, orders" == format_topics(declared(topics=("clicks", "orders")))
    assert "shop-.*" == format_topics(declared(topics=(), options={"subscribePattern": "shop-.*"}))
    assert "topic alerts" == format_sink(Topic("alerts"))
    assert format_sink(Table("tables/billing")).endswith("/tables/billing")


def test_the_source_is_told_all_that_was_declared(tmp_path: Any) -> None:
    pipeline = declared(
        topics=("clicks", "orders"), schema="price INT", dead_letters="bad", options={"auto.offset.reset": "earliest"}
    )
    brokers = Brokers(bootstrap_servers="kafka:9092", properties={"security.protocol": "SSL"})
    version = Version(number=2, group="billing", checkpoint=tmp_path, sink=pipeline.sink, group_before="billing.v2")

    given = read_options(pipeline, version, brokers, {"maxOffsetsPerTrigger": "5"})

    assert {
        "bootstrap.servers": "kafka:9092",
        "kafka.security.protocol": "SSL",
        "group.id": "billing",
        "group.id.before": "billing.v2",
        "subscribe": "clicks,orders",
        "value.format": "json",
        "value.schema": "price INT",
        "deadLetters.topic": "bad",
        "deadLetters.pipeline": "billing",
        "auto.offset.reset": "earliest",
        "maxOffsetsPerTrigger": "5",
    } == given
