"""Partitions on this broker: what is written, flushed and visible, and who reads it."""
