"""The console on secured clusters, Millstream's and Apache Kafka's: users over TLS, certificates of
clients, access tokens, and what users administer there."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from millstream import Broker
from millstream.admin.topics import create_topic
from millstream.client.cluster import Cluster
from millstream.client.security import Security
from millstream.console.sessions import detected
from millstream.console.settings import ConsoleSettings
from tests.console.conftest import Console, start_console
from tests.peers.secured import (
    ADMIN,
    OAUTH_VALIDATOR,
    Secured,
    TokenIssuer,
    password_of,
    start_secured,
)
from tests.peers.secured_clients import KINDS, allow, settings_of

NEWCOMER = "new <b>user</b>"


@pytest.fixture(scope="module", params=KINDS)
def cluster(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Secured]:
    secured = start_secured(request.param, tmp_path_factory.mktemp("secured"))
    try:
        yield secured
    finally:
        secured.server.stop()


@pytest.fixture
def over_tls(cluster: Secured) -> Iterator[Console]:
    settings = {
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": str(cluster.certificates.authority),
    }
    console = start_console(cluster.address("SASL_SSL"), client_settings=settings)
    try:
        yield console
    finally:
        console.server.stop()


def log_in(page: Page, user: str, password: str) -> None:
    page.get_by_label("User").fill(user)
    page.get_by_label("Password").fill(password)
    page.get_by_role("button", name="Log in").click()


def test_users_administer_and_log_in(over_tls: Console, page: Page) -> None:
    page.goto(f"{over_tls.url}/security")
    log_in(page, ADMIN, password_of(ADMIN))
    page.get_by_role("button", name="Create user").click()
    dialog = page.get_by_role("dialog")
    dialog.locator("[name=user]").fill(NEWCOMER)
    dialog.locator("[name=password]").fill("correct horse")
    dialog.get_by_role("button", name="Create").click()
    expect(page.get_by_role("status")).to_contain_text(f"User {NEWCOMER} is created.")

    page.goto(f"{over_tls.url}/security/acls")
    page.get_by_role("button", name="Add entry").click()
    dialog.locator("[name=principal]").fill(NEWCOMER)
    dialog.locator("[name=operation]").select_option("describe-configs")
    dialog.locator("[name=type]").select_option("cluster")
    dialog.get_by_role("button", name="Add").click()
    expect(page.get_by_role("status")).to_contain_text("may describe-configs on cluster")
    expect(page.get_by_role("row", name=NEWCOMER)).to_be_visible()

    page.goto(f"{over_tls.url}/quotas")
    page.get_by_role("button", name="Set quota").click()
    dialog.locator("[name='user.match']").select_option("name")
    dialog.locator("[name=user]").fill(NEWCOMER)
    dialog.locator("[name=consumer_byte_rate]").fill("2MB")
    dialog.get_by_role("button", name="Set").click()
    expect(page.get_by_role("row", name=NEWCOMER)).to_contain_text("2 MB/s")
    page.get_by_role("button", name="Log out").click()

    # The new user sees what its one entry allows: quotas, but no users.
    page.goto(f"{over_tls.url}/quotas")
    log_in(page, NEWCOMER, "correct horse")
    expect(page.locator(".user")).to_have_text(NEWCOMER)
    expect(page.get_by_role("row", name=NEWCOMER)).to_contain_text("2 MB/s")
    page.expected_errors.append("403")  # type: ignore[attr-defined]
    page.goto(f"{over_tls.url}/security")
    expect(page.get_by_role("alert")).to_contain_text("Describe on the cluster")


@contextlib.contextmanager
def console_with(settings: Mapping[str, str], address: str) -> Iterator[Console]:
    console = start_console(address, client_settings=settings)
    try:
        yield console
    finally:
        console.server.stop()


def create(cluster: Secured, topic: str) -> None:
    security = Security.from_settings(settings_of(cluster, ADMIN))
    with Cluster(cluster.address("SASL_SSL"), security=security) as admin:
        create_topic(admin, topic)


def check_sees_its_own(cluster: Secured, console: Console, page: Page, name: str) -> None:
    """Who may describe topics that begin with `name` sees those, also new ones, and no users."""
    create(cluster, f"{name}-first")
    create(cluster, f"hidden-from-{name}")
    assert console.ask_once("GET", "/?format=json", None)[0] == 401
    page.goto(f"{console.url}/topics")
    expect(page.get_by_label("Token")).to_be_visible()
    page.goto(console.server.entrance.replace("/?token", "/topics?token"))
    expect(page.get_by_role("row").filter(has_text=f"{name}-first")).to_be_visible()
    create(cluster, f"{name}-second")
    expect(page.get_by_role("row").filter(has_text=f"{name}-second")).to_be_visible()
    expect(page.get_by_text(f"hidden-from-{name}")).to_have_count(0)
    page.expected_errors.append("403")  # type: ignore[attr-defined]
    page.goto(f"{console.url}/security")
    expect(page.get_by_role("alert")).to_contain_text("Describe on the cluster")


def test_user_of_the_settings_needs_the_token(cluster: Secured, page: Page) -> None:
    with console_with(settings_of(cluster, ADMIN), cluster.address("SASL_SSL")) as console:
        assert console.ask_once("GET", "/?format=json", None)[0] == 401
        page.goto(console.server.entrance)
        expect(page.locator(".user")).to_have_text(ADMIN)


def test_certificate_of_the_settings_is_the_user(cluster: Secured, page: Page) -> None:
    allow(cluster, "CN=console", ["DESCRIBE topic certified*"])
    store = str(cluster.certificates.sign("console"))
    settings = {
        "security.protocol": "SSL",
        "ssl.ca.location": str(cluster.certificates.authority),
        "ssl.certificate.location": store,
        "ssl.key.location": store,
    }
    with console_with(settings, cluster.address("SSL")) as console:
        check_sees_its_own(cluster, console, page, "certified")
        expect(page.locator(".user")).to_have_text("user of the certificate")


@pytest.mark.slow
def test_missing_certificate_is_named_with_its_setting(cluster: Secured, page: Page) -> None:
    trusted = {
        "security.protocol": "SSL",
        "ssl.ca.location": str(cluster.certificates.authority),
    }
    page.expected_errors.append("502")  # type: ignore[attr-defined]
    with console_with(trusted, cluster.address("SSL")) as console:
        page.goto(console.url)
        expect(page.get_by_role("alert")).to_contain_text("set ssl.certificate.location")


def with_token(cluster: Secured, file: Path) -> dict[str, str]:
    return {
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": str(cluster.certificates.authority),
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.token.endpoint.url": file.as_uri(),
    }


def test_access_token_of_the_settings_is_the_user(
    cluster: Secured, page: Page, tmp_path: Path
) -> None:
    """From a file, which something else writes again before the token expires."""
    allow(cluster, "token-user", ["DESCRIBE topic by-token*"])
    file = tmp_path / "token"
    file.write_text(cluster.issuer.token("token-user"))
    with console_with(with_token(cluster, file), cluster.address("SASL_SSL")) as console:
        check_sees_its_own(cluster, console, page, "by-token")
        expect(page.locator(".user")).to_have_text("user of the access token")


@pytest.mark.slow
def test_expired_access_token_is_an_error_until_there_is_another(
    cluster: Secured, page: Page, tmp_path: Path
) -> None:
    allow(cluster, "late-user", ["DESCRIBE topic renewed*"])
    create(cluster, "renewed")
    file = tmp_path / "token"
    file.write_text(cluster.issuer.token("late-user", seconds=-600))
    with console_with(with_token(cluster, file), cluster.address("SASL_SSL")) as console:
        page.expected_errors += ["401", "400", "503"]  # type: ignore[attr-defined]
        page.goto(console.server.entrance.replace("/?token", "/topics?token"))
        expect(page.get_by_role("alert")).to_contain_text("invalid_token")
        file.write_text(cluster.issuer.token("late-user"))
        page.reload()
        expect(page.get_by_role("row").filter(has_text="renewed")).to_be_visible()


@pytest.mark.slow
def test_log_in_says_that_the_brokers_take_tokens_only(tmp_path: Path, page: Page) -> None:
    """The console notices that they want a log-in, which cannot be one with a password."""
    issuer = TokenIssuer(tmp_path)
    prefix = "listener.name.sasl_plaintext.oauthbearer"
    config = {
        "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
        "sasl.enabled.mechanisms": "OAUTHBEARER",
        f"{prefix}.sasl.server.callback.handler.class": OAUTH_VALIDATOR,
        "sasl.oauthbearer.jwks.endpoint.url": issuer.keys.as_uri(),
        "sasl.oauthbearer.expected.audience": issuer.AUDIENCE,
    }
    with Broker.start(config=config) as broker:
        found = detected(ConsoleSettings(broker.bootstrap_servers))
        with console_with(found.client_settings, broker.bootstrap_servers) as console:
            page.goto(console.url)
            log_in(page, "alice", "secret")
            page.expected_errors.append("401")  # type: ignore[attr-defined]
            expect(page.get_by_role("alert")).to_contain_text("accept no passwords")
            expect(page.get_by_role("alert")).to_contain_text("token endpoint")
