"""Quotas, in a browser and as scripts use them."""

from __future__ import annotations

import shlex

import pytest
from playwright.sync_api import Page, expect

from millstream.console.actions import Form, Refused
from millstream.console.pages.quotas import entity_of, entity_options, quotas_of
from millstream.errors import MillstreamError
from tests.console.conftest import Console, check_accessible

EVIL = "<img src=x onerror=window.pwned=1>"


def test_quotas_are_set_and_removed(console: Console, page: Page) -> None:
    page.goto(console.url + "/quotas")
    expect(page.get_by_text("No quotas yet")).to_be_visible()
    page.get_by_role("button", name="Set quota").click()
    check_accessible(page)
    dialog = page.get_by_role("dialog")
    dialog.locator("[name='user.match']").select_option("name")
    dialog.locator("[name=user]").fill(EVIL)
    dialog.locator("[name='client-id.match']").select_option("default")
    dialog.locator("[name=producer_byte_rate]").fill("1MB")
    dialog.get_by_role("button", name="Set").click()
    status = page.get_by_role("status")
    expect(status).to_contain_text(f"Set for user {EVIL}, client id <default>: produce 1 MB/s")
    expect(status).to_contain_text("--client-id-default --producer-byte-rate 1MB")
    expect(page.get_by_role("row", name=EVIL)).to_contain_text("1 MB/s")
    check_accessible(page)
    page.get_by_role("button", name="Remove the quotas of user").click()
    expect(page.get_by_text("No quotas yet")).to_be_visible()
    assert page.evaluate("window.pwned") is None


def test_quotas_of_scripts(console: Console) -> None:
    fields = {"ip": "10.0.0.7", "connection_creation_rate": 5}
    status, done = console.post("/quotas", fields)
    assert status == 200
    assert shlex.split(done["command"])[1:7] == [
        *("quota", "set", "--ip", "10.0.0.7", "--connection-creation-rate", "5")
    ]
    (row,) = console.json("/quotas?q=10.0.0.7")["quotas"]["rows"]
    assert row["entity"] == {"ip": "10.0.0.7"}
    assert row["quotas"] == {"connection_creation_rate": 5.0}
    assert console.post("/quotas/remove", {"ip": "10.0.0.7"})[0] == 200
    assert console.post("/quotas/remove", {"ip": "10.0.0.7"})[0] == 404
    assert console.post("/quotas", {"ip": "10.0.0.7"})[0] == 400
    assert console.post("/quotas", {"ip": "not-an-address", "request_percentage": 1})[0] == 400


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"user.match": "name"},
        {"user": "a", "ip": "10.0.0.1"},
    ],
)
def test_entities_that_make_no_sense_are_refused(fields: dict[str, str]) -> None:
    with pytest.raises(Refused):
        entity_of(Form(list(fields.items())))


@pytest.mark.parametrize("text", ["x", "-1", "0", "nan", "inf"])
def test_numbers_that_make_no_sense_are_refused(text: str) -> None:
    for key in ("request_percentage", "producer_byte_rate"):
        if (key, text) == ("producer_byte_rate", "0"):
            continue  # the broker decides
        with pytest.raises(MillstreamError):
            quotas_of(Form([(key, text)]))


def test_defaults_have_options_of_their_own() -> None:
    entity = entity_of(Form([("user.match", "default"), ("client-id", "batch")]))
    assert entity == {"user": None, "client-id": "batch"}
    assert entity_options(entity) == ["--user-default", "--client-id", "batch"]
