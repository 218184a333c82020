"""The console's own TLS: in a browser, for scripts, and for those who come without it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from millstream import Broker
from millstream.admin.topics import create_topic
from millstream.client.cluster import Cluster
from millstream.client.security import Security
from millstream.console import tls
from millstream.console.server import bind
from tests.broker.pki import Pki, make_pki
from tests.console.conftest import USERS, Console, driving, start_console, watched_page
from tests.peers.patience import PATIENCE_SECONDS


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Pki:
    return make_pki(tmp_path_factory.mktemp("pki"))


@pytest.fixture(scope="module")
def encrypted(pki: Pki) -> Iterator[Console]:
    """A console with TLS, on a broker where users log in."""
    with Broker.start(security="SASL_PLAINTEXT", users=USERS) as broker:
        console = start_console(
            broker.bootstrap_servers,
            client_settings={"security.protocol": "SASL_PLAINTEXT"},
            tls_certificate=str(pki.broker_store),
        )
        console.broker = broker
        try:
            yield console
        finally:
            console.server.stop()


@pytest.fixture
def trusting(browser: Browser) -> Iterator[Page]:
    """A page of a browser that accepts the certificate of an unknown authority."""
    with driving(browser):
        yield from watched_page(browser, ignore_https_errors=True)


def address_of(console: Console) -> tuple[str, int]:
    host, _, port = console.url.partition("://")[2].rpartition(":")
    return host, int(port)


def test_page_loads_and_stays_live_over_tls(encrypted: Console, trusting: Page) -> None:
    assert encrypted.url.startswith("https://")
    trusting.goto(f"{encrypted.url}/topics")
    trusting.get_by_label("User").fill("admin")
    trusting.get_by_label("Password").fill(USERS["admin"])
    trusting.get_by_role("button", name="Log in").click()
    expect(trusting.locator(".user")).to_have_text("admin")
    (cookie,) = trusting.context.cookies()
    assert cookie["secure"]
    assert cookie["httpOnly"]
    assert cookie["sameSite"] == "Strict"
    assert encrypted.broker is not None
    settings = encrypted.broker.client_settings("admin")
    servers = settings.pop("bootstrap.servers")
    with Cluster(servers, security=Security.from_settings(settings)) as cluster:
        create_topic(cluster, "comes-later")
    expect(trusting.locator("main")).to_contain_text("comes-later")  # without a reload


def test_browser_without_tls_learns_what_to_write(encrypted: Console, page: Page) -> None:
    page.expected_errors.append("400")  # type: ignore[attr-defined]
    answer = page.goto(encrypted.url.replace("https://", "http://") + "/topics?token=x")
    assert answer is not None
    assert answer.status == 400
    expect(page.locator("body")).to_contain_text("write https:// instead of http://")
    assert page.context.cookies() == []


def test_script_checks_the_certificate(encrypted: Console, pki: Pki) -> None:
    url = f"{encrypted.url}/static/icon.svg"
    with urllib.request.urlopen(url, context=pki.client_context()) as answer:
        assert answer.status == 200
    with pytest.raises(urllib.error.URLError, match="CERTIFICATE_VERIFY_FAILED"):
        urllib.request.urlopen(url)


def test_failed_handshakes_harm_no_others(encrypted: Console, pki: Pki) -> None:
    silent = socket.create_connection(address_of(encrypted), PATIENCE_SECONDS)
    leaving = socket.create_connection(address_of(encrypted), PATIENCE_SECONDS)
    leaving.close()
    with silent, socket.create_connection(address_of(encrypted), PATIENCE_SECONDS) as broken:
        broken.sendall(tls.HANDSHAKE + b"and no more of TLS than that")
        while True:
            with contextlib.suppress(ConnectionResetError):
                if broken.recv(1024):  # an alert, perhaps
                    continue
            break
        url = f"{encrypted.url}/static/icon.svg"
        with urllib.request.urlopen(url, context=pki.client_context()) as answer:
            assert answer.status == 200


def test_connections_that_do_not_begin_are_bounded(
    pki: Pki, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By their number, by time, and by the end of the listener."""
    monkeypatch.setattr(tls, "BEGINNING_MAX", 2)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pki.broker_store)

    async def run() -> None:
        with bind("127.0.0.1:0") as listening:
            listener = tls.TlsListener(listening, context, asyncio.Protocol)

            async def connect() -> asyncio.StreamReader:
                reader, writer = await asyncio.open_connection(*listening.getsockname()[:2])
                writers.append(writer)
                return reader

            writers: list[asyncio.StreamWriter] = []
            first, _ = [await connect() for _ in range(2)]
            third = await connect()
            assert await third.read() == b""
            listener.close()
            assert await first.read() == b""
            monkeypatch.setattr(tls, "BEGIN_SECONDS_MAX", 0.01)
            listener = tls.TlsListener(listening, context, asyncio.Protocol)
            assert await (await connect()).read() == b""
            listener.close()
            for writer in writers:
                writer.close()

    asyncio.run(asyncio.wait_for(run(), PATIENCE_SECONDS))
