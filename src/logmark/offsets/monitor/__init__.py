"""The monitor: samples on an interval, metrics, alerts."""
