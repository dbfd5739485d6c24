"""`logmark contexts`: the clusters that have a name in the user's settings."""

from logmark.cli.clusters import DEFAULT_BOOTSTRAP_SERVERS
from logmark.cli.options import Output, OutputFormat
from logmark.cli.tables import Column, print_json, print_table, say
from logmark.offsets.contexts import read_contexts
from logmark.offsets.user_files import config_file


def contexts(output: Output = OutputFormat.TABLE) -> None:
    """List the clusters that you have named; a star marks the default."""

    found = read_contexts(config_file())
    if output is OutputFormat.JSON:
        print_json(
            [
                {
                    "context": one.name,
                    "is_current": one.name == found.current,
                    "bootstrap_servers": one.bootstrap_servers,
                    "security_protocol": one.properties.get("security.protocol", "PLAINTEXT"),
                    "read_only": one.is_read_only,
                }
                for one in found.known.values()
            ]
        )
        return
    if not found.known:
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
                "*" if one.name == found.current else "",
                one.name,
                one.bootstrap_servers,
                one.properties.get("security.protocol", "PLAINTEXT"),
                "no" if one.is_read_only else "yes",
            )
            for one in found.known.values()
        ],
    )
