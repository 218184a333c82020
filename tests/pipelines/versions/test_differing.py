"""How the tables of two versions differ."""

from __future__ import annotations

from typing import Any

import pytest

from millstream.errors import ConfigError
from millstream.pipelines.versions.differences import Diff
from millstream.pipelines.versions.differing import compare_at, diff_table
from millstream.pipelines.versions.registry import TableOutput
from tests.pipelines.versions.conftest import Scene


def diff(scene: Scene, mode: str = "upsert", **options: Any) -> Diff:
    key = ("id",) if mode == "upsert" else ()
    tables = (TableOutput("t", "t1", key, mode), TableOutput("t", "t2", key, mode))
    return scene.catalog.read(lambda work: diff_table(work, tables, **options))


def make(scene: Scene, columns: str, first: str, second: str, columns_2: str = "") -> None:
    scene.store.write_arrow([], 0, "nobody")
    for name, rows, declared in (("t1", first, columns), ("t2", second, columns_2 or columns)):
        scene.database.run(f"CREATE TABLE {name} ({declared})")
        if rows:
            scene.database.run(f"INSERT INTO {name} VALUES {rows}")


def test_equal_tables_are_equal(scene: Scene) -> None:
    make(scene, "id INTEGER, v TEXT", "(1, 'a'), (2, NULL)", "(2, NULL), (1, 'a')")
    found = diff(scene)
    assert found.is_equal
    assert found.rows == (2, 2)


def test_rows_differ_by_column_and_are_shown(scene: Scene) -> None:
    make(
        scene,
        "id INTEGER, v TEXT, w INTEGER",
        "(1, 'a', 1), (2, 'b', 2), (3, 'c', 3), (5, NULL, 5)",
        "(1, 'a', 1), (2, 'x', 2), (4, 'd', 4), (5, 'e', 6)",
    )
    found = diff(scene)
    assert (found.only, found.differing) == ((1, 1), 2)
    assert found.by_column == {"v": 2, "w": 1}
    shown = [(it.key["id"], it.first, it.second) for it in found.samples]
    assert shown == [
        (2, {"v": "b", "w": 2}, {"v": "x", "w": 2}),
        (5, {"v": None, "w": 5}, {"v": "e", "w": 6}),
        (3, {"v": "c", "w": 3}, None),
        (4, None, {"v": "d", "w": 4}),
    ]


def test_doubles_may_differ_in_their_last_digits(scene: Scene) -> None:
    kind = "REAL" if scene.database.is_sqlite else "double precision"
    rows = "(1, 0.1), (2, 5.0), (3, NULL), (4, 0)"
    make(scene, f"id INTEGER, v {kind}", rows, "(1, 0.1000000000000001), (2, 5.1), (3, 1), (4, 0)")
    found = diff(scene)
    assert found.by_column == {"v": 2}


def test_columns_of_one_version_are_named_and_not_compared(scene: Scene) -> None:
    make(scene, "id INTEGER, v TEXT", "(1, 'a')", "(1, 9)", "id INTEGER, n INTEGER")
    found = diff(scene)
    assert found.is_equal
    assert found.columns_of_one == (("v",), ("n",))


def test_tables_without_a_key_are_compared_as_bags(scene: Scene) -> None:
    make(scene, "id INTEGER, v TEXT", "(1, 'a'), (1, 'a'), (2, NULL)", "(1, 'a'), (2, NULL)")
    found = diff(scene, "append")
    assert (found.only, found.rows) == ((1, 0), (3, 2))
    assert [it.first for it in found.samples] == [{"id": 1, "v": "a"}]


@pytest.mark.parametrize("mode", ["upsert", "append"])
def test_rows_past_the_watermark_are_open_and_not_compared(scene: Scene, mode: str) -> None:
    kind = "TEXT" if scene.database.is_sqlite else "timestamptz"
    first = "(1, '2026-01-01 00:00:00.000000', 1), (2, '2026-01-01 00:10:00.000000', 1)"
    second = "(1, '2026-01-01 00:00:00.000000', 1), (2, '2026-01-01 00:10:00.000000', 2)"
    if not scene.database.is_sqlite:
        first, second = (it.replace(".000000'", "+00'") for it in (first, second))
    make(scene, f"id INTEGER, window_end {kind}, n INTEGER", first, second)
    midnight_ms = 1_767_225_600_000
    found = diff(scene, mode, watermark_ms=midnight_ms)
    assert (found.is_equal, found.open_rows, found.time) == (True, (1, 1), "window_end")
    assert not diff(scene, mode, watermark_ms=midnight_ms + 600_000).is_equal
    assert not diff(scene, mode).is_equal
    with pytest.raises(ConfigError, match="has no column minute in both versions"):
        diff(scene, mode, watermark_ms=1, time="minute")


def test_preliminary_rows_are_open(scene: Scene) -> None:
    first, second = "(1, 'final', 1), (2, 'preliminary', 1)", "(1, 'final', 1), (2, 'final', 2)"
    make(scene, "id INTEGER, _kind TEXT, n INTEGER", first, second)
    found = diff(scene)
    assert (found.is_equal, found.open_rows) == (True, (1, 0))


def test_versions_are_compared_only_at_the_cut(scene: Scene) -> None:
    for version, end, total in (("1", 10, 1.0), ("2", 10, 2.0)):
        scene.deploy(version)
        scene.write(version, 0, end, [("monday", total)])
    document = scene.document()
    cut = {("orders", 0): 10}
    with scene.catalog.snapshot() as work:
        found = compare_at(work, document, ("1", "2"), cut)
    assert not found.is_equal
    assert found.tables[0].by_column == {"total": 1}
    scene.write("2", 1, 11, [("monday", 3.0)])
    with scene.catalog.snapshot() as work, pytest.raises(ConfigError, match="did not stay"):
        compare_at(work, document, ("1", "2"), cut)
