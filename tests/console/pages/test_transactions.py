"""The pages of transactions: what is open, what it holds back, and its end."""

from __future__ import annotations

from playwright.sync_api import Page, expect

from tests.console.conftest import Console, check_accessible
from tests.console.pages.groups_scene import hang, make_topic, open_transaction, write


def test_open_transaction_is_shown_with_what_it_holds_back(console: Console, page: Page) -> None:
    make_topic(console, "accounts", 4)
    name = "settle</td><script>1"
    with open_transaction(console, name, "accounts") as producer:
        write(console, "accounts", [("k", "behind it")] * 2)
        page.goto(console.url + "/transactions")
        held = page.get_by_role("table", name="Partitions that wait")
        expect(held.get_by_role("row", name="accounts[0]")).to_contain_text(name)
        ids = page.get_by_role("table", name="Transactional ids")
        expect(ids.get_by_role("row", name=name)).to_contain_text("Ongoing")
        check_accessible(page)
        [row] = console.json("/transactions?q=settle")["transactions"]["rows"]
        assert (row["state"], row["partitions"], row["waiting"]) == ("Ongoing", 1, 3)
        assert 0 <= row["age_ms"] <= 600_000 - row["left_ms"]
        page.get_by_role("link", name=name).first.click()
        expect(page.get_by_role("heading", name=name)).to_be_visible()
        check_accessible(page)
        page.get_by_role("button", name="Abort").first.click()
        page.get_by_label("to confirm").fill(name)
        page.get_by_role("dialog").get_by_role("button", name="Abort").click()
        expect(page.get_by_text("is aborted, and its producer shut out")).to_be_visible()
        found = console.json("/transactions?q=settle")
        assert found["transactions"]["rows"][0]["state"] in ("Empty", "CompleteAbort")
        assert not [it for it in found["held"] if it["topic"] == "accounts"]
        del producer


def test_hanging_transaction_is_aborted_in_its_partition(console: Console, page: Page) -> None:
    """One that no coordinator knows: written without it, an hour ago."""
    make_topic(console, "hung", retention_ms="-1")
    hang(console, "hung")
    page.goto(console.url + "/transactions")
    row = page.get_by_role("row", name="hung[0]")
    expect(row).to_contain_text("hangs")
    row.get_by_role("link", name="Abort").click()
    expect(page.get_by_text("--topic hung --partition 0 --start-offset 0 --yes")).to_be_visible()
    check_accessible(page)
    page.get_by_label("to confirm").fill("hung[0]")
    page.get_by_role("button", name="Abort").click()
    expect(page.get_by_text("The transaction at offset 0 of hung[0] is aborted.")).to_be_visible()
    assert not [it for it in console.json("/transactions")["held"] if it["topic"] == "hung"]
    fields = {"topic": "hung", "partition": 0, "start_offset": 0, "confirmation": "hung[0]"}
    status, answer = console.post("/transactions-in-partition", fields)
    assert (status, "none is open there" in answer["message"]) == (400, True)


def test_live_transaction_is_not_aborted_in_one_partition(console: Console) -> None:
    make_topic(console, "alive")
    with open_transaction(console, "alive-1", "alive"):
        fields = {"topic": "alive", "partition": 0, "start_offset": 0, "confirmation": "alive[0]"}
        status, answer = console.post("/transactions-in-partition", fields)
        assert (status, "does not hang" in answer["message"]) == (400, True)
        assert [it for it in console.json("/transactions")["held"] if it["topic"] == "alive"]
        query = "topic=alive&partition=0&start_offset=0"
        assert console.get(f"/transactions-in-partition?{query}")[0] == 400


def test_unknown_id_has_a_page_that_says_so(console: Console) -> None:
    status, _, body = console.get("/transactions/nobody", Accept="application/json")
    assert (status, "there is no transactional id" in body) == (404, True)
