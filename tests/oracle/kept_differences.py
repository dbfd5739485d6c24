"""Where our broker answers otherwise than Apache Kafka on purpose, each with the reason that a user would accept."""

import re
from dataclasses import dataclass

from tests.oracle.dialogue import Difference


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptDifference:
    """Answers that differ, found by patterns for the dialogue, the step and the path in the answer."""

    dialogue: str
    step: str = ".*"
    path: str = ".*"
    reason: str
    is_steady: bool = True  # otherwise it depends on what Apache Kafka did meanwhile

    def explains(self, difference: Difference) -> bool:
        """This is why they differ."""
        return bool(re.fullmatch(self.step, difference.label) and re.fullmatch(self.path, difference.path))


KEPT = (
    # What is not there yet.
    KeptDifference(
        dialogue="coordinators_are_found",
        step="of a transactional id|of a share group",
        reason="Transactions and share groups are not served yet; the code is one that ends every client at once.",
    ),
    KeptDifference(
        dialogue="producers_get_their_ids",
        step="for transactions",
        reason="Transactions are not served yet; the code is one that ends every client at once.",
    ),
    KeptDifference(
        dialogue="a_member_of_the_newer_protocol",
        reason="The newer group protocol is not served yet; the message tells to set group.protocol=classic.",
    ),
    # Where Apache Kafka stumbles.
    KeptDifference(
        dialogue="batches_that_are_refused",
        step="codec [57]|(gzip|snappy|lz4|zstd) that is (none|cut off)",
        path=r".*\.error_code",
        reason="Bytes that cannot be decompressed are an invalid record here, an unknown server error there.",
    ),
    KeptDifference(
        dialogue="records_that_are_numbered_wrongly",
        step=".*, compressed",
        path=r".*\.error_code",
        reason="Compressed records without numbers of their own are invalid here, an unknown server error there.",
    ),
    KeptDifference(
        dialogue="a_fetch_waits_for_records",
        path=r".*\.(high_watermark|last_stable_offset)",
        is_steady=False,
        reason="Apache Kafka may send a record with the high watermark of a moment before; ours is never below it.",
    ),
    KeptDifference(
        dialogue="metadata_by_topic_id",
        step="neither",
        reason="A topic without name and id is unknown here, an unknown server error there.",
    ),
    KeptDifference(
        dialogue="changes_of_settings_that_are_refused",
        step="an unknown operation",
        path=r".*\.error_code",
        reason="An operation that does not exist is an invalid request here, an unknown server error there.",
    ),
    # Where our answer is the one that a reader wants.
    KeptDifference(
        dialogue="records_that_are_numbered_wrongly",
        step="what is there",
        path=r".*\.records.*",
        reason="Every record gets an offset of its own; there consumers see wrongly numbered ones twice or never.",
    ),
    KeptDifference(
        dialogue="offsets_are_looked_up",
        step="-3 of a (shorter log|log without records)",
        reason="The newest record is looked for among those that can be read; there it may be a deleted one.",
    ),
    KeptDifference(
        dialogue="topics_are_made_by_asking",
        step="a name that collides",
        path=r".*\.error_code",
        reason="A name that collides with a topic is refused; there the client asks in vain until it gives up.",
    ),
    KeptDifference(
        dialogue="offsets_are_deleted",
        step="the group after that",
        reason="A group without members is its offsets and gone with the last one; there the next sweep takes it.",
        is_steady=False,
    ),
    # What is guarded more closely.
    KeptDifference(
        dialogue="records_are_fetched",
        step="as a replica",
        path=r".*error_code",
        reason="Nobody replicates from here, so whoever says that it is a replica is refused outright.",
    ),
    KeptDifference(
        dialogue="topics_get_more_partitions",
        step="the offsets topic, only to see",
        path=r".*\.error_code",
        reason="A group is found by its hash and the number of partitions: growing the topic would lose every group.",
    ),
    KeptDifference(
        dialogue="requests_that_nobody_understands",
        step="an array of a negative length|a name that is no text|a client with a negative name",
        reason="Broken bytes cost the connection; there every negative length is null and broken text is guessed.",
    ),
    KeptDifference(
        dialogue="coordinators_are_found|offsets_of_groups_with_members|groups_are_looked_at",
        step="(of )?the same group twice|a partition twice|the same twice",
        path=r"coordinators|groups|(groups\[0\]\.)?topics\[.*\]\.partitions",
        reason="What a request repeats is answered once: a large group named often would make an endless answer.",
    ),
    # Settings.
    KeptDifference(
        dialogue="topics_(are_created|that_.*)|settings_of_topics|changes_of_settings_that_are_refused",
        path=r".*configs\[min\.insync\.replicas\]\.(config_source|synonyms)",
        reason="One node has no cluster-wide value of it; there a feature for replicas puts one.",
    ),
    KeptDifference(
        dialogue="topics_(are|that_cannot_be)_created",
        path=r"topics\[.*\]\.topic_id",
        step="only to see.*|.* = .*",
        reason="A topic that is not made has no id; there it gets one that no topic will have.",
    ),
    KeptDifference(
        dialogue="settings_of_the_broker",
        path=r".*\.read_only",
        reason="Settings of the broker are read at start; none of them changes while it runs.",
    ),
    KeptDifference(
        dialogue="settings_of_the_broker",
        path=r".*configs\[log\.retention\.ms\]\.(value|synonyms)",
        reason="The time in force is told in milliseconds; there the value is null and the hours are told.",
    ),
)
