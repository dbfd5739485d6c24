"""Moves of committed offsets: planned, shown, journaled, applied, undone."""
