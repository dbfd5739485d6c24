"""`logmark offsets journal`: where changes are written down."""

from dataclasses import replace
from typing import Annotated, ClassVar

import typer

from logmark.cli.clusters import Cluster, on_cluster
from logmark.cli.offsets.app import WithOptionalValues, app
from logmark.cli.offsets.plan_command import ask
from logmark.cli.options import Yes, example
from logmark.cli.tables import count, counted, say, write_line
from logmark.client.client import Client
from logmark.offsets.journal.file_journal import FileJournal
from logmark.offsets.journal.journal import open_journal, save_journal_topic_name
from logmark.offsets.journal.topic_journal import (
    TopicJournal,
    check_journal_topic,
    create_journal_topic,
    plan_journal_topic,
)

_DEFAULT = "__logmark_journal"


class _WithTopic(WithOptionalValues):
    """`--topic` alone means the usual name."""

    optional: ClassVar[dict[str, str]] = {"--topic": _DEFAULT}

    def _is_value(self, option: str, text: str) -> bool:
        return not text.startswith("-")


@app.command("journal", cls=_WithTopic, epilog=example("logmark offsets journal --topic"))
@on_cluster
def journal(
    cluster: Cluster,
    topic: Annotated[
        str | None,
        typer.Option(
            metavar="[NAME]",
            help=f"Keep the journal of this cluster in a compacted topic ({_DEFAULT}), for a whole team.",
            show_default=False,
        ),
    ] = None,
    replication_factor: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Copies of the topic; up to 3 by default.", show_default=False),
    ] = None,
    yes: Yes = False,
) -> None:
    """Says where the journal of this cluster is, or moves it into a topic of the cluster."""

    with cluster.connect() as client:
        if topic is not None:
            cluster.refuse_writing()
            _move(client, topic, replication_factor, yes=yes)
        found = open_journal(client)
        number = len(found.changes(client.metadata([]).cluster_id))
    write_line(f"The journal of this cluster is {found.location}; it has {count(number, 'change')}.")


def _move(client: Client, topic: str, replication_factor: int | None, *, yes: bool) -> None:

    if topic in client.metadata([topic]).topics:
        check_journal_topic(client, topic)
    else:
        plan = plan_journal_topic(client, topic)
        if replication_factor is not None:
            plan = replace(plan, replication_factor=replication_factor)
        say(
            f"Topic {topic} will be created with {count(plan.partitions, 'partition')} and replication factor "
            f"{plan.replication_factor}, compacted: it keeps every change for good. Its readers see who moved "
            "what and the metadata of commits; users who reset groups need the right to write to it."
        )
        if not yes:
            ask(f"Create topic {topic}?")
        create_journal_topic(client, plan)
    moved = TopicJournal(client, topic, also=FileJournal()).import_file()
    save_journal_topic_name(client.metadata([]).cluster_id, topic)
    say(f"{counted(len(moved), 'change')} copied there from your file.")
