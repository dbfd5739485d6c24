"""The journal of changes: what was moved is written down before it is moved.

Where the journal is, the cluster itself says: if it has the journal's topic, everybody who uses the cluster writes
there and sees what the others did; else each user has a file.
"""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from logmark import private_files
from logmark.client.client import Client
from logmark.errors import UserError
from logmark.offsets import user_files
from logmark.offsets.errors import ChangeNotFound, ChangeOfAnotherUser
from logmark.offsets.journal.changes import Author, Change, ChangeState, current_author
from logmark.offsets.journal.file_journal import FileJournal
from logmark.offsets.journal.topic_journal import DEFAULT_TOPIC, TopicJournal


class Journal(Protocol):
    """Keeps changes; a change that was begun is durable before anything else happens."""

    @property
    def location(self) -> str:
        """Where the journal is, for people."""
        ...

    def add(self, change: Change) -> None:
        """Write a change durably; call it before anything is changed."""
        ...

    def set_state(self, id: str, state: ChangeState) -> None:
        """Write the new state of a change."""
        ...

    def changes(
        self, cluster_id: str | None = None, name: str | None = None, since_ms: int | None = None
    ) -> list[Change]:
        """Return the changes of a cluster, of a group or a checkpoint, since a time: the newest last."""
        ...


def open_journal(client: Client) -> Journal:
    """Return the journal that is in force for the cluster of this client."""
    found = client.metadata([topic := journal_topic_name(client)])
    if topic in found.topics:
        return TopicJournal(client, topic, also=FileJournal())
    return FileJournal()


def journal_topic_name(client: Client) -> str:
    """Return the name that the journal's topic has, or would have, in the cluster of this client."""
    named = os.environ.get("LOGMARK_JOURNAL_TOPIC")
    return named or _remembered().get(client.metadata([]).cluster_id, DEFAULT_TOPIC)


def save_journal_topic_name(cluster_id: str, topic: str) -> None:
    """From now on this user's tools look for the journal of a cluster in this topic."""
    names = {**_remembered(), cluster_id: topic}
    if topic == DEFAULT_TOPIC:
        del names[cluster_id]
    path = _names_file()
    if not names and not path.exists():
        return
    private_files.make_folders(path.parent)
    user_files.replace_file(path, json.dumps(names, indent=2) + "\n")


def find_change(changes: Sequence[Change], id: str) -> Change:
    """Return the change with this id, or with the only id that starts with it."""
    wanted = id.strip().lower()
    found = [one for one in changes if one.id == wanted] or [one for one in changes if one.id.startswith(wanted)]
    if len(found) == 1 and wanted:
        return found[0]
    if found and wanted:
        raise UserError(
            f"{len(found)} changes have ids that begin with {wanted}. Nothing was changed; write more of it."
        )
    raise ChangeNotFound(f"The journal has no change {id!r}. Nothing was changed", "list_changes shows them")


def list_changes(
    client: Client, name: str | None = None, *, limit: int | None = None, journal: Journal | None = None
) -> list[Change]:
    """Return the changes of this cluster, or of one group or checkpoint in it: the newest last, at most `limit`."""
    found = (journal or open_journal(client)).changes(client.metadata([]).cluster_id, name)
    return found if limit is None else found[max(len(found) - limit, 0) :]


def select_change(changes: Sequence[Change], id: str | None, *, who: Author | None = None) -> Change:
    """Return the change with this id; without an id the last one that is done and not undone, if it is this user's."""
    if id is not None:
        return find_change(changes, id)
    candidates = [one for one in changes if one.state == "done" and one.undoes is None]
    if not candidates:
        pending = [one.id for one in changes if one.state == "pending"]
        hint = f" Pending are {', '.join(pending)}: name one of them." if pending else ""
        raise UserError(f"The journal has no change of this cluster that could be undone.{hint} Nothing was changed.")
    last = candidates[-1]
    if last.who != (who or current_author()).user:
        raise ChangeOfAnotherUser(
            last.id,
            f"The last change of this cluster is {last.id} ({last.action} of {last.name}) by {last.who} on "
            f"{last.host}, and not yours. Nothing was changed",
        )
    return last


def mark_undone(journal: Journal, change: Change) -> None:
    """Record that a change is undone, where the committed offsets already are what they were before."""
    journal.set_state(change.id, "taken back" if change.state == "pending" else "undone")


def _names_file() -> Path:
    return user_files.state_folder() / "journal-topics.json"


def _remembered() -> dict[str, str]:
    try:
        found = json.loads(_names_file().read_text())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise UserError(f"{_names_file()} cannot be read ({error}). Nothing was changed; mend or remove it.") from None
    return {str(cluster): str(topic) for cluster, topic in found.items()}
