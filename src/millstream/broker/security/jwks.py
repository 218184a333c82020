"""The keys that sign tokens: loaded from a file or a URL, and again now and then, in a thread.

A token with an unknown key asks for a reload, since it may be a new key; not more often than every
ten seconds, because anyone can send such tokens. The client retries and is let in then. A broker
waits for the first keys before it accepts connections, but not for ever.
"""

from __future__ import annotations

import logging
import threading
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from millstream.clock import Clock
from millstream.config.sasl import JWKS_URL, check_jwks_url
from millstream.errors import ConfigError
from millstream.security.exchange import AuthenticationUnavailable
from millstream.security.oauthbearer import BearerToken
from millstream.security.tokens import Jwks, TokenRules, UnknownKey, check_jwt
from millstream.security.web import opener

logger = logging.getLogger("millstream.security")

BYTES_MAX = 1 << 20
TIMEOUT_SECONDS = 10.0
UNKNOWN_KEY_INTERVAL_MS = 10_000


class Timing(NamedTuple):
    """Of reloads: when all is well, and after a failure."""

    refresh_ms: int = 3_600_000
    retry_min_ms: int = 100
    retry_max_ms: int = 10_000


class SigningKeys:
    """The keys at one URL, kept up to date."""

    def __init__(self, url: str, timing: Timing, clock: Clock) -> None:
        """Raises `ConfigError` for a URL that cannot be, and a file without keys."""
        self._url = check_jwks_url(url)
        self._timing = timing
        self._clock = clock
        self._wake = threading.Event()
        self._closing = False
        self._asked_ms: int | None = None  # when an unknown key last caused a reload
        is_file = self._url.startswith("file:")
        self.current = self._load() if is_file else Jwks()
        self._loaded = threading.Event()
        if is_file:
            self._loaded.set()
        self._thread = threading.Thread(
            target=self._run, args=(is_file,), name="millstream-jwks", daemon=True
        )
        self._thread.start()

    def check(self, token: str, rules: TokenRules) -> BearerToken:
        """Raises `InvalidToken`, and `AuthenticationUnavailable` before the first keys."""
        if not self._loaded.is_set():
            raise AuthenticationUnavailable("the keys of tokens have not been loaded yet")
        try:
            return check_jwt(token, self.current, rules, self._clock.now_ms())
        except UnknownKey:
            self._ask()
            raise

    def wait(self, seconds: float) -> bool:
        """For the first keys; whether they have been loaded."""
        return self._loaded.wait(seconds)

    def close(self) -> None:
        self._closing = True
        self._wake.set()

    def _ask(self) -> None:
        now_ms = self._clock.monotonic_ms()
        if self._asked_ms is None or now_ms - self._asked_ms >= UNKNOWN_KEY_INTERVAL_MS:
            self._asked_ms = now_ms
            self._wake.set()

    def _run(self, is_loaded: bool) -> None:
        wait_ms = self._timing.refresh_ms if is_loaded else 0
        failures = 0
        while True:
            self._wake.wait(wait_ms / 1000)
            self._wake.clear()
            if self._closing:
                return
            try:
                self.current = self._load()
                self._loaded.set()
                failures, wait_ms = 0, self._timing.refresh_ms
            except Exception as error:  # noqa: BLE001  # half an answer, say: it may pass
                wait_ms = min(
                    self._timing.retry_min_ms << min(failures, 20), self._timing.retry_max_ms
                )
                failures += 1
                logger.warning("cannot load the keys of tokens from %s: %s", self._url, error)

    def _load(self) -> Jwks:
        try:
            keys = Jwks.parse(_read(self._url))
        except ImportError:
            raise ConfigError(
                "OAUTHBEARER needs PyJWT and cryptography: pip install 'millstream[security]'"
            ) from None
        except (ConfigError, OSError) as error:
            raise ConfigError(f"{JWKS_URL}={self._url}: {error}") from None
        logger.info("loaded %d keys of tokens from %s", len(keys), self._url)
        return keys


def _read(url: str) -> bytes:
    parts = urlsplit(url)
    if parts.scheme == "file":
        with Path(unquote(parts.path)).open("rb") as file:
            return _limited(file.read(BYTES_MAX + 1))
    with opener().open(url, timeout=TIMEOUT_SECONDS) as answer:
        content: bytes = answer.read(BYTES_MAX + 1)
        return _limited(content)


def _limited(content: bytes) -> bytes:
    if len(content) > BYTES_MAX:
        raise ConfigError(f"more than {BYTES_MAX} bytes")
    return content
