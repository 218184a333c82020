"""`millstream archive` on an archive of two files."""

from __future__ import annotations

import json
from pathlib import Path

from typer.testing import CliRunner

from millstream.archive.places import open_place
from millstream.cli.archive import app
from tests.archive.scenes import TOPIC_ID, archived

runner = CliRunner()


def run(*arguments: str) -> str:
    result = runner.invoke(app, [str(each) for each in arguments])
    assert result.exit_code == 0, result.output
    return result.stdout


def test_status_shows_each_partition(tmp_path: Path) -> None:
    archived(open_place(str(tmp_path)))
    (row,) = json.loads(run("status", str(tmp_path), "--json"))
    assert row["topic_id"] == str(TOPIC_ID)
    assert (row["start_offset"], row["end_offset"], row["files"], row["records"]) == (
        0,
        250,
        2,
        250,
    )
    text = run("status", str(tmp_path), "--topic", "orders")
    assert "orders" in text
    assert "2023-11-14" in text
    assert "nothing is archived" in run("status", str(tmp_path / "empty"))


def test_unknown_topic_is_named(tmp_path: Path) -> None:
    result = runner.invoke(app, ["status", str(tmp_path), "--topic", "payments"])
    assert "no archive of the topic payments" in str(result.exception)
    result = runner.invoke(app, ["restore", str(tmp_path), "-t", "x", "-d", "y", "--topic-id", "z"])
    assert "z is not a topic id" in str(result.exception)


def test_verify_fails_for_a_damaged_archive(tmp_path: Path) -> None:
    archived(open_place(str(tmp_path)))
    (report,) = json.loads(run("verify", str(tmp_path), "--json"))
    assert (report["records"], report["problems"]) == (250, [])
    assert "orders" in run("verify", str(tmp_path), "--quick")
    path = sorted(tmp_path.rglob("*.parquet"))[1]
    path.unlink()
    result = runner.invoke(app, ["verify", str(tmp_path)])
    assert f"{path} is missing" in str(result.exception)


def test_restore_writes_a_log(tmp_path: Path) -> None:
    archived(open_place(str(tmp_path / "archive")))
    options = ["restore", str(tmp_path / "archive"), "--topic", "orders"]
    (row,) = json.loads(run(*options, "--directory", str(tmp_path / "data"), "--json"))
    assert row["records"] == 250
    assert len(list((tmp_path / "data" / "orders-0").glob("*.log"))) == 2
    assert "orders" in run(*options, "--directory", str(tmp_path / "again"))


def test_delta_prints_where_the_table_is(tmp_path: Path) -> None:
    archived(open_place(str(tmp_path)))
    text = run("delta", str(tmp_path), "--topic", "orders")
    assert f"{tmp_path}/orders/{TOPIC_ID}" in text
    assert json.loads(run("delta", str(tmp_path), "-t", "orders", "--json"))["added"] == 0
