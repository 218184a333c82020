"""A console on a real broker, and a real browser that looks at it.

    def test_page_shows_brokers(console: Console, page: Page) -> None:
        page.goto(console.url)
        expect(page.get_by_role("table", name="Brokers")).to_be_visible()
        check_accessible(page)

`page` fails its test on errors in the browser's console and on violations of the policy.
`console` is one for each module, on an embedded broker: tests name their topics differently.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, expect, sync_playwright

from millstream import Broker
from millstream.client.cluster import Cluster
from millstream.console.server import ConsoleServer
from millstream.console.settings import ConsoleSettings

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
AXE = Path(__file__).parent / "vendor" / "axe-core" / "axe.min.js"
USERS = {"admin": "admin-secret", "alice": "alice-secret"}  # admin is the superuser
WAIT_MS = 60_000
expect.set_options(timeout=WAIT_MS)
PHONE = {"width": 390, "height": 844}
DESKTOP = {"width": 1280, "height": 800}


@dataclass
class Console:
    """A running console, and what it shows."""

    server: ConsoleServer
    bootstrap_servers: str
    broker: Broker | None = None

    @property
    def url(self) -> str:
        return self.server.url.rstrip("/")

    def cluster(self) -> Cluster:
        """The same cluster, for the test's own requests; close it, or use it in a `with`."""
        # Apache Kafka creates a topic before all of its brokers know it.
        seconds = 0.0 if self.broker is not None else None
        return Cluster(self.bootstrap_servers, missing_topic_seconds=seconds)

    def get(self, path: str, **headers: str) -> tuple[int, dict[str, str], str]:
        return self.ask("GET", path, None, **headers)

    def json(self, path: str) -> Any:
        status, _, body = self.get(path, Accept="application/json")
        assert status == 200, body
        return json.loads(body)

    def post(self, path: str, fields: dict[str, Any], **headers: str) -> tuple[int, Any]:
        """An action, as a script performs it: JSON both ways."""
        headers |= {"X-Millstream-Console": "1", "Content-Type": "application/json"}
        headers.setdefault("Accept", "application/json")
        status, _, body = self.ask("POST", path, json.dumps(fields).encode(), **headers)
        return status, json.loads(body) if body.startswith(("{", "[")) else body

    def ask(
        self, method: str, path: str, body: bytes | None, **headers: str
    ) -> tuple[int, dict[str, str], str]:
        """Status, headers in lower case, and body; redirections are followed."""
        status, found, text = self.ask_once(method, path, body, **headers)
        while status in (302, 303) and found["location"].startswith("/"):
            status, found, text = self.ask_once("GET", found["location"], None, **headers)
        return status, found, text

    def ask_once(
        self, method: str, path: str, body: bytes | None, **headers: str
    ) -> tuple[int, dict[str, str], str]:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        host = self.url.partition("://")[2]
        with contextlib.closing(http.client.HTTPConnection(host, timeout=180)) as connection:
            connection.request(method, path, body, named)
            answer = connection.getresponse()
            found = {name.lower(): value for name, value in answer.getheaders()}
            return answer.status, found, answer.read().decode()


def wait_until(page: Page, condition: Callable[[], bool]) -> None:
    """As `page.wait_for_function`, which the policy of the page stops if it has to ask again."""
    deadline = time.monotonic() + WAIT_MS / 1000
    while not condition():
        assert time.monotonic() < deadline
        page.wait_for_timeout(50)


def start_console(bootstrap_servers: str, **settings: Any) -> Console:
    server = ConsoleServer(ConsoleSettings(bootstrap_servers, **settings), "127.0.0.1:0")
    server.start()
    return Console(server, bootstrap_servers)


@pytest.fixture(scope="module")
def console() -> Iterator[Console]:
    """A console on a broker without authentication."""
    with Broker.start() as broker:
        started = start_console(broker.bootstrap_servers)
        started.broker = broker
        try:
            yield started
        finally:
            started.server.stop()


@pytest.fixture(scope="module")
def secured() -> Iterator[Console]:
    """A console on a broker with users and access control, without a log-in yet."""
    settings = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:admin",
    }
    with Broker.start(config=settings, security="SASL_PLAINTEXT", users=USERS) as broker:
        console = start_console(
            broker.bootstrap_servers, client_settings={"security.protocol": "SASL_PLAINTEXT"}
        )
        console.broker = broker
        try:
            yield console
        finally:
            console.server.stop()


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.skip("chromium is missing")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        asyncio._set_running_loop(None)
        yield browser
        with driving(browser):
            browser.close()


@contextlib.contextmanager
def driving(browser: Browser) -> Iterator[None]:
    """Around all uses of the browser: Playwright's loop runs only meanwhile, so that other tests
    of the process may run loops of their own."""
    asyncio._set_running_loop(browser._impl_obj._loop)  # type: ignore[attr-defined]
    try:
        yield
    finally:
        asyncio._set_running_loop(None)


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A page whose browser reports no error: scripts, policy, requests that fail.

    A test that provokes an error on purpose adds a part of its text to `page.expected_errors`.
    """
    with driving(browser):
        yield from watched_page(browser)


def watched_page(browser: Browser, **options: Any) -> Iterator[Page]:
    context = browser.new_context(viewport=DESKTOP, **options)
    context.set_default_timeout(WAIT_MS)
    page = context.new_page()
    problems: list[str] = []
    expected: list[str] = []
    page.expected_errors = expected  # type: ignore[attr-defined]

    def note(message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            problems.append(f"{message.text} ({message.location.get('url', '')})")

    page.on("console", note)
    page.on("pageerror", lambda error: problems.append(str(error)))
    yield page
    context.close()
    unexpected = [it for it in problems if not any(part in it for part in expected)]
    assert not unexpected, unexpected


QUICK = [("light", DESKTOP, True), ("light", PHONE, False)]
EXHAUSTIVE = [("light", DESKTOP, True), ("dark", DESKTOP, True), ("light", PHONE, True)]
variants = list(EXHAUSTIVE)  # scheme, size, and whether axe runs, which takes most of the time


def pytest_configure(config: pytest.Config) -> None:
    """Without the slow tests, axe runs once on each page instead of three times."""
    if config.getoption("markexpr") == "not slow":
        variants[:] = QUICK


def check_accessible(page: Page) -> None:
    """axe finds nothing on the page as it is now, and it does not scroll sideways on a phone; with
    the slow tests, axe also looks at it in dark and on a phone."""
    script = AXE.read_text(encoding="utf-8")
    findings = []
    for scheme, size, with_axe in variants:
        page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
        page.set_viewport_size(size)  # type: ignore[arg-type]
        findings += _sideways(page, size)
        if not with_axe:
            continue
        # The driver's own evaluation is not bound by the page's policy.
        if not page.evaluate("() => typeof window.axe === 'object'"):
            page.evaluate(script + "\n;() => null")
        # Colours change at once for axe: no transition is under way.
        for found in page.evaluate("async () => (await axe.run()).violations"):
            nodes = [node["html"][:200] + " " + node["failureSummary"] for node in found["nodes"]]
            findings.append(f"{scheme} {size['width']}: {found['id']}: {nodes[:3]}")
    page.set_viewport_size(DESKTOP)  # type: ignore[arg-type]
    page.emulate_media(color_scheme="light")
    assert not findings, "\n".join(findings)


def _sideways(page: Page, size: dict[str, int]) -> list[str]:
    wide = page.evaluate("() => document.documentElement.scrollWidth")
    if wide <= size["width"]:
        return []
    return [f"{size['width']} wide: the page is {wide} wide, and scrolls sideways"]
