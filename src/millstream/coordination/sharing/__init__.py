"""Share groups at the partition leader: locks, deliveries and acknowledgements of records."""
