"""Lag: samples of committed offsets, how far groups are behind, and what their history says."""
