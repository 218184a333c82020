"""The archive of this broker's partitions: written by their leaders, read for consumers."""
