"""Rows from strategies: the same for a seed, others for another, many and not all alike."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest
from hypothesis import strategies as st

from millstream.errors import ConfigError
from millstream.testing.streams.drawing import draw_rows
from millstream.testing.streams.inputs import Source

ROWS = st.fixed_dictionaries({"id": st.integers(0, 99), "shop": st.sampled_from("abc")})
SOURCES = {"orders": Source(ROWS), "shops": Source([{"shop": "a"}])}


def test_seed_decides_the_rows() -> None:
    drawn = draw_rows(SOURCES, count=3, rows_max=10, seed=7)
    assert drawn == draw_rows(SOURCES, count=3, rows_max=10, seed=7)
    assert drawn != draw_rows(SOURCES, count=3, rows_max=10, seed=8)


def test_seed_decides_the_rows_whatever_else_is_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources = {"orders": Source(st.fixed_dictionaries({"id": st.integers(0, 10**9)}))}
    drawn = draw_rows(sources, count=3, rows_max=50, seed=7)
    constants = [300_000_000 + number for number in range(200)]
    (tmp_path / "some_constants.py").write_text(f"NUMBERS = {constants}\n")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module("some_constants")
    assert draw_rows(sources, count=3, rows_max=50, seed=7) == drawn


def test_cases_have_rows_enough_for_what_a_run_costs() -> None:
    drawn = draw_rows(SOURCES, count=4, rows_max=10, seed=7)
    assert len(drawn) == 4
    assert all(6 <= len(it["orders"]) <= 10 for it in drawn)
    assert all(it["shops"] == [{"shop": "a"}] for it in drawn)
    assert len({row["id"] for it in drawn for row in it["orders"]}) > 4


def test_rows_that_are_given_are_the_same_each_time() -> None:
    assert draw_rows({"a": Source([{"x": 1}])}, count=2, rows_max=1, seed=1) == [
        {"a": [{"x": 1}]},
        {"a": [{"x": 1}]},
    ]


def test_strategy_with_few_values_is_drawn_again() -> None:
    drawn = draw_rows({"a": Source(st.just({"x": 1}))}, count=5, rows_max=1, seed=1)
    assert drawn == [{"a": [{"x": 1}]}] * 5


def test_something_else_is_refused() -> None:
    with pytest.raises(ConfigError, match="a: set are no rows: give a list of dicts"):
        draw_rows({"a": Source({1})}, count=1, rows_max=1, seed=1)  # type: ignore[arg-type]
