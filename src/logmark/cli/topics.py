"""`logmark topics`: the topics of a cluster."""

import re
import sys
from dataclasses import asdict
from typing import Annotated

import typer

from logmark.cli.clusters import Cluster, complete_topic, on_cluster
from logmark.cli.options import Output, OutputFormat, Yes, example
from logmark.cli.tables import Column, confirm, print_json, print_table, say, write_line
from logmark.client.views import TopicView, view_listing, view_topic
from logmark.errors import UserError
from logmark.offsets.partitions import LogBounds

app = typer.Typer(help="List, create, describe and delete topics.", no_args_is_help=True)

TopicNames = Annotated[
    list[str],
    typer.Argument(metavar="NAME", help="One or more topics.", autocompletion=complete_topic, show_default=False),
]


@app.command("list", epilog=example("logmark topics list --output json"))
@on_cluster
def list_topics(
    cluster: Cluster,
    internal: Annotated[bool, typer.Option("--internal", help="Show the cluster's own topics too.")] = False,
    output: Output = OutputFormat.TABLE,
) -> None:
    """List topics with their number of partitions."""
    with cluster.connect() as client:
        found = client.metadata().topics
    topics = [found[name] for name in sorted(found) if internal or not found[name].is_internal]
    if output is OutputFormat.JSON:
        print_json([asdict(view_listing(one)) for one in topics])
        return
    if not topics:
        say("There are no topics yet. Create one: logmark topics create orders --partitions 3")
        return
    print_table([Column("TOPIC"), Column("PARTITIONS", True)], [(one.name, len(one.partitions)) for one in topics])


@app.command("create", epilog=example("logmark topics create orders --partitions 3 --config retention.ms=-1"))
@on_cluster
def create_topic(
    cluster: Cluster,
    name: Annotated[str, typer.Argument(help="The topic to create.", show_default=False)],
    partitions: Annotated[
        int | None, typer.Option(help="How many partitions. Unless given: the broker's.", min=1, show_default=False)
    ] = None,
    replication_factor: Annotated[
        int | None, typer.Option(help="How many replicas. Unless given: the broker's.", min=1, show_default=False)
    ] = None,
    config: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="A topic setting; may be repeated.")
    ] = None,
) -> None:
    """Create a topic."""
    check_topic_name(name)
    settings = _settings(config or [])
    with cluster.connect() as client:
        client.create_topic(
            name, partitions=partitions or -1, replication_factor=replication_factor or -1, config=settings
        )
    write_line(f"Created topic {name}.")


@app.command("describe", epilog=example("logmark topics describe orders"))
@on_cluster
def describe_topics(
    cluster: Cluster,
    names: TopicNames,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Show the partitions of topics, what they hold, and the settings that were changed."""

    with cluster.connect() as client:
        found = client.metadata(names)
        for name in names:
            if name not in found.topics:
                raise UserError(f"Topic {name} does not exist; `logmark topics list` shows those that do.")
        configs = client.describe_configs(names)
        bounds = LogBounds.fetch(client, [one for name in names for one in found.partitions(name)])
    described = [
        view_topic(found.topics[name], configs.get(name, []), starts=bounds.starts, ends=bounds.ends) for name in names
    ]
    if output is OutputFormat.JSON:
        print_json([asdict(topic) for topic in described])
        return
    for topic in described:
        _print_topic(topic)


def _print_topic(topic: TopicView) -> None:
    settings = ", ".join(f"{name}={value}" for name, value in sorted(topic.config.items()))
    write_line(f"Topic {topic.topic}: {len(topic.partitions)} partition(s), settings {settings or 'all default'}")
    print_table(
        [
            Column("PARTITION", True), Column("LEADER", True), Column("REPLICAS"), Column("IN SYNC"),
            Column("START", True), Column("END", True), Column("RECORDS", True),
        ],
        [
            (
                one.partition, one.leader, ",".join(map(str, one.replicas)), ",".join(map(str, one.in_sync)),
                one.start, one.end, None if one.start is None or one.end is None else one.end - one.start,
            )
            for one in topic.partitions
        ],
    )  # fmt: skip


@app.command("delete", epilog=example("logmark topics delete orders --yes"))
@on_cluster
def delete_topics(
    cluster: Cluster,
    names: TopicNames,
    yes: Yes = False,
) -> None:
    """Delete topics with all their records; ask first in a terminal."""
    with cluster.connect() as client:
        known = client.metadata(names).topics
        for name in names:
            if name not in known:
                raise UserError(f"Topic {name} does not exist. Nothing was deleted.")
        question = f"Delete {', '.join(names)} with all records? They cannot be brought back."
        if not yes and sys.stdin.isatty() and not confirm(question):
            raise UserError("Nothing was deleted.")
        failures = client.delete_topics(names)
    for name in names:
        if name not in failures:
            write_line(f"Deleted topic {name}.")
    if failures:
        raise UserError(" ".join(str(failure) for failure in failures.values()))


def check_topic_name(name: str) -> None:
    """Refuses a name that no Kafka accepts."""
    if re.fullmatch(r"[a-zA-Z0-9._-]{1,249}", name) and name not in (".", ".."):
        return
    raise UserError(
        f"{name!r} is not a legal topic name: use up to 249 letters, digits, dots, underscores and hyphens "
        "(ASCII only, and neither . nor .. alone)."
    )


def _settings(texts: list[str]) -> dict[str, str]:
    found = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise UserError(f"--config {text!r} is not NAME=VALUE, such as retention.ms=86400000.", exit_code=2)
        found[name.strip()] = value.strip()
    return found
