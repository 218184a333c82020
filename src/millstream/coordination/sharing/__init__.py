"""Share groups at the partition's leader: who holds which record, and what becomes of it."""
