"""Examples that run: the click stream with its three readers, and the small one with orders."""
