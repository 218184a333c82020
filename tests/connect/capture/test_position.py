"""Positions and states as they are stored."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from millstream.connect.capture.position import CaptureState, Position, TableState
from millstream.connect.capture.tables import CaptureError

STATE = CaptureState(
    "snapshot",
    "7312",
    1,
    "shop",
    "millstream_shop",
    "millstream_shop",
    16400,
    owner="a1",
    start_lsn=0x1_00000002,
    tables={
        "public.done": TableState(1, "done", ("9",), 9, 9),
        "public.half": TableState(2, "copying", ("a\tb", "7"), 2, 5, key=("t 25 100", "n 23 0")),
        "public.new": TableState(3, replaces=True),
        "public.parts": TableState(4, "done", published="table 9", partitions={5: "public.part"}),
        "public.gone": TableState(6, "done").left(),
    },
)


@pytest.mark.parametrize("position", [Position(0x16_00000001), Position(5, 9, 3, 1)])
def test_position_is_read_as_it_was_written(position: Position) -> None:
    assert Position.decode(position.encode()) == position
    assert position.is_cut == (position.commit_lsn == 9)


def test_state_is_read_as_it_was_written() -> None:
    assert CaptureState.decode(STATE.encode()) == STATE
    assert STATE.unfinished == ["public.half", "public.new"]


def test_state_of_format_1_has_no_owner() -> None:
    fields = json.loads(STATE.encode())
    del fields["owner"]
    old = CaptureState.decode(json.dumps(fields | {"format": 1}).encode())
    assert old == replace(STATE, owner="")


def test_state_of_format_2_lacks_what_tables_are_compared_with() -> None:
    fields = json.loads(STATE.encode())
    for table in fields["tables"].values():
        for name in ("key", "published", "partitions"):
            del table[name]
    old = CaptureState.decode(json.dumps(fields | {"format": 2}).encode())
    assert old.tables["public.half"] == replace(STATE.tables["public.half"], key=())
    assert old.tables["public.parts"] == TableState(4, "done")


def test_another_format_is_refused() -> None:
    with pytest.raises(
        CaptureError, match="the stored position has format 4, this version reads 1 to 3;"
    ):
        Position.decode(b'{"format": 4, "lsn": "0/1"}')
    with pytest.raises(CaptureError, match="--new-slot"):
        CaptureState.decode(b"{}")


def test_table_that_is_copied_again_supersedes_what_is_written() -> None:
    half, new, gone = (STATE.tables[f"public.{it}"] for it in ("half", "new", "gone"))
    assert half.restarted() == TableState(2, rows_expected=5, replaces=True)
    assert (TableState(7).restarted(), new.restarted()) == (TableState(7), new)
    assert [it.owes_truncate for it in (half, new, gone, half.left())] == [False, True, True, True]


def test_table_is_replaced_in_a_copy() -> None:
    changed = STATE.with_table("public.new", TableState(3, "done"))
    assert changed.unfinished == ["public.half"]
    assert STATE.unfinished == ["public.half", "public.new"]
