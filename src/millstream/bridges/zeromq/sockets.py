"""ZeroMQ's sockets, bound or connected, each with a context of its own.

Memory is bounded: at most `hwm` messages wait for each peer, and received frames have at most
`message_bytes_max`. A peer that sends a larger frame is disconnected.
"""

from __future__ import annotations

import zmq

from millstream.bridges.config import ZeromqInConfig, ZeromqOutConfig
from millstream.errors import MillstreamError

LINGER_MS = 5_000  # what was sent may still go out when the bridge stops
TYPES = {"sub": zmq.SUB, "pull": zmq.PULL, "pub": zmq.PUB, "push": zmq.PUSH}


def opened(config: ZeromqInConfig | ZeromqOutConfig) -> zmq.Socket[bytes]:
    """A socket as the file declares it. Raises `MillstreamError`."""
    made: zmq.Socket[bytes] = zmq.Context().socket(TYPES[config.type])
    at = ""
    try:
        made.set_hwm(config.hwm)
        made.setsockopt(zmq.LINGER, LINGER_MS)
        if isinstance(config, ZeromqInConfig):
            made.setsockopt(zmq.MAXMSGSIZE, config.message_bytes_max)
        if isinstance(config, ZeromqInConfig) and config.type == "sub":
            for prefix in config.subscribe or ("",):
                made.setsockopt(zmq.SUBSCRIBE, prefix.encode())
        if config.type == "push":
            made.setsockopt(zmq.IMMEDIATE, 1)  # queue for receivers that are there, and no others
        for at in config.bind:
            made.bind(at)
        for at in config.connect:
            made.connect(at)
    except zmq.ZMQError as error:
        close(made)
        raise MillstreamError(f"zeromq {config.name}: {at}: {error.strerror}") from error
    return made


def address_of(opened: zmq.Socket[bytes]) -> str:
    """The last address that it was bound or connected to, with the port that the system chose."""
    return opened.getsockopt_string(zmq.LAST_ENDPOINT)


def close(opened: zmq.Socket[bytes]) -> None:
    """Close it and its context, when what was sent has gone out or cannot in time."""
    context = opened.context
    opened.close()
    context.term()
