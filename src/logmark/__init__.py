"""Logmark keeps an event log, the committed offsets of its readers, and the pipelines that read it."""

__version__ = "0.1.0"
