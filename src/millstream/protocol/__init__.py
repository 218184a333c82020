"""The Kafka wire protocol without I/O: framing, headers, messages. Bytes in, messages out."""
