"""One request to an endpoint: to an address that was checked, without redirections or proxies, and
over when its time is: an endpoint that sends a byte now and then holds nothing up."""

from __future__ import annotations

import contextlib
import http.client
import ipaddress
import socket
import ssl
import threading
import time
from urllib.parse import urlsplit

from millstream.bridges.config import WebhookConfig
from millstream.bridges.webhooks.addresses import RefusedAddress, check_addresses, is_listed
from millstream.bridges.webhooks.attempts import Answer

ANSWER_BYTES_MAX = 64 * 1024
PORTS = {"http": 80, "https": 443}


def post(config: WebhookConfig, body: bytes, headers: dict[str, str]) -> Answer:
    """Never raises: an answer, or the error in its place."""
    parts = urlsplit(config.url)
    host, port = parts.hostname or "", parts.port or PORTS[parts.scheme]
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    try:
        address = check_addresses(host, port, config.allow)[0]
        if parts.scheme == "http" and not is_listed(_parsed(address), config.allow):
            raise RefusedAddress(f"{host} is {address}, which is not in `allow`: use https")
        with _Deadline(config.timeout_seconds) as deadline:
            connection = _connect(parts.scheme, host, port, address, deadline)
            try:
                connection.request("POST", path, body, headers)
                response = connection.getresponse()
                response.read(ANSWER_BYTES_MAX)
                deadline.check()
                return Answer(response.status, response.getheader("retry-after") or "")
            except (OSError, http.client.HTTPException, ValueError):
                deadline.check()
                raise
            finally:
                connection.close()
    except RefusedAddress as refused:
        return Answer(error=str(refused))
    except (OSError, http.client.HTTPException, ValueError) as error:
        return Answer(error=f"{type(error).__name__}: {error}")


def _parsed(address: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    return ipaddress.ip_address(address.partition("%")[0])


class _Deadline:
    """Shuts the socket down when the time is over: timeouts of sockets begin again with each
    byte."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._ends = time.monotonic() + seconds
        self._socket: socket.socket | None = None
        self._timer = threading.Timer(seconds, self._end)
        self._timer.daemon = True

    def __enter__(self) -> _Deadline:
        self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()

    def watch(self, connected: socket.socket) -> None:
        self._socket = connected
        self.check()

    def check(self) -> None:
        """Raise TimeoutError if the time is over."""
        if time.monotonic() >= self._ends:
            raise TimeoutError(f"timed out after {self.seconds:g} s")

    def _end(self) -> None:
        if self._socket is not None:
            # Not TLS's own, which would wait, and change what the other thread reads with.
            with contextlib.suppress(OSError):  # closed meanwhile
                socket.socket.shutdown(self._socket, socket.SHUT_RDWR)


def _connect(
    scheme: str, host: str, port: int, address: str, deadline: _Deadline
) -> http.client.HTTPConnection:
    """A connection to the address, for the host: its name is in Host and, with TLS, verified."""
    timeout = deadline.seconds
    plain = socket.create_connection((address, port), timeout)
    connection: http.client.HTTPConnection
    try:
        if scheme == "https":
            context = ssl.create_default_context()
            wrapped = context.wrap_socket(
                plain, server_hostname=host, do_handshake_on_connect=False
            )
            plain = wrapped
            deadline.watch(plain)
            wrapped.do_handshake()
            connection = http.client.HTTPSConnection(host, port, timeout=timeout)
        else:
            deadline.watch(plain)
            connection = http.client.HTTPConnection(host, port, timeout=timeout)
    except BaseException:
        plain.close()
        raise
    connection.sock = plain
    return connection
