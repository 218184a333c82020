"""Calls over topics: a request is a record, and so is its reply.

    with Server("localhost:9092", "prices", lambda request: b"42") as server, \\
         Client("localhost:9092", "prices") as client:
        assert client.call(b"apples") == b"42"

The headers are Spring's (ReplyingKafkaTemplate, @SendTo), so that either side may be Java. Works
with any Kafka cluster.
"""

from __future__ import annotations

from millstream.rpc.client import CallFailed, CallTimeout, Client, NoResponders, RemoteError
from millstream.rpc.headers import Request
from millstream.rpc.server import Server

__all__ = [
    "CallFailed",
    "CallTimeout",
    "Client",
    "NoResponders",
    "RemoteError",
    "Request",
    "Server",
]
