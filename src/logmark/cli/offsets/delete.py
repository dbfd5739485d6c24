"""`logmark offsets delete`: forgetting what a group has committed."""

import typer

from logmark.cli.clusters import Cluster, on_cluster
from logmark.cli.offsets.app import AllTopics, DryRun, Group, Reason, Topic, app
from logmark.cli.offsets.plan_command import PlanCommand
from logmark.cli.options import Output, OutputFormat, Yes, example
from logmark.offsets.reset.deletion import plan_deletion
from logmark.offsets.reset.planner import parse_topic_selection


@app.command("delete", epilog=example("logmark offsets delete fraud --topic old-clicks"))
@on_cluster
def delete(
    cluster: Cluster,
    group: Group,
    topic: Topic = None,
    all_topics: AllTopics = False,
    yes: Yes = False,
    dry_run: DryRun = False,
    reason: Reason = "",
    output: Output = OutputFormat.TABLE,
) -> None:
    """Forgets what a group has committed in topics; planned, journaled, and undone like any other change."""

    if bool(topic) == all_topics:
        raise typer.BadParameter("Say which topics are meant: --topic NAME or --topic NAME:0,1, or --all-topics.")
    command = PlanCommand(cluster, yes=yes, dry_run=dry_run, output=output, reason=reason)
    with cluster.connect() as client:
        command.carry_out(client, plan_deletion(client, group, parse_topic_selection(topic) if topic else None))
