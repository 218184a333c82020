"""Pages of records and of one record, in a browser."""

from __future__ import annotations

import json
import shlex

import fastavro
import pytest
from playwright.sync_api import Page, expect
from typer.testing import CliRunner

from millstream.admin.outgoing import Outgoing
from millstream.cli.main import app
from tests.console.conftest import Console, check_accessible, start_console
from tests.console.pages.records import HOSTILE, NOW_MS, hostile, make_topic, orders
from tests.peers.schema_registry import running_registry
from tests.peers.transactional import TransactionalProducer


@pytest.fixture(scope="module", autouse=True)
def topics(console: Console) -> None:
    make_topic(console, "orders", orders(120, 3), 3)
    make_topic(console, "empty", [], 2)
    make_topic(console, "hostile", hostile())


def offsets(page: Page) -> list[str]:
    return page.locator("tr.record td:nth-child(4)").all_inner_texts()


def test_records_are_browsed_from_the_newest_to_the_oldest(console: Console, page: Page) -> None:
    page.goto(f"{console.url}/topics/orders/messages?count=50")
    rows = page.locator("tr.record")
    expect(rows).to_have_count(50)
    expect(rows.first).to_contain_text('"order": 119')
    expect(rows.first).to_contain_text("trace-id: t-119")
    expect(page.get_by_text("millstream consume orders --no-follow")).to_be_visible()
    check_accessible(page)
    page.get_by_role("link", name="Older").click()
    expect(rows.first).to_contain_text('"order": 69')
    expect(page.get_by_text("millstream query")).to_contain_text(
        "order by _timestamp desc limit 50"
    )
    page.get_by_role("link", name="Older").click()
    expect(rows).to_have_count(20)
    expect(page.get_by_role("link", name="Older")).to_have_count(0)
    page.get_by_role("link", name="Newer").click()
    expect(rows.first).to_contain_text('"order": 20')
    expect(page.get_by_text("millstream query")).to_contain_text("order by _timestamp limit 50")


def test_commands_of_older_and_newer_records_print_the_same(console: Console) -> None:
    back = console.json("/topics/orders/messages?start=before&at=0:7,1:9,2:0&count=10")
    on = console.json("/topics/orders/messages?start=from&at=0:38,1:40,2:39&count=10")
    for found, count in ((back, 10), (on, 3)):
        arguments = shlex.split(found["command"])[1:]
        ran = CliRunner().invoke(app, [*arguments, "--json"])
        printed = [json.loads(line) for line in ran.stdout.splitlines()]
        assert [(it["_partition"], it["_offset"]) for it in printed] == [
            (it["partition"], it["offset"]) for it in found["lines"]
        ]
        assert len(printed) == count
    one = console.json("/topics/orders/messages?start=before&at=0:7,1:9&partition=1")
    assert "where _partition = 1 and _offset < 9 order" in one["command"]


def test_records_are_browsed_from_an_offset_a_time_and_as_of_a_time(
    console: Console, page: Page
) -> None:
    page.goto(f"{console.url}/topics/orders/messages")
    page.locator("select[name=start]").select_option("offset")
    page.get_by_label("Offset", exact=True).fill("38")
    page.get_by_label("Partition", exact=True).fill("1")
    page.get_by_role("button", name="Show").click()
    expect(page.locator("tr.record")).to_have_count(2)
    assert offsets(page) == ["38", "39"]
    page.locator("select[name=start]").select_option("as-of")
    page.get_by_label("Time", exact=True).fill(str(NOW_MS + 10))
    page.get_by_label("Partition", exact=True).fill("")
    page.get_by_role("button", name="Show").click()
    expect(page.locator("tr.record")).to_have_count(10)
    expect(page.locator("tr.record").first).to_contain_text('"order": 9,')
    expect(page.get_by_text("millstream query")).to_contain_text("where _timestamp < to_timestamp(")
    found = console.json(f"/topics/orders/messages?start=time&at={NOW_MS + 118}")
    assert [it["offset"] for it in found["lines"]] == [39, 39]


def test_record_unfolds_below_its_row(console: Console, page: Page) -> None:
    page.goto(f"{console.url}/topics/orders/messages?count=10")
    buttons = page.get_by_role("button", name="Details of")
    buttons.nth(0).click()
    buttons.nth(1).click()
    expect(page.locator("tr.details")).to_have_count(2)
    expect(page.locator("tr.details").first.get_by_role("heading", name="Value")).to_be_visible()
    expect(page.locator("tr.details .key").first).to_have_text('"order"')
    check_accessible(page)
    buttons.nth(0).click()
    expect(page.locator("tr.details")).to_have_count(1)


def test_record_has_a_page_with_all_of_it(console: Console, page: Page) -> None:
    page.goto(f"{console.url}/topics/orders/messages/2/7")
    expect(page.get_by_role("heading", name="Offset 7")).to_be_visible()
    expect(page.locator(".json .key").first).to_have_text('"order"')
    expect(page.get_by_text("trace-id")).to_be_visible()
    expect(page.get_by_text("millstream consume orders --partition 2 --offset 7")).to_be_visible()
    check_accessible(page)
    page.get_by_role("navigation", name="Format of the value").get_by_text("Hex").click()
    expect(page.get_by_role("group", name="Value of 2:7 as hex")).to_contain_text("00000000")
    page.get_by_role("link", name="Next").click()
    expect(page.get_by_role("heading", name="Offset 8")).to_be_visible()
    with page.expect_download() as download:
        page.get_by_role("region", name="Value").get_by_role("link", name="Download").click()
    assert json.loads(download.value.path().read_text())["order"] == 26


