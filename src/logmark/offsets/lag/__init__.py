"""Lag: where groups stand, how far they are behind, and what their past says."""
