"""A thin client of the Kafka protocol, for what needs batches undecoded or requests that ordinary
clients do not offer: Spark's tasks, and the command line's looks into transactions and queues.

It blocks, is used by one thread at a time, and speaks to any Kafka broker, over TLS and SASL too.
Applications should use an ordinary Kafka client instead.
"""
