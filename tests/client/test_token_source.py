"""Tokens from files and from a token endpoint, kept for most of their life."""

from __future__ import annotations

import base64
import json
import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs

import pytest

from millstream.client.token_source import TokenSource
from millstream.errors import ConfigError


class Endpoint(ThreadingHTTPServer):
    """Answers `answers` in turn, the last one again and again; remembers the requests."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.answers: list[tuple[int, bytes]] = []
        self.requests: list[tuple[str, dict[str, list[str]]]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/token"

    def will_answer(self, *answers: object, code: int = 200) -> None:
        self.answers = [(code, json.dumps(it).encode()) for it in answers]


class Handler(BaseHTTPRequestHandler):
    server: Endpoint

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        self.server.requests.append((self.headers["Authorization"], parse_qs(body)))
        answers = self.server.answers
        code, content = answers.pop(0) if len(answers) > 1 else answers[0]
        if code == 0:
            self.wfile.write(b"not HTTP\r\n\r\n")
            return
        self.send_response(code)
        if code == 302:
            self.send_header("Location", "/elsewhere")
        self.end_headers()
        self.wfile.write(content)

    def do_GET(self) -> None:
        """What a redirect would lead to."""
        self.server.requests.append((self.headers["Authorization"], {}))

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    with Endpoint() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def source(endpoint: Endpoint, scope: str | None = None) -> TokenSource:
    return TokenSource(endpoint.url, "me/x", "s3 cret", scope)


def test_endpoint_is_asked_with_the_clients_credentials(endpoint: Endpoint) -> None:
    endpoint.will_answer({"access_token": "abc", "expires_in": 3600})
    token = source(endpoint, "read write").token()
    assert token.text == "abc"
    assert 3500 < token.expires_at - time.time() <= 3600
    ((authorization, form),) = endpoint.requests
    kind, _, pair = authorization.partition(" ")
    assert (kind, base64.b64decode(pair)) == ("Basic", b"me%2Fx:s3%20cret")
    assert form == {"grant_type": ["client_credentials"], "scope": ["read write"]}


def test_token_is_kept_until_it_is_old_or_refused(endpoint: Endpoint) -> None:
    answers = [{"access_token": name, "expires_in": 3600} for name in ("first", "second")]
    endpoint.will_answer(*answers)
    mine = source(endpoint)
    assert [mine.token().text for _ in range(3)] == ["first"] * 3
    mine.forget()
    assert mine.token().text == "second"
    stale = mine.token()._replace(received_at=time.time() - 2900, expires_at=time.time() + 700)
    assert not stale.is_fresh
    assert stale._replace(expires_at=time.time() + 7000).is_fresh


def test_life_of_a_token_is_in_its_claims(endpoint: Endpoint, tmp_path: Path) -> None:
    claims = base64.urlsafe_b64encode(json.dumps({"exp": 4_000_000_000}).encode()).rstrip(b"=")
    text = f"e30.{claims.decode()}.sig"
    endpoint.will_answer({"access_token": text})
    assert source(endpoint).token().expires_at == 4_000_000_000
    file = tmp_path / "token"
    file.write_text(f"{text}\n")
    from_file = TokenSource(f"file:{file}")
    assert from_file.token()[::2] == (text, 4_000_000_000)
    file.write_text("another")
    assert from_file.token().text == "another"


@pytest.mark.parametrize(
    ("code", "answer", "complaint"),
    [
        (401, {"error": "invalid_client", "error_description": "who?"}, "401 invalid_client: who"),
        (400, "what", "gives no token to client me/x: 400"),
        (200, {"token": "abc"}, "answers without access_token"),
        (200, [], "answers without access_token"),
    ],
)
def test_refusal_is_explained_without_secrets(
    endpoint: Endpoint, code: int, answer: object, complaint: str
) -> None:
    endpoint.will_answer(answer, code=code)
    with pytest.raises(ConfigError, match=complaint) as refused:
        source(endpoint).token()
    assert "s3" not in str(refused.value) + repr(source(endpoint))


def test_endpoint_that_is_away_may_come_back(endpoint: Endpoint) -> None:
    endpoint.will_answer({}, code=503)
    with pytest.raises(ConnectionError, match="503"):
        source(endpoint).token()
    endpoint.will_answer({}, code=0)
    with pytest.raises(ConnectionError, match="broken HTTP"):
        source(endpoint).token()
    endpoint.answers = [(200, b"no JSON")]
    with pytest.raises(ConfigError, match="answers something else than JSON"):
        source(endpoint).token()
    gone = TokenSource("http://127.0.0.1:9/token", "me", "s3cret")
    with pytest.raises(ConnectionError, match=r"127\.0\.0\.1:9"):
        gone.token()


@pytest.mark.parametrize(
    ("url", "complaint"),
    [
        ("host/token", "write https://host/path .*, or file:/path"),
        ("http://host/token", "would send the secret unencrypted"),
        ("http://[host/token", "write https://host/path"),
        ("https://host/token", "needs sasl.oauthbearer.client.id"),
    ],
)
def test_source_that_cannot_be_asked_is_refused(url: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        TokenSource(url)


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"missing cannot be read"):
        TokenSource(f"file:{tmp_path}/missing").token()


def test_redirect_does_not_take_the_secret_along(endpoint: Endpoint) -> None:
    endpoint.will_answer({}, code=302)
    with pytest.raises(ConfigError, match="gives no token to client me/x: 302"):
        source(endpoint).token()
    assert len(endpoint.requests) == 1


def test_endpoint_that_does_not_answer_keeps_only_its_own_clients_waiting(
    endpoint: Endpoint,
) -> None:
    endpoint.will_answer({"access_token": "abc"})
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/token"
        waiting = TokenSource(url, "me", "s3cret")

        def wait() -> None:
            with pytest.raises(ConnectionError):
                waiting.token()

        thread = threading.Thread(target=wait)
        thread.start()
        connection, _ = silent.accept()
        assert connection.recv(1)
        assert source(endpoint, "another").token().text == "abc"
        assert thread.is_alive()
        connection.close()
        thread.join()
