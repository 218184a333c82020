"""`millstream deploy`: the version, the place it starts from, and what is shown of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from millstream.cli.deploy import CatchingUp, load_version, parse_place, print_deployed
from millstream.cli.failures import CommandFailed
from millstream.pipelines import pipeline, table, topic
from millstream.pipelines.running.status import Status
from millstream.pipelines.versions.deploying import describe
from millstream.pipelines.versions.registry import Versions
from millstream.pipelines.versions.registry import deploy as add_version

SHOP = """
from millstream.pipelines import pipeline, table, topic

orders = topic("orders", schema="id long")

@pipeline(reads=orders, writes=table("sales", key="id"))
def sales(orders):
    return orders

@pipeline(reads=orders, writes=topic("large"))
def large(orders):
    return orders
"""


@pipeline(reads=topic("orders"), writes=table("revenue", key="day"))
def revenue(orders):  # type: ignore[no-untyped-def]
    return orders


def test_version_is_that_of_the_command_or_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", "")
    file = tmp_path / "versions_shop.py"
    file.write_text(SHOP)
    assert load_version(f"{file}:sales", None).identity == "sales"
    assert load_version(f"{file}:sales", "2").identity == "sales@2"
    with pytest.raises(CommandFailed, match="has several pipelines"):
        load_version(str(file), "2")


def test_place_is_a_word_a_time_or_offsets() -> None:
    assert parse_place(None, revenue) is None
    assert parse_place("latest", revenue) == "latest"
    assert parse_place("2026-03-01T12:00:00Z", revenue) == "2026-03-01T12:00:00+00:00"
    offsets = parse_place('{"orders": {"0": 17}}', revenue)
    assert json.loads(offsets or "") == {"orders": {"0": 17}}
    with pytest.raises(CommandFailed, match="does not read topic users"):
        parse_place('{"users": {"0": 17}}', revenue)
    with pytest.raises(CommandFailed, match="write offsets as"):
        parse_place('{"orders": 17}', revenue)


def test_catching_up_is_announced_once(capsys: pytest.CaptureFixture[str]) -> None:
    print_deployed(revenue, add_version(Versions("revenue"), describe(revenue)))
    with CatchingUp(revenue) as shown:
        shown.show([Status("revenue", lag=5, batches=1)])
        shown.show([Status("revenue", lag=0, batches=2)])
        shown.show([Status("revenue", lag=0, batches=3)])
    shown.announce()
    out = capsys.readouterr().out
    assert "deployed version 1 of revenue: table revenue__v1; it is in force" in out
    assert out.count("version 1 of revenue has caught up") == 1
