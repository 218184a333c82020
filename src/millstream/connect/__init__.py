"""Connections between the log and other systems: change capture, derived systems. No Spark."""
