"""Settings under Kafka's own names, with types, units, limits, defaults and documentation."""
