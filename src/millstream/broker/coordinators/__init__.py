"""Coordinators of groups, transactions and share state, sharded by internal-topic partition."""
