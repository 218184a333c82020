"""Client connections: bytes in, requests to their handlers, answers out in order."""
