"""The settings of groups, as the broker is configured."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSettings:
    """The limits and delays of groups; the names are those of Kafka's settings."""

    initial_rebalance_delay_ms: int = 3_000
    session_timeout_ms_min: int = 6_000
    session_timeout_ms_max: int = 1_800_000
    size_max: int = 2**31 - 1
    # Kafka has no such limits: what a member sends about itself or gets assigned, and that of all members of a group.
    member_bytes_max: int = 1024 * 1024
    group_bytes_max: int = 16 * 1024 * 1024
    metadata_chars_max: int = 4_096
    offsets_retention_ms: int = 10_080 * 60_000
    new_member_join_timeout_ms: int = 300_000  # Kafka's constant: how long a member without a heartbeat may wait
