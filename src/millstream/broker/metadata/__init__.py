"""The cluster metadata: the log, topics, settings, and the reconciler that opens the logs."""
