"""The settings of a window: which are refused, and when results come by them."""

from __future__ import annotations

from typing import Any

import pytest

from millstream.errors import ConfigError
from millstream.pipelines.lateness import Lateness
from millstream.pipelines.windows.kinds import Session, Tumbling
from millstream.pipelines.windows.spec import WindowSpec

SECOND_US = 1_000_000


def spec(**changes: Any) -> WindowSpec:
    given: dict[str, Any] = {
        "kind": Tumbling(60 * SECOND_US),
        "keys": ("user",),
        "time": "time",
        "aggregates": {"n": "count(*)"},
        "lateness": Lateness(),
        "emit": "final",
        "buckets": 16,
    }
    return WindowSpec(**(given | changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"aggregates": {}}, "a window without aggregates"),
        ({"emit": "often"}, '"every 10 seconds"'),
        ({"emit": "every blue moon"}, "emit 'blue moon'"),
        ({"buckets": 0}, "buckets=0: it must be an integer between 1 and 65536"),
    ],
)
def test_bad_settings_are_refused_with_the_fix(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        spec(**changes)
    assert message in str(refused.value)


def test_results_change_where_late_rows_correct_them_or_preliminary_ones_are_wanted() -> None:
    waiting = Lateness("drop", 5 * SECOND_US)
    assert not spec(lateness=waiting).is_revised
    assert spec(lateness=Lateness("correct", 5 * SECOND_US)).is_revised
    assert spec(emit="every 10 seconds").is_revised
    assert spec(emit="every 10 seconds").every_us == 10 * SECOND_US
    assert spec().every_us is None


def test_sessions_that_wait_for_late_rows_are_kept_in_bucketed_state() -> None:
    waiting = Lateness("drop", 5 * SECOND_US)
    assert spec(kind=Session(SECOND_US), lateness=waiting).is_kept
    assert not spec(kind=Session(SECOND_US)).is_kept
    assert not spec(lateness=waiting).is_kept
