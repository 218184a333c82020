"""One request to an endpoint: to an address that was checked, without redirections or proxies."""

from __future__ import annotations

import http.client
import socket
import ssl
from urllib.parse import urlsplit

from millstream.bridges.config import WebhookConfig
from millstream.bridges.webhooks.addresses import RefusedAddress, check_addresses
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
        connection = _connect(parts.scheme, host, port, address, config.timeout_seconds)
        try:
            connection.request("POST", path, body, headers)
            response = connection.getresponse()
            response.read(ANSWER_BYTES_MAX)
            return Answer(response.status, response.getheader("retry-after") or "")
        finally:
            connection.close()
    except RefusedAddress as refused:
        return Answer(error=str(refused))
    except (OSError, http.client.HTTPException, ValueError) as error:
        return Answer(error=f"{type(error).__name__}: {error}")


def _connect(
    scheme: str, host: str, port: int, address: str, timeout: float
) -> http.client.HTTPConnection:
    """A connection to the address, for the host: its name is in Host and, with TLS, verified."""
    plain = socket.create_connection((address, port), timeout)
    connection: http.client.HTTPConnection
    try:
        if scheme == "https":
            context = ssl.create_default_context()
            plain = context.wrap_socket(plain, server_hostname=host)
            connection = http.client.HTTPSConnection(host, port, timeout=timeout)
        else:
            connection = http.client.HTTPConnection(host, port, timeout=timeout)
    except BaseException:
        plain.close()
        raise
    connection.sock = plain
    return connection
