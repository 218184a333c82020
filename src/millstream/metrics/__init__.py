"""Metrics for Prometheus: text format, distributions, and the HTTP endpoint that serves them."""
