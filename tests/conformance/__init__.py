"""Conformance: the same tests against Millstream and, with `--peer=kafka`, Apache Kafka 4.3.1."""
