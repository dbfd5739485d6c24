"""Every option of the tool, and ours."""

from dataclasses import dataclass
from enum import Enum


class Takes(Enum):
    """Whether a value follows an option."""

    NOTHING = "nothing"
    VALUE = "value"
    PERHAPS = "perhaps"


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One option: `needs` are those of which one must be there too, `is_ours` those that Kafka's tool lacks."""

    name: str
    help: str
    takes: Takes = Takes.NOTHING
    value: str = ""
    kind: str = "String"
    default: str | None = None
    needs: tuple[str, ...] = ()
    is_ours: bool = False


def _value(name: str, value: str, help: str, *, kind: str = "String", default: str | None = None) -> Option:
    return Option(name=name, help=help, takes=Takes.VALUE, value=value, kind=kind, default=default)


_TOOL = (
    Option(name="all-groups", help="Act on every consumer group of the cluster."),
    Option(name="all-topics", help="Reset every partition in which the group has a committed offset."),
    _value("bootstrap-server", "server to connect to", "Brokers of the cluster; needed for all but --validate-regex."),
    _value("by-duration", "duration", "Reset to so long before now, written PnDTnHnMnS."),
    _value(
        "command-config", "command config property file", "Client properties, such as security.protocol and sasl.*."
    ),
    Option(name="delete", help="Delete groups with everything that they have committed."),
    Option(name="delete-offsets", help="Forget what one group has committed in topics."),
    Option(name="describe", help="Show groups: their offsets and lag, their members or their state."),
    Option(name="dry-run", help="Show what a reset would do, and do nothing; the default."),
    Option(name="execute", help="Do the reset."),
    Option(name="export", help="Print the reset as CSV."),
    _value("from-file", "path to CSV file", "Reset to the offsets in a file that --export has printed."),
    _value("group", "consumer group", "The group to act on; may be repeated."),
    Option(name="help", help="Print this."),
    Option(name="list", help="List the consumer groups."),
    Option(name="members", help="With --describe: the members of the group.", needs=("describe",)),
    Option(name="offsets", help="With --describe: offsets and lag by partition; the default.", needs=("describe",)),
    Option(
        name="reset-offsets",
        help="Move the committed offsets of groups without members. Say where to with one of --to-datetime, "
        "--by-duration, --to-earliest, --to-latest, --shift-by, --from-file, --to-current and --to-offset, and "
        "what with --all-topics or --topic (not needed with --from-file).",
    ),
    _value("shift-by", "number-of-offsets", "Reset so many records forward, or back if negative.", kind="Long"),
    Option(
        name="state",
        help="With --describe: the state of the group. With --list: the state of each, and only those in the states "
        "that are named, as in --state stable,empty.",
        takes=Takes.PERHAPS,
        needs=("describe", "list"),
    ),
    _value("timeout", "timeout (ms)", "How long a request may take.", kind="Long", default="30000"),
    Option(name="to-current", help="Reset to where the group stands; what has no offset yet goes to the end."),
    _value("to-datetime", "datetime", "Reset to a time, written YYYY-MM-DDThh:mm:ss.sss; without a zone it is UTC."),
    Option(name="to-earliest", help="Reset to the beginning of the logs."),
    Option(name="to-latest", help="Reset to the end of the logs."),
    _value("to-offset", "offset", "Reset to one offset, or to the nearer end of a log that has it not.", kind="Long"),
    _value("topic", "topic", "A topic, or partitions of it as in orders:0,1; may be repeated."),
    Option(
        name="type",
        help="With --list: the type of each group, and only those of the types that are named (classic, consumer).",
        takes=Takes.PERHAPS,
        needs=("list",),
    ),
    _value("validate-regex", "regex", "Say whether an expression is one that RE2 understands."),
    Option(name="verbose", help="With --describe: more columns.", needs=("describe",)),
    Option(name="version", help="Print the version of Kafka whose tool this follows."),
)
_OURS = (
    Option(
        name="context", help="A cluster by its name in your settings.", takes=Takes.VALUE, value="name", is_ours=True
    ),
    Option(
        name="install-shim",
        help="Write commands of the names kafka-consumer-groups.sh and kafka-consumer-groups into a folder.",
        takes=Takes.VALUE,
        value="folder",
        is_ours=True,
    ),
    Option(name="read-only", help="Refuse what would change the cluster.", is_ours=True),
    Option(name="strict", help="End with 1 after any failure, where Kafka's tool ends with 0.", is_ours=True),
)
OPTIONS = {one.name: one for one in (*_TOOL, *_OURS)}
ACTIONS = ("list", "describe", "delete", "reset-offsets", "delete-offsets", "validate-regex")
SCENARIOS = (
    "to-offset", "shift-by", "to-datetime", "by-duration", "to-earliest", "to-latest", "to-current", "from-file",
)  # fmt: skip
