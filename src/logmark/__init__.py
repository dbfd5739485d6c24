"""Logmark keeps an event log, everybody's place in it, and the pipelines that read it."""

__version__ = "0.1.0"
