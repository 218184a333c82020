"""One module per API of the Kafka protocol; each registers itself, and ApiVersions lists them."""
