"""Producing one record and many, in a browser."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from millstream.admin.outgoing import Outgoing
from millstream.admin.reading import Reader, ReadRecord, State
from millstream.console.pages.messages_produce import draft_of
from tests.console.conftest import Console, check_accessible
from tests.console.pages.records import hostile, make_topic


def records(console: Console, topic: str, partition: int = 0) -> list[ReadRecord]:
    with console.cluster() as cluster:
        reader = Reader(cluster, topic, kept_bytes=None)
        return list(reader.forward(partition, 0, 10**9))


def test_one_record_is_produced_and_shown(console: Console, page: Page) -> None:
    make_topic(console, "one", [], 3)
    page.goto(f"{console.url}/topics/one/messages/produce")
    check_accessible(page)
    one = page.get_by_role("region", name="One record")
    one.locator("[name=key]").fill("ada")
    one.locator("[name=value]").fill('{"a": "<b>1</b>"}')
    one.locator("[name=headers]").fill("trace: 1")
    one.get_by_label("Partition").fill("2")
    one.get_by_role("button", name="Produce").click()
    expect(page.get_by_text("Written to partition 2 at offset 0.")).to_be_visible()
    expect(page.get_by_role("heading", name="Offset 0")).to_be_visible()
    expect(page.get_by_text("--header trace=1")).to_be_visible()
    (record,) = records(console, "one", 2)
    assert (record.key, record.value) == (b"ada", b'{"a": "<b>1</b>"}')
    page.get_by_role("link", name="Produce a copy").click()
    expect(one.locator("[name=key]")).to_have_value("ada")
    expect(one.locator("[name=headers]")).to_have_value("trace: 1")
    one.get_by_label("Tombstone").check()
    one.get_by_label("Partition").fill("2")
    one.get_by_role("button", name="Produce").click()
    expect(page.get_by_text("Written to partition 2 at offset 1.")).to_be_visible()
    assert records(console, "one", 2)[1].value is None


def test_mistakes_are_shown_and_nothing_is_sent(console: Console, page: Page) -> None:
    make_topic(console, "mistakes", [])
    page.goto(f"{console.url}/topics/mistakes/messages/produce")
    page.expected_errors.append("400")  # type: ignore[attr-defined]
    one = page.get_by_role("region", name="One record")
    one.locator("[name=value]").fill("{broken")
    one.get_by_label("Value is").select_option("json")
    one.get_by_role("button", name="Produce").click()
    expect(one.get_by_text("is not JSON")).to_be_visible()
    expect(one.locator("[name=value]")).to_have_value("{broken")
    many = page.get_by_role("region", name="Many records")
    many.get_by_label("Records, one per line").fill('{"value": 1}\n{"value":')
    many.get_by_label("Each line is").select_option("envelope")
    many.get_by_role("button", name="Produce all").click()
    expect(many.get_by_text("line 2:")).to_be_visible()
    assert records(console, "mistakes") == []
    path = "/topics/mistakes/messages/produce"
    for fields in (
        {"value": "x", "partition": "7"},
        {"value": "x", "partition": "one"},
        {"value": "x", "headers": "nothing"},
        {"value": "x", "value_format": "exe"},
        {"tombstone": "1"},
    ):
        assert console.post(f"{path}/one", fields)[0] in (400, 404)
    assert console.post(f"{path}/many", {"records": " \n"})[0] == 400
    assert console.post("/topics/gone/messages/produce/one", {"value": "x"})[0] == 404
    assert records(console, "mistakes") == []


def test_many_records_are_produced_from_a_file(
    console: Console, page: Page, tmp_path: Path
) -> None:
    make_topic(console, "many", [])
    file = tmp_path / "records.txt"
    file.write_text("".join(f"key-{n}:value {n}\n" for n in range(1000)))
    page.goto(f"{console.url}/topics/many/messages/produce")
    many = page.get_by_role("region", name="Many records")
    many.get_by_label("From a file").set_input_files(file)
    expect(many.get_by_label("Records, one per line")).not_to_have_value("")
    many.get_by_label("Each line is").select_option("keys")
    many.get_by_role("button", name="Produce all").click()
    expect(page.get_by_text("1000 records written to partition 0")).to_be_visible()
    expect(page.get_by_text("--key-separator :")).to_be_visible()
    found = records(console, "many")
    assert [(it.key, it.value) for it in found] == [
        (b"key-%d" % n, b"value %d" % n) for n in range(1000)
    ]


def test_an_export_is_produced_again(console: Console) -> None:
    make_topic(console, "source", [Outgoing(b"v", b"k", [("h", b"1")], 0, 5)])
    make_topic(console, "target", [])
    _, _, lines = console.get("/topics/source/messages/export/file?start=oldest")
    fields = {"records": lines, "lines": "envelope"}
    status, done = console.post("/topics/target/messages/produce/many", fields)
    assert (status, done["message"]) == (200, "1 record written to partition 0 (1).")
    (copy,) = records(console, "target")
    assert (copy.key, copy.value, copy.timestamp_ms) == (b"k", b"v", 5)
    assert [(it.name, it.value) for it in copy.headers] == [("h", b"1")]


@pytest.mark.parametrize("number", range(len(hostile())))
def test_draft_of_any_record_is_text_for_a_form(number: int) -> None:
    given = hostile()[number]
    assert given.value is not None
    record = ReadRecord(
        0,
        0,
        0,
        False,
        given.key,
        given.value,
        0,
        0,
        (),
        state=State.COMMITTED,
        is_transactional=False,
        producer_id=-1,
        producer_epoch=-1,
        compression="none",
    )
    draft = draft_of(record)
    sent = bytes.fromhex(draft.value) if draft.value_format == "hex" else draft.value.encode()
    assert sent == given.value
