"""`millstream deploy`: the version, the place it starts from, and what is shown of it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from millstream.cli.deploy import CatchingUp, load_version, parse_place, print_deployed
from millstream.cli.failures import CommandFailed
from millstream.pipelines import pipeline, table, topic
from millstream.pipelines.running.status import Status
from millstream.pipelines.versions.catalog import open_catalog
from millstream.pipelines.versions.deploying import describe
from millstream.pipelines.versions.registry import Versions
from millstream.pipelines.versions.registry import deploy as add_version
from tests.cli.conftest import Run
from tests.peers.servers import free_port

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
    assert "deployed version 1 of revenue: it writes table revenue__v1; it is in force" in out
    assert out.count("version 1 of revenue has caught up") == 1


def test_version_that_is_not_in_force_writes_its_private_topic(
    capsys: pytest.CaptureFixture[str],
) -> None:
    declared = pipeline(reads=topic("orders"), writes=topic("alerts"), name="alarms")
    one = declared(lambda orders: orders)
    two = replace(one, version="2")
    document = add_version(Versions("alarms"), describe(one))
    print_deployed(two, add_version(document, describe(two)))
    assert "it writes topic alerts.v2; version 1 is in force" in capsys.readouterr().out


def deploy_sales(run: Run, directory: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The error of a deployment that fails, which registers nothing."""
    monkeypatch.chdir(directory)
    monkeypatch.syspath_prepend(directory)
    monkeypatch.setenv("PYTHONPATH", "")
    monkeypatch.delenv("MILLSTREAM_BOOTSTRAP_SERVERS", raising=False)
    (directory / "unfit_shop.py").write_text(SHOP.replace('"orders"', '"orders.missing"'))
    outcome = run("deploy", "unfit_shop.py:sales")
    assert outcome.exit_code != 0
    with open_catalog(f"sqlite:///{directory}/.millstream/store.db") as catalog:
        assert not catalog.exists()
    return outcome.err


def test_version_whose_topics_are_missing_is_not_registered(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bootstrap_servers: str
) -> None:
    (tmp_path / "millstream.toml").write_text(f'broker = "{bootstrap_servers}"')
    message = deploy_sales(run, tmp_path, monkeypatch)
    assert "there is no topic orders.missing" in message
    assert "millstream topic create orders.missing" in message


def test_broker_of_versions_is_never_an_embedded_one(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nowhere = f"127.0.0.1:{free_port()}"
    monkeypatch.setattr("millstream.cli.versions.BOOTSTRAP_DEFAULT", nowhere)
    monkeypatch.setattr("millstream.pipelines.running.topics.CONNECT_SECONDS", 0.2)
    message = deploy_sales(run, tmp_path, monkeypatch)
    assert f"no broker answers at {nowhere}" in message
    assert "start one with `millstream serve`" in message
