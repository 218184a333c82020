"""Client telemetry (KIP-714): clients push their metrics to the broker, which serves them."""
