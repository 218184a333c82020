"""Exports: files of all formats, from the page and by address."""

from __future__ import annotations

import csv
import io
import json

import pytest
from playwright.sync_api import Page, expect

from tests.console.conftest import Console, check_accessible
from tests.console.pages.records import hostile, make_topic, orders


@pytest.fixture(scope="module", autouse=True)
def topics(console: Console) -> None:
    make_topic(console, "orders", orders(300, 3), 3)
    make_topic(console, "hostile", hostile())


def test_export_is_downloaded(console: Console, page: Page) -> None:
    page.goto(f"{console.url}/topics/orders/messages/export")
    expect(page.get_by_text("300 offsets in 3 partitions")).to_be_visible()
    check_accessible(page)
    with page.expect_download() as download:
        page.get_by_role("button", name="Download").click()
    assert download.value.suggested_filename == "orders.jsonl"
    lines = [json.loads(it) for it in download.value.path().read_text().splitlines()]
    assert [json.loads(it["value"])["order"] for it in lines] == list(range(300))


def test_export_has_positions_and_limits(console: Console) -> None:
    path = "/topics/orders/messages/export/file"
    _, _, body = console.get(f"{path}?start=newest&count=2")
    assert [json.loads(json.loads(it)["value"])["order"] for it in body.splitlines()] == [299, 298]
    _, headers, body = console.get(f"{path}?as=csv&start=offset&at=98&partition=1")
    assert headers["content-type"].startswith("text/csv")
    assert len(body.splitlines()) == 3
    assert console.get(f"{path}?as=exe")[0] == 400
    assert console.get(f"{path}?partition=9")[0] == 404
    assert console.get("/topics/gone/messages/export/file")[0] == 404


def test_export_of_hostile_records_runs_nowhere(console: Console) -> None:
    _, headers, body = console.get("/topics/hostile/messages/export/file?as=csv&start=oldest")
    assert headers["content-disposition"] == 'attachment; filename="hostile.csv"'
    rows = list(csv.reader(io.StringIO(body)))
    assert len(rows) == len(hostile()) + 1
    assert not [cell for row in rows for cell in row if cell.startswith(("=", "+", "-", "@"))]
    assert "\x1b" not in body
    _, _, body = console.get("/topics/hostile/messages/export/file?start=oldest")
    assert len([json.loads(it) for it in body.splitlines()]) == len(hostile())


@pytest.mark.slow
def test_export_as_parquet(console: Console) -> None:
    pq = pytest.importorskip("pyarrow.parquet")
    from urllib.request import urlopen

    path = "/topics/orders/messages/export/file?as=parquet&start=oldest"
    with urlopen(console.url + path, timeout=60) as answer:
        table = pq.read_table(io.BytesIO(answer.read()))
    assert table.num_rows == 300
