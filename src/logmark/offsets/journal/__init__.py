"""The journal of changes to committed offsets and checkpoints: in a file of the user or in a topic of the cluster."""
