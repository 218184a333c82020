"""Transactions: the coordinator's state machine, pure; state changes only by replaying records."""
