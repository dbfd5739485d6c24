"""Names that are not there, and the ones that were probably meant."""

import difflib
from collections.abc import Iterable

from logmark.client.client import Client


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return a suggestion of the closest known name, with a leading space, or nothing."""
    candidates = sorted(known)
    same = [one for one in candidates if one.lower() == name.lower()]
    near = same or difflib.get_close_matches(name, candidates, n=1)
    return f" Did you mean {near[0]}?" if near else ""


def unknown_group(client: Client, group: str) -> str:
    """Says that a group is not there, and which one may be meant."""
    known = [listing.group for listing in client.list_groups()]
    return f"Group {group} does not exist.{did_you_mean(group, known)}"


def unknown_topic(client: Client, topic: str) -> str:
    """Says that a topic is not there, and which one may be meant."""
    return f"Topic {topic} does not exist.{did_you_mean(topic, client.metadata().topics)}"
