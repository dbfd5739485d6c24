"""A click stream and its readers: billing, fraud and features, each a pipeline on Spark and a consumer group."""
