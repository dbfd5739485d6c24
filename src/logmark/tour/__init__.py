"""A tour of offsets: chapters that run real clients against an embedded broker and show what happened."""
