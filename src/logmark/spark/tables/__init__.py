"""Delta tables that hold the rows of each offset once, and `format("logmark.delta")`."""
