"""JSON over HTTP, on one connection that is kept open: for targets with a REST API."""

from __future__ import annotations

import base64
import http.client
import json
import ssl
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

from millstream.connect.sinks.sink import SinkUnavailable
from millstream.errors import ConfigError, StoreError

_TIMEOUT_SECONDS = 60.0
_LATER = (408, 429, 502, 503, 504)
_NOT_PERMITTED = (401, 403)


class Answer(NamedTuple):
    status: int
    body: Any

    @property
    def is_good(self) -> bool:
        return self.status < 300


class JsonServer:
    """A server, by its address: http://user:password@host:port/path."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        try:
            port = parts.port
        except ValueError as error:
            raise ConfigError(f"{parts.hostname}: {error}") from error
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query:
            raise ConfigError(f"{parts.hostname or url!r}: write host:port, without options")
        self.shown = f"{parts.hostname}:{port}" if port else parts.hostname
        self._is_secure = parts.scheme == "https"
        self._host, self._port, self._root = parts.hostname, port, parts.path.rstrip("/")
        self._headers = {"Content-Type": "application/json"}
        if parts.username is not None:
            user = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            self._headers["Authorization"] = f"Basic {base64.b64encode(user.encode()).decode()}"
        self._connection: http.client.HTTPConnection | None = None

    def ask(
        self, method: str, path: str, body: Any = None, *, content_type: str | None = None
    ) -> Answer:
        """The answer. Raises `SinkUnavailable` if there is none, or if the server asks to wait;
        the outcome of the request is unknown then."""
        content = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        headers = self._headers | ({"Content-Type": content_type} if content_type else {})
        try:
            connection = self._opened()
            connection.request(method, self._root + path, content, headers)
            response = connection.getresponse()
            status, text = response.status, response.read()
        except ssl.SSLCertVerificationError as error:
            self.close()
            raise ConfigError(f"{self.shown} is not trusted: {error.verify_message}") from error
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise SinkUnavailable(
                f"{self.shown} cannot be reached: {error or type(error).__name__}"
            ) from error
        if status in _LATER:
            raise SinkUnavailable(f"{self.shown} answers {status}: {_shown(text)}")
        if status in _NOT_PERMITTED:
            raise ConfigError(f"{self.shown} refuses {method} {path}: {status} {_shown(text)}")
        try:
            return Answer(status, json.loads(text) if text else None)
        except ValueError as error:
            raise StoreError(
                f"{self.shown} answers {status} with something else than JSON: {_shown(text)}"
            ) from error

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _opened(self) -> http.client.HTTPConnection:
        if self._connection is None:
            if self._is_secure:
                self._connection = http.client.HTTPSConnection(
                    self._host, self._port, timeout=_TIMEOUT_SECONDS
                )
            else:
                self._connection = http.client.HTTPConnection(
                    self._host, self._port, timeout=_TIMEOUT_SECONDS
                )
        return self._connection


def _shown(text: bytes) -> str:
    return text[:300].decode("utf-8", "replace")
