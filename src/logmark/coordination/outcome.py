"""What a coordinator's decision amounts to: facts to write and apply, and replies to give once they are durable.

A request that must wait for others is a ticket: its reply comes in the outcome of a later decision.
"""

from dataclasses import dataclass, field
from typing import Generic, NamedTuple, NewType, TypeVar

from logmark.errors import Refused

FactT = TypeVar("FactT")

Ticket = NewType("Ticket", int)


class Reply(NamedTuple):
    """The answer to one ticket, perhaps of an earlier command."""

    ticket: Ticket
    answer: object | Refused


@dataclass(slots=True, kw_only=True)
class Outcome(Generic[FactT]):
    """The facts and replies of one decision.

    With `again` the runtime decides the command once more after it has applied the facts.
    """

    facts: list[FactT] = field(default_factory=list)
    replies: list[Reply] = field(default_factory=list)
    again: bool = False
