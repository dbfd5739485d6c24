"""`format("logmark")` as a writer: rows into topics, each batch once."""
