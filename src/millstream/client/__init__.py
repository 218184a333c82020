"""A thin client of the Kafka protocol, for undecoded batches and for requests that ordinary clients
do not offer: used by Spark tasks, and by the command line for transactions and queues.

It blocks, is used by one thread at a time, and works with any Kafka broker, also over TLS and SASL.
Applications should use an ordinary Kafka client instead.
"""
