"""Avro, for reading and writing: options, the schema registry, schemas and types."""
