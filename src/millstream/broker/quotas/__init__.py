"""Client quotas: how much clients may produce, fetch, ask for, change and connect."""
