"""The addresses of brokers in responses that send clients to other brokers (KIP-951).

node id int32 | host | port int32 | rack (nullable) | tags
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from millstream.protocol.wire import INT32, NO_TAGS, write_array_length, write_nullable_string


class NodeEndpoint(NamedTuple):
    """The address of a broker, on the listener that the client uses."""

    node_id: int
    host: str
    port: int
    rack: str | None = None


def encode_endpoints(endpoints: Sequence[NodeEndpoint]) -> bytes:
    """The compact array of all of them."""
    parts = [write_array_length(len(endpoints), compact=True)]
    for node_id, host, port, rack in endpoints:
        parts += (
            INT32.pack(node_id),
            write_nullable_string(host, compact=True),
            INT32.pack(port),
            write_nullable_string(rack, compact=True),
            NO_TAGS,
        )
    return b"".join(parts)
