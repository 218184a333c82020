"""Requests to other brokers, and the remote forms of what a single broker does alone."""
