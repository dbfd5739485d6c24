"""What every command does that has a plan: shows it, asks, applies it, and tells what came of it."""

import contextlib
import sys
from collections.abc import Callable, Iterator

import typer
from rich.console import Console
from rich.text import Text

from logmark.cli.clusters import Cluster
from logmark.cli.offsets.plan_tables import print_plan
from logmark.cli.options import OutputFormat
from logmark.cli.tables import confirm, count, print_json, say
from logmark.client.client import Client
from logmark.errors import UserError
from logmark.escaping import escape
from logmark.offsets.journal.changes import Change
from logmark.offsets.reset.executor import AppliedReset, apply_plan
from logmark.offsets.reset.members import wait_until_empty
from logmark.offsets.reset.plan import ResetPlan
from logmark.offsets.reset.views import view_plan
from logmark.offsets.times import parse_duration

NOTHING_TO_DO = 3


class PlanCommand:
    """One run of a command that changes offsets: how it is shown, whether it is asked, and why it is done."""

    def __init__(self, cluster: Cluster, *, yes: bool, dry_run: bool, output: OutputFormat, reason: str = "") -> None:
        self._cluster = cluster
        self._yes = yes
        self._dry_run = dry_run
        self._output = output
        self._reason = reason
        if not dry_run:
            cluster.refuse_writing()

    def carry_out(
        self,
        client: Client,
        plan: ResetPlan,
        *,
        pending: Change | None = None,
        nothing_left: Callable[[], None] = lambda: None,
    ) -> None:
        """Show the plan, and apply it unless this is a dry run; exit with code 3 if it would change nothing."""
        self.show(plan)
        if not plan.changes:
            if not self._dry_run:
                nothing_left()
            self._write_json(plan, None)
            say(f"Nothing to do: group {plan.group} has committed these offsets already.")
            raise typer.Exit(NOTHING_TO_DO)
        if self._dry_run:
            self._write_json(plan, None)
            say("This was a dry run: nothing was changed.")
            return
        self._ask(plan)
        applied = self._apply(client, plan, pending)
        self._write_json(applied.plan, applied)
        _tell(applied)

    def show(self, plan: ResetPlan) -> None:
        """Print the plan as a table; the JSON document follows at the end."""
        if self._output is OutputFormat.TABLE:
            print_plan(plan)

    def _apply(self, client: Client, plan: ResetPlan, pending: Change | None) -> AppliedReset:

        details = {"context": self._cluster.context} if self._cluster.context else {}
        with spinner(f"Moving group {plan.group} and watching whether it stays") as stop:
            return apply_plan(
                client,
                plan,
                reason=self._reason,
                agree=lambda fresh: self._agree_again(fresh, stop),
                pending=pending,
                details=details,
            )

    def _agree_again(self, plan: ResetPlan, stop_spinning: Callable[[], None]) -> None:
        stop_spinning()
        say(f"Group {plan.group} has moved since the plan was made. This is the plan now:")
        self.show(plan)
        self._ask(plan)

    def _ask(self, plan: ResetPlan) -> None:
        if self._yes:
            return
        if self._output is OutputFormat.JSON:
            raise UserError(
                "Nothing was changed: JSON is for programs, and nobody can be asked about a plan that is not shown. "
                "Add --yes or --dry-run.",
                exit_code=2,
            )
        ask(f"Apply this to group {plan.group}?")

    def _write_json(self, plan: ResetPlan, applied: AppliedReset | None) -> None:
        if self._output is OutputFormat.JSON:
            print_json(view_plan(plan, applied).to_json())


def ask(question: str) -> None:
    """Raise unless somebody at a terminal says yes; without a terminal only --yes agrees."""
    if not sys.stdin.isatty():
        raise UserError(
            "Nothing was changed: there is no terminal to ask in. Add --yes to apply this plan.", exit_code=2
        )
    if not confirm(question):
        raise UserError("Nothing was changed.")


@contextlib.contextmanager
def spinner(what: str) -> Iterator[Callable[[], None]]:
    """Show a spinner on standard error, in a terminal; yield a function that stops it."""
    if not sys.stderr.isatty():
        yield lambda: None
        return

    with Console(stderr=True).status(Text(escape(what))) as status:
        yield status.stop


def wait_empty(client: Client, group: str, wait: str | None) -> None:
    """Wait until the group has no members, if the options ask for it."""
    if wait is None:
        return

    with spinner(f"Waiting for the members of group {group} to stop"):
        wait_until_empty(client, group, timeout_s=parse_duration(wait) / 1000)


def _tell(applied: AppliedReset) -> None:
    group = applied.plan.group
    if applied.is_in_use and not applied.plan.warnings:
        say(f"Group {group} is in use although it has no members: it moved while you decided.")
    if applied.repeats:
        times = "once" if applied.repeats == 1 else f"{applied.repeats} times"
        by = applied.overwritten_by
        say(f"{by[:1].upper()}{by[1:]} commits to this group and wrote over it; it was set again {times}, and stays.")
    if applied.picked_up_by:
        say(f"{applied.picked_up_by[:1].upper()}{applied.picked_up_by[1:]} runs, has seen it and continues from there.")
    say(f"{_describe_result(applied.plan)} To undo it: logmark offsets undo {applied.change.id}")


def _describe_result(plan: ResetPlan) -> str:
    first, *others = plan.changes
    more = f" and in {count(len(others), 'other partition')}" if others else ""
    if first.to is None:
        return f"Deleted: group {plan.group} has no committed offset in {first.partition} any more{more}."
    return f"Reset applied: {plan.group} now starts at offset {first.to} of {first.partition}{more}."
