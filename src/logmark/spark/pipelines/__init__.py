"""Pipelines: what one is (`declaration`), what is remembered of it (`home`), and what runs, shows and replays it."""