def test_places_without_a_record_say_why(console: Console, page: Page) -> None:
    page.goto(f"{console.url}/topics/orders/messages/0/1000")
    expect(page.get_by_text("The partition ends at 40.")).to_be_visible()
    page.goto(f"{console.url}/topics/empty/messages")
    expect(page.get_by_text("This topic has no records")).to_be_visible()
    for path in ("/messages/7/0", "/messages?partition=7", "/messages/0/1000/value"):
        assert console.get(f"/topics/orders{path}")[0] in (400, 404)
    assert console.get("/topics/orders/messages?start=offset&at=x")[0] == 400
    assert console.get("/topics/missing/messages")[0] == 404
    assert console.get("/topics/orders/messages/0/1/secrets")[0] == 404


def test_transactions_are_marked(console: Console, page: Page) -> None:
    make_topic(console, "transfers", [])
    servers = console.bootstrap_servers
    with (
        TransactionalProducer(servers, "one", protocol=1) as one,
        TransactionalProducer(servers, "two", protocol=1) as two,
    ):
        assert one.init() == two.init() == 0
        one.run("transfers", [b"fine"], committed=True)
        one.run("transfers", [b"undone"], committed=False)
        two.begin("transfers", 0)
        two.produce("transfers", [b"waiting"])
        one.run("transfers", [b"behind"], committed=True)
        page.goto(f"{console.url}/topics/transfers/messages")
        for text, state in (("undone", "aborted"), ("waiting", "open"), ("behind", "held")):
            row = page.locator("tr.record").filter(has_text=text)
            expect(row.locator(".badge").filter(has_text=state)).to_be_visible()
        page.get_by_label("Committed only").check()
        page.get_by_role("button", name="Show").click()
        expect(page.locator("tr.record")).to_have_count(1)
        page.goto(f"{console.url}/topics/transfers/messages/0/2")
        expect(page.get_by_text("belongs to an aborted transaction")).to_be_visible()
        page.goto(f"{console.url}/topics/transfers/messages/0/1")
        expect(page.get_by_text("the marker that ends a transaction")).to_be_visible()


def test_hostile_records_stay_text(console: Console, page: Page) -> None:
    page.on("dialog", lambda dialog: pytest.fail(f"a script ran: {dialog.message}"))
    page.goto(f"{console.url}/topics/hostile/messages")
    expect(page.locator("tr.record")).to_have_count(len(HOSTILE))
    for offset in range(len(HOSTILE)):
        page.goto(f"{console.url}/topics/hostile/messages/0/{offset}")
        expect(page.get_by_role("heading", name=f"Offset {offset}")).to_be_visible()
        assert page.locator("main h1").count() == 1
        assert page.locator("main script, main img, main i").count() == 0
        assert "owned" not in page.title()
    text = console.get("/topics/hostile/messages")[2]
    assert "\x1b" not in text
    assert "\u202e" not in text


def test_huge_values_are_cut_and_downloaded_whole(console: Console, page: Page) -> None:
    make_topic(console, "huge", [Outgoing(b"x" * 900_000, b"k" * 5000, [], 0)])
    page.goto(f"{console.url}/topics/huge/messages/0/0")
    expect(page.get_by_text("Only the first part is shown")).to_be_visible()
    status, headers, body = console.get("/topics/huge/messages/0/0/value")
    assert (status, len(body)) == (200, 900_000)
    assert headers["content-disposition"].startswith("attachment")
    listing = console.get("/topics/huge/messages")[2]
    assert len(listing) < 100_000


def test_avro_is_decoded_by_the_registry(console: Console, page: Page) -> None:
    import io

    schema = {"type": "record", "name": "O", "fields": [{"name": "id", "type": "long"}]}
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, schema, {"id": 4711})
    with running_registry() as registry:
        number = registry.add("avro-value", schema)
        value = b"\0" + number.to_bytes(4, "big") + stream.getvalue()
        make_topic(console, "avro", [Outgoing(value, None, [], 0)])
        other = start_console(
            console.bootstrap_servers, client_settings={"schema.registry.url": registry.url}
        )
        try:
            page.goto(f"{other.url}/topics/avro/messages")
            expect(page.locator("tr.record")).to_contain_text('{"id": 4711}')
            page.goto(f"{other.url}/topics/avro/messages/0/0")
            expect(page.get_by_text(f"Avro · schema {number}")).to_be_visible()
        finally:
            other.server.stop()
    page.goto(f"{console.url}/topics/avro/messages/0/0?value=avro")
    expect(page.get_by_text("schema.registry.url")).to_be_visible()


def test_topic_with_a_strange_name_has_pages(console: Console, page: Page) -> None:
    make_topic(console, "..x", [Outgoing(b"v", None, [], 0)])
    page.goto(f"{console.url}/topics/..x/messages")
    expect(page.locator("tr.record")).to_have_count(1)
    assert console.get("/topics/%3Cscript%3E/messages")[0] in (400, 404)
