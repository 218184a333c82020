"""ZeroMQ's sockets, bound or connected, each with a context of its own, and what runs them.

Memory is bounded: at most `hwm` messages wait for each peer, and received frames have at most
`message_bytes_max`. A peer that sends a larger frame is disconnected.

With CURVE, both ends prove their keys, and everything is encrypted. A server that knows the keys of
its clients refuses others; its socket never sees their messages.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import zmq
from zmq.auth.thread import ThreadAuthenticator

from millstream.bridges.config import CurveConfig, ZeromqInConfig, ZeromqOutConfig
from millstream.bridges.counts import Counts
from millstream.bridges.loops import Loop, Part
from millstream.errors import MillstreamError

LINGER_MS = 5_000  # what was sent may still go out when the bridge stops
TYPES = {"sub": zmq.SUB, "pull": zmq.PULL, "pub": zmq.PUB, "push": zmq.PUSH}


class Stream(Part, ABC):
    """A socket and its loop: listens when it is made, runs from `start` to `stop`. A loop that
    fails begins again, with the same socket."""

    def __init__(self, config: ZeromqInConfig | ZeromqOutConfig, counts: Counts) -> None:
        super().__init__()
        self._name = config.name
        self._counts = counts
        self._keys = Keys(config.curve) if config.curve is not None else None
        self._socket = opened(config, self._keys)
        self.address = address_of(self._socket)
        self.loops = [Loop(f"zeromq {config.name}", self._run, self._stopping, counts)]

    def _close(self) -> None:
        if self._keys is not None:
            self._keys.stop()
        close(self._socket)

    @property
    def problem(self) -> str | None:
        """What keeps records from passing, besides a failure of the loop."""
        return None

    @abstractmethod
    def _run(self) -> None:
        """Pass messages on, until the bridge stops."""


def opened(config: ZeromqInConfig | ZeromqOutConfig, keys: Keys | None = None) -> zmq.Socket[bytes]:
    """A socket as the file declares it. Raises `MillstreamError`."""
    made: zmq.Socket[bytes] = zmq.Context().socket(TYPES[config.type])
    at = ""
    try:
        made.set_hwm(config.hwm)
        made.setsockopt(zmq.LINGER, LINGER_MS)
        if keys is not None:
            keys.protect(made)
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
        if keys is not None:
            keys.stop()
        close(made)
        raise MillstreamError(f"zeromq {config.name}: {at}: {error.strerror}") from error
    return made


class Keys:
    """The key of a socket, and those of the clients that a server knows."""

    def __init__(self, config: CurveConfig) -> None:
        self._config = config
        self._authenticator: ThreadAuthenticator | None = None

    def protect(self, made: zmq.Socket[bytes]) -> None:
        made.setsockopt(zmq.CURVE_SECRETKEY, self._config.secret)
        made.setsockopt(zmq.CURVE_PUBLICKEY, zmq.curve_public(self._config.secret))
        if self._config.server is not None:
            made.setsockopt(zmq.CURVE_SERVERKEY, self._config.server)
            return
        made.setsockopt(zmq.CURVE_SERVER, 1)
        if self._config.clients is not None:
            made.setsockopt(zmq.ZAP_DOMAIN, b"bridge")
            self._authenticator = ThreadAuthenticator(made.context)
            self._authenticator.start()
            self._authenticator.configure_curve_callback("bridge", self)

    def callback(self, domain: str, key: bytes) -> bool:
        """Called by the authenticator, with the key of a client, in Z85."""
        return key in (self._config.clients or ())

    def stop(self) -> None:
        if self._authenticator is not None:
            self._authenticator.stop()
            self._authenticator = None


def address_of(opened: zmq.Socket[bytes]) -> str:
    """The last address that it was bound or connected to, with the port that the system chose."""
    return opened.getsockopt_string(zmq.LAST_ENDPOINT)


def close(opened: zmq.Socket[bytes]) -> None:
    """Close it and its context, when what was sent has gone out or cannot in time."""
    context = opened.context
    opened.close()
    context.term()
