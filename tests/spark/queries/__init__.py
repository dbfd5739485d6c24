"""Streaming queries that are not our examples, as other people write them."""
