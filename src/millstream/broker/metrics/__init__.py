"""Metrics of a broker, under the names that Kafka's exporters give them, and its probes."""
