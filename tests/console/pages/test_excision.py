"""The pages of excisions: a preview, a job that runs, receipts and their chain."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect

from millstream.admin.following import write_records
from millstream.admin.outgoing import Outgoing
from millstream.client.cluster import Cluster
from millstream.console.pages import excision
from millstream.excision.documents import KEY, Receipt, Selector
from millstream.excision.history import EXCISIONS
from millstream.excision.jobs import begin, finish
from millstream.excision.selection import Access, find_topic
from tests.console.conftest import Console, check_accessible
from tests.console.pages.records import NOW_MS, make_topic
from tests.peers.patience import PATIENCE_SECONDS

HOSTILE = "<img src=x onerror=alert(1)> {{ 7 * 7 }}"


def records() -> list[Outgoing]:
    keys = [b"alice", b"bob", b"alice", b"carol"]
    return [Outgoing(b'{"n": %d}' % n, key, [], 0, NOW_MS) for n, key in enumerate(keys)]


@pytest.fixture(scope="module")
def cluster(console: Console) -> Iterator[Cluster]:
    make_topic(console, "orders", records())
    with console.cluster() as cluster:
        yield cluster


@pytest.fixture(scope="module")
def receipt(console: Console, cluster: Cluster) -> Receipt:
    """Of the records of alice."""
    make_topic(console, "customers", records())
    selector = Selector(KEY, b"alice")
    plan = find_topic(cluster, "customers", selector, access=Access(console.bootstrap_servers))
    job = begin(cluster, [plan], selector, requested_by="test", reason=HOSTILE)
    return finish(cluster, job, timeout_seconds=PATIENCE_SECONDS)


def test_nothing_was_removed_yet(console: Console, cluster: Cluster, page: Page) -> None:
    """The first test of the module."""
    page.goto(f"{console.url}/excision")
    expect(page.get_by_text("Nothing was removed yet")).to_be_visible()
    expect(page.get_by_text("Only Millstream’s brokers do that.")).to_be_visible()
    check_accessible(page)
    found = console.json("/excision")
    assert (found["running"], found["receipts"]["total"], found["problems"]) == ([], 0, [])


def test_preview_shows_what_would_go_and_the_command(
    console: Console, cluster: Cluster, page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(excision, "PREVIEW_SECONDS", 600.0)
    page.goto(f"{console.url}/excision")
    page.get_by_role("button", name="Remove records").click()
    dialog = page.get_by_role("dialog", name="Remove records")
    dialog.get_by_label("Topic").fill("orders")
    dialog.get_by_label("Key, or predicate").fill("alice")
    dialog.get_by_label("Reason").fill("ticket 4711")
    check_accessible(page)
    dialog.get_by_role("button", name="Preview").click()
    expect(dialog).to_contain_text("2 records would be removed for good")
    expect(dialog).to_contain_text("0, 2")
    expect(dialog.get_by_text("--dry-run")).to_be_visible()
    assert "alice" not in page.url
    check_accessible(page)
    # A selector that matches nothing, and one that is wrong.
    dialog.get_by_label("Key, or predicate").fill("nobody")
    dialog.get_by_role("button", name="Preview").click()
    expect(dialog).to_contain_text("None of 4 records matches.")
    fields = {"topic": "orders", "by": "where", "selector": "_key = 'bob'", "reason": "x y"}
    status, answer = console.post("/excision/preview", fields)
    assert (status, answer["records"]) == (200, 1)
    assert shlex.split(answer["command"])[:8] == [
        "millstream", "excise", "--topic", "orders", "--where", "_key = 'bob'", "--reason", "x y",
    ]  # fmt: skip
    for change, part in (
        ({"selector": " "}, "is missing"),
        ({"topic": ""}, "The topic is missing"),
        ({"by": "x"}, "key or where"),
        ({"topic": "absent"}, "absent"),
        ({"selector": "no such column ="}, ""),
    ):
        status, answer = console.post("/excision/preview", {**fields, **change})
        assert status in (400, 404)
        assert part in answer["message"]
    monkeypatch.setattr(excision, "PREVIEW_SECONDS", -1.0)
    status, answer = console.post("/excision/preview", {**fields, "by": "key"})
    assert (status, answer["places"], answer["total"]) == (200, None, 4)


def test_receipt_is_listed_shown_and_downloaded(
    console: Console, receipt: Receipt, page: Page
) -> None:
    page.goto(f"{console.url}/excision")
    table = page.get_by_role("table", name="Receipts")
    expect(table).to_contain_text("customers")
    expect(table).to_contain_text(HOSTILE)
    expect(page.get_by_text("intact")).to_be_visible()
    check_accessible(page)
    table.get_by_role("link", name="1").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Receipt 1")
    expect(page.locator("main")).to_contain_text(receipt.digest)
    expect(page.get_by_role("table", name="What was removed")).to_contain_text("0, 2")
    expect(page.get_by_role("table", name="Reports of brokers")).to_contain_text("removed records")
    expect(page.get_by_text("millstream excise verify 1 --key KEY")).to_be_visible()
    check_accessible(page)
    status, headers, body = console.get("/excision/receipts/1/file")
    assert (status, Receipt.from_json(body.encode())) == (200, receipt)
    assert headers["content-disposition"] == 'attachment; filename="receipt-1.json"'
    assert console.json("/excision/receipts/1")["receipt"]["digest"] == receipt.digest
    assert console.get("/excision/receipts/99")[0] == 404


def test_running_job_and_what_cannot_be_read_are_shown(
    console: Console, cluster: Cluster, receipt: Receipt, page: Page
) -> None:
    """A job that no broker heard of, as when its client died at once; and one that nobody can
    read."""
    fields = {**json.loads(receipt.job.to_json()), "id": "4711abc", "reason": HOSTILE}
    topic = fields["topics"][0]
    topic["partitions"][0]["offsets"] = "1+3"
    write_records(cluster, EXCISIONS, [("job/4711abc", json.dumps(fields).encode())])
    page.goto(f"{console.url}/excision")
    table = page.get_by_role("table", name="Running excisions")
    expect(table).to_contain_text("4711abc")
    expect(table).to_contain_text("0 of 1")
    expect(table).to_contain_text("millstream excise resume 4711abc")
    check_accessible(page)
    write_records(cluster, EXCISIONS, [("job/4711abc", None), ("job/<b>", b"{")])
    expect(page.get_by_text("the record job/<b> of __excisions cannot be read")).to_be_visible()
    expect(table).to_have_count(0)
    check_accessible(page)
    write_records(cluster, EXCISIONS, [("job/<b>", None)])


def test_reports_on_sinks_are_rows_and_what_is_no_report_is_left_out() -> None:
    report = {"kind": "sink", "name": "crm", "how": "deleted", "state": "done"}
    searched = {"users": "by the key", "cities": "not searched: no column"}
    counts = {"rows_before": {"users": 3}, "rows_after": {"users": 2}, "left": 0}
    report = {**report, "selected_by": searched}  # type: ignore[dict-item]
    lines = ["users: 3 → 2", "cities: not searched: no column"]
    (row, plain) = excision.derived_rows([{**report, **counts}, "x", {"rows_before": 7, "left": 2}])
    assert (row.kind, row.name, row.rows, row.left) == ("sink", "crm", lines, "")
    assert (plain.rows, plain.left) == ([], "2")
