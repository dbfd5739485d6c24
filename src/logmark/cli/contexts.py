"""`logmark contexts`: the clusters that have a name in the user's settings."""

from dataclasses import asdict

from logmark.cli.clusters import DEFAULT_BOOTSTRAP_SERVERS
from logmark.cli.options import Output, OutputFormat
from logmark.cli.tables import Column, print_json, print_table, say
from logmark.offsets.contexts import read_contexts, view_contexts
from logmark.offsets.user_files import config_file


def contexts(output: Output = OutputFormat.TABLE) -> None:
    """List the clusters that you have named; a star marks the default."""

    found = read_contexts(config_file())
    views = view_contexts(found)
    if output is OutputFormat.JSON:
        print_json([asdict(one) for one in views])
        return
    if not views:
        for line in (
            f"There are no contexts in {found.path}; {DEFAULT_BOOTSTRAP_SERVERS} is used. To name a cluster, write "
            "there:", "", '  current = "prod"', "", "  [contexts.prod]",
            '  bootstrap_servers = "kafka-1:9092,kafka-2:9092"', "",
        ):  # fmt: skip
            say(line)
        return
    print_table(
        [Column(""), Column("CONTEXT"), Column("BROKERS"), Column("SECURITY"), Column("MAY BE CHANGED")],
        [
            (
                "*" if one.is_current else "", one.context, one.bootstrap_servers, one.security_protocol,
                "no" if one.read_only else "yes",
            )
            for one in views
        ],
    )  # fmt: skip
