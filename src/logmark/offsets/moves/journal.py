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
from logmark.offsets import folders
from logmark.offsets.moves.changes import Change, State, Who, new_id, who_am_i
from logmark.offsets.moves.journal_file import FileJournal
from logmark.offsets.moves.journal_topic import DEFAULT_TOPIC, TopicJournal

__all__ = [
    "Change", "FileJournal", "Journal", "State", "TopicJournal", "Who", "find_change", "journal_topic", "new_id",
    "open_journal", "remember_topic", "who_am_i",
]  # fmt: skip


class Journal(Protocol):
    """Keeps changes; a change that was begun is durable before anything else happens."""

    @property
    def where(self) -> str:
        """The place of the journal in words."""
        ...

    def begin(self, change: Change) -> None:
        """Writes a change down durably; nothing may have been changed before."""
        ...

    def finish(self, id: str, state: State) -> None:
        """Writes down what became of a change."""
        ...

    def changes(
        self, cluster_id: str | None = None, name: str | None = None, since_ms: int | None = None
    ) -> list[Change]:
        """The changes of a cluster, of a group or a checkpoint, since a time: the newest last."""
        ...


def open_journal(client: Client) -> Journal:
    """The journal in force for the cluster of this client."""
    found = client.metadata([topic := journal_topic(client)])
    if topic in found.topics:
        return TopicJournal(client, topic, also=FileJournal())
    return FileJournal()


def journal_topic(client: Client) -> str:
    """The name that the journal's topic has, or would have, in the cluster of this client."""
    named = os.environ.get("LOGMARK_JOURNAL_TOPIC")
    return named or _remembered().get(client.metadata([]).cluster_id, DEFAULT_TOPIC)


def remember_topic(cluster_id: str, topic: str) -> None:
    """From now on this user's tools look for the journal of a cluster in this topic."""
    names = {**_remembered(), cluster_id: topic}
    if topic == DEFAULT_TOPIC:
        del names[cluster_id]
    path = _names_file()
    if not names and not path.exists():
        return
    private_files.make_folders(path.parent)
    fresh = path.with_suffix(".new")
    with private_files.open_file(fresh, "w") as file:
        file.write(json.dumps(names, indent=2) + "\n")
    fresh.replace(path)


def find_change(changes: Sequence[Change], id: str) -> Change:
    """The change with this id, or with the only id that begins so."""
    wanted = id.strip().lower()
    found = [one for one in changes if one.id == wanted] or [one for one in changes if one.id.startswith(wanted)]
    if len(found) == 1 and wanted:
        return found[0]
    if found and wanted:
        raise UserError(
            f"{len(found)} changes have ids that begin with {wanted}. Nothing was changed; write more of it."
        )
    raise UserError(f"The journal has no change {id!r}. Nothing was changed; `logmark offsets history` shows them.")


def _names_file() -> Path:
    return folders.state_folder() / "journal-topics.json"


def _remembered() -> dict[str, str]:
    try:
        found = json.loads(_names_file().read_text())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise UserError(f"{_names_file()} cannot be read ({error}). Nothing was changed; mend or remove it.") from None
    return {str(cluster): str(topic) for cluster, topic in found.items()}
