"""Real peers for the tests: Apache Kafka, its tools, and Kafka clients in five languages.

Everything is fetched by name from the public package registries, once, into a cache outside the
tree (`cache.py`); what cannot be had raises `PeerMissing`, which tests turn into a skip that says
exactly what is missing. `python -m tests.peers` fetches and builds all of it beforehand.
"""
