"""Replays: a bounded, filtered range of a topic, copied beside the live groups."""
