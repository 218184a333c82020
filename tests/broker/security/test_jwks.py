"""The keys of tokens, from files and URLs, while they change."""

from __future__ import annotations

import contextlib
import json
import logging
import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from millstream.broker.security.jwks import (
    BYTES_MAX,
    UNKNOWN_KEY_INTERVAL_MS,
    SigningKeys,
    Timing,
)
from millstream.errors import ConfigError
from millstream.security.exchange import AuthenticationUnavailable
from millstream.security.oauthbearer import InvalidToken
from millstream.security.tokens import TokenRules, UnknownKey
from millstream.testing.clock import ManualClock
from tests.peers.patience import PATIENCE_SECONDS, wait_until
from tests.peers.secured import Certificates
from tests.security.test_tokens import CLAIMS, NOW, jwk, sign

RULES = TokenRules()
SELDOM = Timing(refresh_ms=10**9)


def clock() -> ManualClock:
    return ManualClock(NOW * 1000)


def key_set(*kinds: str) -> bytes:
    return json.dumps({"keys": [jwk(kind) for kind in kinds]}).encode()


@contextlib.contextmanager
def opened(
    url: str, timing: Timing = SELDOM, at: ManualClock | None = None
) -> Iterator[SigningKeys]:
    keys = SigningKeys(url, timing, at or clock())
    try:
        yield keys
    finally:
        keys.close()


def is_valid(keys: SigningKeys, kind: str) -> bool:
    try:
        return keys.check(sign(CLAIMS, kind), RULES).user == "alice"
    except (InvalidToken, AuthenticationUnavailable):
        return False


class Endpoint:
    """An HTTP server whose answer can be changed."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.status, self.content = 200, b""
        self.count = 0
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                endpoint.count += 1
                if endpoint.status == 0:
                    self.wfile.write(b"not HTTP\r\n\r\n")
                    return
                self.send_response(endpoint.status)
                if endpoint.status == 302:
                    self.send_header("Location", "/elsewhere")
                    endpoint.status = 200
                self.end_headers()
                with contextlib.suppress(OSError):
                    self.wfile.write(endpoint.content)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        scheme = "http" if tls is None else "https"
        self.url = f"{scheme}://127.0.0.1:{self._server.server_address[1]}/jwks"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    made = Endpoint()
    yield made
    made.close()


def test_file_is_loaded_at_once(tmp_path: Path) -> None:
    path = tmp_path / "my keys.json"
    path.write_bytes(key_set("rsa"))
    with opened(path.as_uri()) as keys:
        assert is_valid(keys, "rsa")
        assert not is_valid(keys, "ec")


@pytest.mark.parametrize(
    ("content", "complaint"), [(None, "No such file"), (b"{}", "not a JSON Web Key Set")]
)
def test_file_without_keys_is_a_wrong_setting(
    tmp_path: Path, content: bytes | None, complaint: str
) -> None:
    path = tmp_path / "keys.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=f"sasl.oauthbearer.jwks.endpoint.url=file:.*{complaint}"):
        SigningKeys(path.as_uri(), SELDOM, clock())


def test_nobody_is_refused_before_the_first_keys(endpoint: Endpoint) -> None:
    endpoint.status = 500
    with opened(endpoint.url, Timing(10**9, 10, 20)) as keys:
        assert not keys.wait(0)
        with pytest.raises(AuthenticationUnavailable):
            keys.check(sign(CLAIMS, "rsa"), RULES)
        endpoint.content, endpoint.status = key_set("rsa"), 200
        assert keys.wait(PATIENCE_SECONDS)
        assert is_valid(keys, "rsa")


def test_new_key_is_loaded_when_a_token_names_it(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    path.write_bytes(key_set("rsa"))
    with opened(path.as_uri()) as keys:
        path.write_bytes(key_set("rsa", "ec"))
        with pytest.raises(UnknownKey):
            keys.check(sign(CLAIMS, "ec"), RULES)
        wait_until(lambda: is_valid(keys, "ec"))


def test_unknown_keys_cause_few_reloads(endpoint: Endpoint) -> None:
    endpoint.content = key_set("rsa")
    time_now = clock()
    with opened(endpoint.url, at=time_now) as keys:
        wait_until(lambda: is_valid(keys, "rsa"))
        before = endpoint.count
        for _ in range(50):
            assert not is_valid(keys, "other")
        wait_until(lambda: endpoint.count == before + 1)
        time_now.advance(UNKNOWN_KEY_INTERVAL_MS)
        for _ in range(50):
            assert not is_valid(keys, "other")
        wait_until(lambda: endpoint.count == before + 2)
        assert not is_valid(keys, "other")
        assert endpoint.count == before + 2


def test_keys_are_reloaded_now_and_then_and_kept_while_that_fails(endpoint: Endpoint) -> None:
    endpoint.content = key_set("rsa")
    with opened(endpoint.url, Timing(20, 10, 20)) as keys:
        wait_until(lambda: is_valid(keys, "rsa"))
        for endpoint.status in (500, 0):
            count = endpoint.count
            wait_until(lambda: endpoint.count > count + 3)  # noqa: B023
            assert is_valid(keys, "rsa")
        endpoint.content, endpoint.status = key_set("ec"), 200
        wait_until(lambda: is_valid(keys, "ec"))
        assert not is_valid(keys, "rsa"), "a key that was withdrawn signs nothing more"


@pytest.mark.parametrize("fault", ["redirect", "too large"])
def test_answers_that_are_not_taken(
    endpoint: Endpoint, fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    endpoint.content = key_set("rsa")
    if fault == "redirect":
        endpoint.status = 302
    else:
        endpoint.content += b" " * BYTES_MAX
    with (
        caplog.at_level(logging.WARNING),
        opened(endpoint.url, Timing(10**9, 10**9, 10**9)) as keys,
    ):
        wait_until(lambda: "cannot load the keys of tokens" in caplog.text)
        assert not is_valid(keys, "rsa")


def test_keys_over_tls_of_a_trusted_authority_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    certificates = Certificates(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates.sign("id"))
    endpoint = Endpoint(context)
    endpoint.content = key_set("rsa")
    try:
        monkeypatch.setenv("SSL_CERT_FILE", str(certificates.authority))
        with opened(endpoint.url) as keys:
            wait_until(lambda: is_valid(keys, "rsa"))
        monkeypatch.setenv("SSL_CERT_FILE", str(Certificates(tmp_path, "other").authority))
        with opened(endpoint.url, Timing(10**9, 10**9, 10**9)) as keys:
            wait_until(lambda: "CERTIFICATE_VERIFY_FAILED" in caplog.text)
            assert not is_valid(keys, "rsa")
    finally:
        endpoint.close()
