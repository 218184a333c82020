"""Pipelines on Spark: reading and writing topics, and everything else that imports pyspark.

A Kafka cluster is reached over the wire, Millstream's or Apache's alike.
"""
