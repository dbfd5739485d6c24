"""The tour of offsets."""
