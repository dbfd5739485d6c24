"""Reads a range over several connections at once, in order: each has the next stripe of it under way.

Where the next fetch must begin is known only when an answer is there, so one connection has one fetch under way, and on
a long way most of its time is spent waiting. Stripes are cut ahead by what the answers before held. One that was cut
too long takes a second fetch; one that was cut too short had bytes sent in vain; neither changes what is read.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from logmark.client.answers import FetchedPartition
from logmark.client.fetcher import Fetcher, Silence, next_offset

_OF_AN_ANSWER = 0.9  # so that a stripe mostly fits into one answer


@dataclass(slots=True)
class _RangePart:
    fetcher: Fetcher
    at: int
    stop: int


def fetch_in_parallel(
    fetchers: Sequence[Fetcher], first: int, stop: int, *, timeout_s: float
) -> Iterator[tuple[FetchedPartition, int]]:
    """Yield the answers in order, each with the offset at which to stop; a view is valid until the next one."""
    free = deque(fetchers)
    under_way: deque[_RangePart] = deque()
    # Nothing is known of the answers yet: the first stripe is the whole range, and is cut when its first one is there.
    ahead = _send(free, under_way, first, stop, stop - first)
    length = stop - first
    silence = Silence(stop, timeout_s=timeout_s)
    while under_way:
        now = under_way[0]
        answer = now.fetcher.receive()
        after = next_offset(answer.records, now.at)
        if after > now.at:
            silence.end()
            length = max(1, round((after - now.at) * _OF_AN_ANSWER))
        elif silence.is_all(now.fetcher, answer, now.at):
            return
        now.at = after
        if len(under_way) == 1 and now.stop == stop and len(fetchers) > 1:
            ahead = now.stop = min(after, stop)  # what is left is cut again, for all connections
        if now.at < now.stop:
            now.fetcher.send(now.at)
        else:
            free.append(under_way.popleft().fetcher)
            ahead = _send(free, under_way, ahead, stop, length)
        if answer.records:
            yield answer, now.stop


def _send(free: deque[Fetcher], under_way: deque[_RangePart], ahead: int, stop: int, length: int) -> int:
    """Send a part of the range over every free connection; return where the next part starts."""
    while free and ahead < stop:
        stripe = _RangePart(free.popleft(), ahead, min(stop, ahead + length))
        stripe.fetcher.send(stripe.at)
        under_way.append(stripe)
        ahead = stripe.stop
    return ahead
