"""What tasks write and leave open, on a real broker, without Spark."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.pipelines.writing.test_writer import Query, count_open, query

__all__ = ["query"]


def test_task_without_rows_leaves_nothing_open_though_it_had_some_before(query: Query) -> None:
    query.run(0)
    message = query.write(query.prepare(1), 1, iter([]))
    assert (message.task, message.is_skipped) == (None, False)
    assert count_open(query) == 0


@pytest.mark.parametrize(("patience", "begins_early"), [(60.0, True), (0.0, False)])
def test_task_begins_its_transaction_before_its_rows_come_if_those_came_soon_the_last_time(
    query: Query, monkeypatch: pytest.MonkeyPatch, patience: float, begins_early: bool
) -> None:
    from millstream.pipelines.writing import tasks

    monkeypatch.setattr(tasks, "PROMPT_SECONDS", patience)
    query.run(0)
    seen = []

    def rows() -> Iterator[Any]:
        seen.append(count_open(query))
        yield from ()

    query.write(query.prepare(1), 1, rows())
    assert seen == [begins_early]
