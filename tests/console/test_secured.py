"""The console on secured clusters, Millstream's and Apache Kafka's: users over TLS, certificates,
and what users administer there."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect

from tests.console.conftest import Console, start_console
from tests.peers.secured import ADMIN, Secured, password_of, start_secured
from tests.peers.secured_clients import KINDS, settings_of

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


def test_user_of_the_settings_needs_the_token(cluster: Secured, page: Page) -> None:
    settings = settings_of(cluster, ADMIN)
    console = start_console(cluster.address("SASL_SSL"), client_settings=settings)
    try:
        assert console.ask_once("GET", "/?format=json", None)[0] == 401
        page.goto(console.server.entrance)
        expect(page.locator(".user")).to_have_text(ADMIN)
    finally:
        console.server.stop()
