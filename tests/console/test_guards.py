"""What a console refuses: foreign names in Host, requests of other sites, large bodies."""

from __future__ import annotations

import socket

import pytest
from starlette.datastructures import Headers

from millstream.console.guards import (
    BODY_BYTES_MAX,
    CONTENT_SECURITY_POLICY,
    LOG_IN_BYTES_MAX,
    is_allowed_host,
    is_foreign,
    is_link,
)
from tests.console.conftest import Console


@pytest.mark.parametrize(
    "host", ["127.0.0.1:80", "localhost", "LOCALHOST:1", "[::1]:8080", "10.1.2.3", "shop.example:1"]
)
def test_own_names_are_allowed(host: str) -> None:
    assert is_allowed_host(host, ("shop.example",))


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "127.0.0.1.evil.example",
        "localhost.evil.example",
        "127.0.0.1@evil.example",
        "evil.example#127.0.0.1",
        "0x7f000001",
        "2130706433",
        "[::1].evil.example",
        "localhost:80:80",
        "localhost:",
        "",
        " localhost",
        "localhost\n",
    ],
)
def test_other_names_are_refused(host: str) -> None:
    assert not is_allowed_host(host, ("shop.example",))


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({}, False),
        ({"sec-fetch-site": "same-origin", "origin": "http://h:1", "host": "h:1"}, False),
        ({"sec-fetch-site": "none"}, False),
        ({"sec-fetch-site": "same-site"}, True),
        ({"sec-fetch-site": "cross-site"}, True),
        ({"origin": "null", "host": "h:1"}, True),
        ({"origin": "http://h:2", "host": "h:1"}, True),
        ({"origin": "http://h:1.evil", "host": "h:1"}, True),
        ({"origin": "file://h:1", "host": "h:1"}, True),
    ],
)
def test_requests_of_other_sites_are_recognized(headers: dict[str, str], expected: bool) -> None:
    assert is_foreign(Headers(headers)) is expected


def test_every_answer_has_the_policy(console: Console) -> None:
    for path in ("/", "/no-such-page", "/static/console.css", "/static/none", "/?format=json"):
        _, headers, _ = console.get(path)
        assert headers["content-security-policy"] == CONTENT_SECURITY_POLICY
        assert headers["x-content-type-options"] == "nosniff"
    status, headers, _ = console.get("/", Host="evil.example")
    assert status == 421
    assert headers["content-security-policy"] == CONTENT_SECURITY_POLICY


def test_other_methods_are_refused(console: Console) -> None:
    for method in ("PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"):
        assert console.ask(method, "/", None)[0] == 405


def test_actions_from_other_sites_are_refused(console: Console) -> None:
    foreign = {"Origin": "http://evil.example"}
    assert console.ask("POST", "/", b"", **foreign)[0] == 403
    assert console.ask("POST", "/", b"", Sec_Fetch_Site="cross-site")[0] == 403


def test_large_bodies_are_refused(console: Console) -> None:
    assert console.ask("POST", "/", b"x", Content_Length=str(BODY_BYTES_MAX + 1))[0] == 413


def test_two_hosts_are_refused(console: Console) -> None:
    host, port = console.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as raw:
        raw.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n")
        assert raw.recv(1000).split(b" ")[1] in (b"400", b"421")


LINK = {"sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}


@pytest.mark.parametrize(
    ("path", "query", "headers", "expected"),
    [
        ("/topics", b"q=a", LINK, True),
        ("/topics", b"", {**LINK, "sec-fetch-dest": "iframe"}, False),
        ("/topics", b"", {"sec-fetch-mode": "no-cors", "sec-fetch-dest": "image"}, False),
        ("/topics", b"", {**LINK, "sec-purpose": "prefetch"}, False),
        ("/topics", b"live", LINK, False),
        ("/topics", b"format=json", LINK, False),
        ("/topics/a/messages/export/file", b"as=csv", LINK, False),
        ("/topics/a/messages/search/hits", b"", LINK, False),
        ("/topics/a/messages/live/records", b"", LINK, False),
    ],
)
def test_only_links_to_pages_are_followed_from_other_sites(
    path: str, query: bytes, headers: dict[str, str], expected: bool
) -> None:
    assert is_link(path, query, Headers(headers)) is expected


def test_other_sites_cannot_make_a_browser_read(console: Console) -> None:
    foreign = {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "no-cors"}
    assert console.get("/topics", **foreign)[0] == 403
    link = {"Sec_Fetch_Mode": "navigate", "Sec_Fetch_Dest": "document"}
    assert console.get("/topics", Sec_Fetch_Site="cross-site", **link)[0] == 200
    assert console.get("/topics?live", Sec_Fetch_Site="cross-site", **link)[0] == 403
    assert console.get("/topics", Sec_Fetch_Site="same-origin", Sec_Fetch_Mode="cors")[0] == 200


def test_log_in_takes_small_bodies_only(console: Console) -> None:
    body = b"x" * (LOG_IN_BYTES_MAX + 1)
    assert console.ask("POST", "/log-in", body)[0] == 413
