"""Groups of consumers: committed offsets, classic groups and consumer groups (KIP-848)."""
