"""The small example: orders in a topic, read by two groups that do not disturb each other."""
