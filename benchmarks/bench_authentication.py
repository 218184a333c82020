"""Connections per second that authenticate with SCRAM-SHA-256 and -512, and the broker's CPU time.

Each connection is opened, logs in (SaslHandshake, two SaslAuthenticate) and is closed; sixteen are
under way at once. The client salts the password once, so that PBKDF2, which costs it milliseconds,
is not what is measured; it does compute the proof of every login. Both brokers have the same
listeners and users (`tests/peers/secured.py`).
"""

from __future__ import annotations

import base64
import functools
import hashlib
import hmac
import selectors
import socket
import struct
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil
from tests.peers.secured import SCRAM, Secured, password_of, start_secured

from benchmarks.apache_kafka import OPTIMISED
from benchmarks.measurement import Measurement
from benchmarks.targets import Scale, Target

KINDS = {"millstream": "millstream", "kafka": "apache-kafka"}
HANDSHAKE, AUTHENTICATE = 17, 36
USER = "bench"
AT_ONCE = 16
SECONDS = 4.0
WARM_UP_SECONDS = 10.0  # for the just-in-time compiler


def run(targets: Sequence[Target], scale: Scale) -> Iterator[Measurement]:
    rates = {it: Measurement(f"logins with {it}", "logins/s", bar=1.0) for it in SCRAM}
    costs = {
        it: Measurement(f"broker's CPU time per login, {it}", "ms", "lower is better", bar=1.0)
        for it in SCRAM
    }
    with ExitStack() as stack:
        servers = {
            target.name: stack.enter_context(_started(KINDS[target.name])) for target in targets
        }
        for server in servers.values():
            for mechanism in SCRAM:
                _log_in(server, mechanism, scale.seconds(WARM_UP_SECONDS))
        for _ in range(scale.rounds):
            for mechanism in SCRAM:
                for name, server in servers.items():
                    per_second, milliseconds = _log_in(server, mechanism, scale.seconds(SECONDS))
                    rates[mechanism].add(name, per_second)
                    costs[mechanism].add(name, milliseconds)
    yield from rates.values()
    yield from costs.values()


@contextmanager
def _started(kind: str) -> Iterator[Secured]:
    with tempfile.TemporaryDirectory() as directory:
        secured = start_secured(kind, Path(directory), jvm_options=OPTIMISED)
        try:
            secured.add_scram_user(USER)
            yield secured
        finally:
            secured.stop()


def _log_in(secured: Secured, mechanism: str, seconds: float) -> tuple[float, float]:
    """Logins per second, and the broker's CPU time per login in milliseconds."""
    broker = psutil.Process(secured.server.process.pid)
    begun, cpu = time.perf_counter(), _cpu_seconds(broker)
    count = log_in_for(secured.address("SASL_PLAINTEXT"), mechanism, seconds)
    took, cpu = time.perf_counter() - begun, _cpu_seconds(broker) - cpu
    return count / took, cpu / count * 1000


def _cpu_seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def log_in_for(address: str, mechanism: str, seconds: float) -> int:
    """Keep sixteen logins under way for so long; returns how many were completed."""
    host, port = address.rsplit(":", 1)
    selector = selectors.DefaultSelector()
    for _ in range(AT_ONCE):
        _Login((host, int(port)), mechanism).register(selector)
    count = 0
    deadline = time.perf_counter() + seconds
    while selector.get_map():
        for key, _ in selector.select(10):
            login: _Login = key.data
            if not login.go_on():
                continue
            selector.unregister(login.socket)
            login.socket.close()
            count += 1
            if time.perf_counter() < deadline:
                _Login((host, int(port)), mechanism).register(selector)
    return count


class _Login:
    """One connection that logs in."""

    def __init__(self, address: tuple[str, int], mechanism: str) -> None:
        self.socket = socket.create_connection(address)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # Closed at once, without keeping the port.
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._mechanism = mechanism
        self._digest = SCRAM[mechanism][1]
        self._steps = iter((self._begin, self._prove, self._check))
        self._bare = f"n={USER},r=fyko+d2lbbFgONRv9qkxdawL"
        self._received = b""
        name = mechanism.encode()
        self._send(HANDSHAKE, struct.pack(">h", len(name)) + name)

    def register(self, selector: selectors.BaseSelector) -> None:
        selector.register(self.socket, selectors.EVENT_READ, self)

    def go_on(self) -> bool:
        """Take what has come, and answer it; True when the login is complete."""
        self._received += self.socket.recv(4096)
        if len(self._received) < 4 + struct.unpack_from(">i", self._received)[0]:
            return False
        answer, self._received = self._received[8:], b""
        return next(self._steps)(answer)

    def _begin(self, answer: bytes) -> bool:
        assert answer[:2] == b"\0\0", "the mechanism is refused"
        self._authenticate(f"n,,{self._bare}".encode())
        return False

    def _prove(self, answer: bytes) -> bool:
        server_first = _auth_bytes(answer).decode()
        nonce, salt, iterations = (field[2:] for field in server_first.split(","))
        client_key, stored_key = _keys(self._digest, base64.b64decode(salt), int(iterations))
        final = f"c=biws,r={nonce}"
        signed = f"{self._bare},{server_first},{final}".encode()
        signature = hmac.digest(stored_key, signed, self._digest)
        proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
        self._authenticate(f"{final},p={base64.b64encode(proof).decode()}".encode())
        return False

    def _check(self, answer: bytes) -> bool:
        assert _auth_bytes(answer).startswith(b"v=")
        return True

    def _authenticate(self, token: bytes) -> None:
        self._send(AUTHENTICATE, struct.pack(">i", len(token)) + token)

    def _send(self, api_key: int, body: bytes) -> None:
        header = struct.pack(">hhih", api_key, 1, 7, 5) + b"bench"
        self.socket.sendall(struct.pack(">i", len(header) + len(body)) + header + body)


def _auth_bytes(answer: bytes) -> bytes:
    """Of SaslAuthenticate v1: an error's code and message, the bytes, the session's lifetime."""
    code, length = struct.unpack_from(">hh", answer)
    assert code == 0, answer
    start = 4 + max(length, 0)
    (size,) = struct.unpack_from(">i", answer, start)
    return answer[start + 4 : start + 4 + size]


@functools.cache
def _keys(digest: str, salt: bytes, iterations: int) -> tuple[bytes, bytes]:
    """The client's key and its hash, computed once for all logins."""
    salted = hashlib.pbkdf2_hmac(digest, password_of(USER).encode(), salt, iterations)
    client_key = hmac.digest(salted, b"Client Key", digest)
    return client_key, hashlib.new(digest, client_key).digest()
