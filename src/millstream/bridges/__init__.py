"""Bridges between topics and other protocols: `millstream bridge FILE.toml`.

    config.py       the file
    counts.py       what passed and what was lost, as metrics
    sending.py      records to topics, acknowledged
    http/           produce over HTTP, webhooks in, CloudEvents, server-sent events out
    webhooks/       webhooks out: a share group for each endpoint
    statsd/         StatsD and DogStatsD over UDP
    mold/           MoldUDP64 over multicast, in both directions
    zeromq/         ZeroMQ: PUB/SUB and PUSH/PULL, in both directions
    tail.py         the end of a partition, where a stream has its position
    running.py      runs what the file declares
    publishing.py   tells the cluster that it runs: for the console and `millstream bridges`

They are Kafka clients, for Millstream and Apache Kafka. Modules of formats, signatures and
decisions are pure; sockets and Kafka's client are in few others. A bridge writes into the log what
it could not receive, where readers see it.
"""
