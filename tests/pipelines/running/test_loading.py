"""Pipelines out of files."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle

from millstream.errors import ConfigError
from millstream.pipelines.running.loading import Target, load_pipelines, parse_target

SHOP = """
from neighbour import SCHEMA
from millstream.pipelines import pipeline, table, topic

orders = topic("orders", schema=SCHEMA)

@pipeline(reads=orders, writes=table("revenue"))
def revenue(orders): return orders

@pipeline(reads=orders, writes=topic("alerts"))
def alerts(orders): return orders

again = revenue
"""


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("sys.path", [*__import__("sys").path])
    monkeypatch.setenv("PYTHONPATH", "")
    (tmp_path / "neighbour.py").write_text('SCHEMA = "id long"')
    path = tmp_path / "a_shop.py"
    path.write_text(SHOP)
    return path


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("shop.py", Target(Path("shop.py"))),
        ("a/shop.py:revenue", Target(Path("a/shop.py"), ("revenue",))),
        ("shop.py:revenue, alerts", Target(Path("shop.py"), ("revenue", "alerts"))),
    ],
)
def test_target_is_a_file_and_names(text: str, target: Target) -> None:
    assert parse_target(text) == target


def test_load_finds_all_in_their_order_or_those_named(shop: Path) -> None:
    assert [it.name for it in load_pipelines(Target(shop))] == ["revenue", "alerts"]
    assert [it.name for it in load_pipelines(Target(shop, ("alerts",)))] == ["alerts"]


def test_column_where_there_is_no_session_is_refused_with_what_to_do(shop: Path) -> None:
    """In a process of its own: here, another test may have a session."""
    shop.write_text('from pyspark.sql import functions as F\n\nlast = F.max("at")\n')
    code = (
        "from pathlib import Path\n"
        "from millstream.pipelines.running.loading import Target, load_pipelines\n"
        f"load_pipelines(Target(Path({str(shop)!r})))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert f"{shop}, line 3: a Column needs a Spark session" in done.stderr
    assert 'write it as text, like last="max(at)"' in done.stderr


def test_functions_of_neighbours_travel_to_workers_that_have_no_such_files(shop: Path) -> None:
    (shop.parent / "pricing.py").write_text("def double(number):\n    return 2 * number\n")
    shop.write_text("from pricing import double\n" + SHOP)
    load_pipelines(Target(shop))
    function = cloudpickle.dumps(sys.modules["pricing"].double)
    program = "import pickle, sys; print(pickle.load(sys.stdin.buffer)(21))"
    elsewhere: dict[str, Any] = {"cwd": "/", "env": {**os.environ, "PYTHONPATH": ""}}
    done = subprocess.run(
        [sys.executable, "-c", program],
        input=function,
        capture_output=True,
        check=True,
        **elsewhere,
    )
    assert done.stdout == b"42\n"


def test_load_of_a_name_that_is_not_there_suggests_the_nearest(shop: Path) -> None:
    with pytest.raises(ConfigError, match="no pipeline revnue; did you mean revenue"):
        load_pipelines(Target(shop, ("revnue",)))


def test_file_without_pipelines_is_refused(shop: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no such file"):
        load_pipelines(Target(tmp_path / "missing.py"))
    with pytest.raises(ConfigError, match="defines no pipeline"):
        load_pipelines(Target(tmp_path / "neighbour.py"))


def test_two_pipelines_of_one_name_are_refused(shop: Path) -> None:
    shop.write_text(SHOP + "\nthird = alerts.variant('revenue', writes=table('third'))\n")
    with pytest.raises(ConfigError, match="two pipelines are named revenue"):
        load_pipelines(Target(shop))


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("orders = tpic('orders')", "line 3: NameError: name 'tpic' is not defined"),
        ("def broken(:", "line 3: SyntaxError: "),
        ("import nothing_of_the_kind", "line 3: ModuleNotFoundError: No module named 'nothing_of"),
        (
            "orders = topic('orders', bad_records='panic')",
            "line 3: topic orders: bad_records is 'panic'; it must",
        ),
    ],
)
def test_file_that_does_not_run_is_named_with_its_line(
    shop: Path, line: str, complaint: str
) -> None:
    shop.write_text(f"\nfrom millstream.pipelines import topic\n{line}\n")
    with pytest.raises(ConfigError, match=f"a_shop.py, {complaint}"):
        load_pipelines(Target(shop))
