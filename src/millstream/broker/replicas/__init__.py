"""Partitions on this broker: append, flush, visibility and fetch sessions."""
