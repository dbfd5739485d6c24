"""Copies of a cluster's data that can be taken while it runs, continued, checked and served again."""
