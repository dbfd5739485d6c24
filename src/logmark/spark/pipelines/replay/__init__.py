"""Replays of pipelines: records are read again, and nothing is counted or sent twice."""
