"""Groups of consumers: offsets, classic groups, consumer groups (KIP-848); one shard per partition."""
