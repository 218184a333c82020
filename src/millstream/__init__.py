"""Millstream: an event log that speaks the Kafka protocol, and a stream processor for Python."""
