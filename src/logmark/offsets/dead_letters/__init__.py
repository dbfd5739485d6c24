"""Dead letters: records that a pipeline refused, as a dead-letter topic keeps them."""
