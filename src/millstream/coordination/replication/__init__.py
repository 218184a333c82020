"""Replication as pure state machines: leaders, followers, the controller, placement, roles."""
