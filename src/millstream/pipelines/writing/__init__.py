"""How records go out exactly once: encoded, written in open transactions, decided, settled."""
