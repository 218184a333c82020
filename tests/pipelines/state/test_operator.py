"""What every operator has by itself."""

from __future__ import annotations

import json
import pickle

from millstream.pipelines.state import END_OF_TIME, NO_WATERMARK
from millstream.pipelines.state.keys import HASH
from tests.pipelines.state.counter import HoldAndCount
from tests.pipelines.state.rows import KEYS, SCHEMA

OPERATOR = HoldAndCount(SCHEMA, KEYS, "time")


def test_nothing_has_the_right_columns() -> None:
    assert OPERATOR.nothing.num_rows == 0
    assert OPERATOR.nothing.schema == OPERATOR.schema_out
    assert OPERATOR.no_rows()["rows"].schema.names == [HASH, *SCHEMA.names]


def test_operator_travels_by_pickle() -> None:
    copy = pickle.loads(pickle.dumps(OPERATOR))
    assert copy.schema_out == OPERATOR.schema_out
    assert copy.tables == OPERATOR.tables


def test_times_leave_room_to_reckon() -> None:
    assert END_OF_TIME + 2 * 2**60 < 2**63
    assert NO_WATERMARK - 2 * 2**60 > -(2**63)


def test_operator_describes_itself() -> None:
    operator = HoldAndCount(SCHEMA, KEYS, "time")
    operator.identity = "hold for 90000000 us"
    told = json.loads(operator.describe(16, 3))
    assert told == {
        "number": 3,
        "identity": "hold for 90000000 us",
        "title": "hold for 1 minute 30 seconds",
        "buckets": 16,
        "inputs": {"rows": list(KEYS)},
        "tables": {"held": "until the watermark is past them", "counts": "forever"},
        "columns": {"held": ["value"], "counts": ["count"]},
        "details": {},
    }
    operator.title = "a hold"
    assert json.loads(operator.describe(4))["title"] == "a hold"
