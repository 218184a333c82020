"""Record batches (Kafka's format v2): headers, records, compression. Bytes in, records out."""
