"""Replication between brokers in one process."""
