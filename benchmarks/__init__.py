"""Millstream beside Apache Kafka, in one run on one machine, as ratios: `make bench`."""
