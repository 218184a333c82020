"""The settings of a window: which are refused, and when results come by them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from millstream.errors import ConfigError
from millstream.pipelines.windows.emission import NOW
from millstream.pipelines.windows.kinds import Tumbling
from millstream.pipelines.windows.spec import Timing, WindowSpec

SECOND_US = 1_000_000


def spec(**changes: Any) -> WindowSpec:
    given: dict[str, Any] = {
        "kind": Tumbling(60 * SECOND_US),
        "keys": ("user",),
        "time": "time",
        "aggregates": {"n": "count(*)"},
        "stragglers": "drop",
        "allowed_lateness_us": 0,
        "emit": "final",
        "buckets": 16,
        "count_as": None,
    }
    return WindowSpec(**(given | changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"aggregates": {}}, "a window without aggregates"),
        ({"emit": "often"}, '"every 10 seconds"'),
        ({"emit": "every blue moon"}, "emit 'blue moon'"),
        ({"stragglers": "keep"}, "drop, divert, correct"),
        ({"stragglers": "correct"}, "allowed_lateness="),
    ],
)
def test_bad_settings_are_refused_with_the_fix(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        spec(**changes)
    assert message in str(refused.value)


def test_metric_is_named_by_the_window_unless_given() -> None:
    assert spec().metric == "late.tumbling 1 minute"
    assert spec(count_as="late.sales").metric == "late.sales"


def test_results_are_final_at_the_watermark_where_stragglers_correct_them() -> None:
    waiting = spec(allowed_lateness_us=5 * SECOND_US)
    assert waiting.timing == Timing(5 * SECOND_US, 5 * SECOND_US, None)
    assert not waiting.is_revised
    correcting = spec(allowed_lateness_us=5 * SECOND_US, stragglers="correct")
    assert correcting.timing == Timing(0, 5 * SECOND_US, None)
    assert correcting.is_revised


def test_preliminary_results_come_no_more_often_than_every_so_often() -> None:
    timing = spec(emit="every 10 seconds").timing
    assert timing.every_us == 10 * SECOND_US
    rows = pa.RecordBatch.from_pydict({NOW: pa.array([20 * SECOND_US], pa.timestamp("us"))})
    shown = np.array([0, 15 * SECOND_US, 0])
    due = timing.show(np.array([True, True, False]), shown, rows)
    assert due.tolist() == [True, False, False]
    assert shown.tolist() == [20 * SECOND_US, 15 * SECOND_US, 0]


def test_no_preliminary_result_comes_where_none_is_asked_for() -> None:
    rows = pa.RecordBatch.from_pydict({NOW: pa.array([0], pa.timestamp("us"))})
    assert not spec().timing.show(np.array([True]), np.array([0]), rows).any()
