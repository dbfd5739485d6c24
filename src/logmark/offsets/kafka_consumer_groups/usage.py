"""Which options go together, and the help."""

import textwrap
from collections.abc import Callable, Sequence

from logmark.offsets.kafka_consumer_groups.arguments import Arguments
from logmark.offsets.kafka_consumer_groups.failures import Usage
from logmark.offsets.kafka_consumer_groups.options import ACTIONS, OPTIONS, SCENARIOS, Option, Takes

ABOUT = (
    "This tool helps to list all consumer groups, describe a consumer group, delete consumer group info, or reset "
    "consumer group offsets."
)
_NO_EXECUTE = (
    "WARN: No action will be performed as the --execute option is missing. In version 5.0, this command will require "
    "either --dry-run or --execute to be specified. You should add the --dry-run option explicitly if you are "
    "scripting this command and want to keep the current default behavior without prompting."
)
_EXAMPLE = """
Example: logmark kafka-consumer-groups --bootstrap-server 127.0.0.1:9092 --describe --all-groups
"""
_LEFT_WIDTH, _RIGHT_WIDTH = 39, 79


def check_options(given: Arguments, *, is_cluster_known: bool, warn: Callable[[str], None]) -> None:
    """Raise Usage for options that exclude each other, in the order in which the tool checks them."""
    if not given.has("validate-regex") and not given.has("bootstrap-server") and not is_cluster_known:
        raise Usage('Missing required argument "[bootstrap-server]"')
    if given.has("describe"):
        _check_describe(given)
    if given.has("delete"):
        _require_groups(given, "delete")
        if given.has("topic"):
            raise Usage("The consumer does not support topic-specific offset deletion from a consumer group.")
    if given.has("delete-offsets") and not (given.has("group") and given.has("topic")):
        raise Usage("Option [delete-offsets] takes the following options: [group], [topic]")
    if given.has("reset-offsets"):
        _check_reset(given, warn)
    _refuse_with(given, "group", ("all-groups", "list"))
    _refuse_with(given, "topic", ("list", "describe"))


def check_action(given: Arguments) -> str:
    """Return the one action; raises Usage if there is none or more than one."""
    chosen = [action for action in ACTIONS if given.has(action)]
    if len(chosen) != 1:
        raise Usage(f"Command must include exactly one action: {', '.join(f'--{action}' for action in ACTIONS)}")
    return chosen[0]


def _check_describe(given: Arguments) -> None:
    _require_groups(given, "describe")
    if sum(given.has(view) for view in ("members", "offsets", "state")) > 1:
        raise Usage("Option [describe] takes at most one of these options: [members], [offsets], [state]")
    if given.has("state") and given.value("state") is not None:
        raise Usage("Option [describe] does not take a value for [state]")


def _check_reset(given: Arguments, warn: Callable[[str], None]) -> None:
    if given.has("dry-run") and given.has("execute"):
        raise Usage("Option [reset-offsets] only accepts one of [execute] and [dry-run]")
    if not given.has("dry-run") and not given.has("execute"):
        warn(_NO_EXECUTE)
    _require_groups(given, "reset-offsets")
    # The order in which the tool looks, which decides which of two it names first.
    for one in ("to-offset", "to-datetime", "by-duration", "to-earliest", "to-latest", "to-current", "shift-by"):
        _refuse_with(given, one, [other for other in SCENARIOS if other != one])


def _require_groups(given: Arguments, action: str) -> None:
    if not given.has("group") and not given.has("all-groups"):
        raise Usage(f"Option [{action}] takes one of these options: [group], [all-groups]")


def _refuse_with(given: Arguments, one: str, others: Sequence[str]) -> None:
    for other in others:
        if given.has(one) and given.has(other):
            raise Usage(f'Option "[{one}]" can\'t be used with option "[{other}]"')


def help_text() -> str:
    """Return the options in two columns, those of Kafka's tool first."""
    rows = [("Option", "Description"), ("------", "-----------")]
    rows += [(_shown(one), _described(one)) for one in OPTIONS.values() if not one.is_ours]
    rows += [("", ""), ("Logmark's own", ""), ("-------------", "")]
    rows += [(_shown(one), _described(one)) for one in OPTIONS.values() if one.is_ours]
    return "".join(line + "\n" for left, right in rows for line in _in_columns(left, right)) + _EXAMPLE


def _shown(option: Option) -> str:
    value = f"{option.kind}: {option.value}" if option.value else option.kind
    match option.takes:
        case Takes.NOTHING:
            return f"--{option.name}"
        case Takes.VALUE:
            return f"--{option.name} <{value}>"
        case Takes.PERHAPS:
            return f"--{option.name} [{value}]"


def _described(option: Option) -> str:
    return option.help if option.default is None else f"{option.help} (default: {option.default})"


def _in_columns(left: str, right: str) -> list[str]:
    lefts = _wrapped(left, _LEFT_WIDTH - 1) or [""]
    rights = _wrapped(right, _RIGHT_WIDTH - _LEFT_WIDTH - 1)
    height = max(len(lefts), len(rights))
    lefts, rights = ([*column, *[""] * (height - len(column))] for column in (lefts, rights))
    return [f"{a:<{_LEFT_WIDTH}} {b}".rstrip() for a, b in zip(lefts, rights, strict=True)]


def _wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, width, subsequent_indent="  ", break_on_hyphens=False)
