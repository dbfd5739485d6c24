"""`format("logmark")` as a reader: topics as batches and as a consumer group's stream."""
