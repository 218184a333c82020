"""The sink of a trial: a batch that comes again, crashes at each step, several outputs."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from millstream.pipelines.spec import ONLY
from millstream.testing.streams.sink import Sink, TrialCrash, split


class Frame:
    """Rows that can be collected, and whether they were."""

    schema = StructType().add("n", "long")

    def __init__(self, *numbers: int) -> None:
        self.numbers = numbers
        self.was_computed = False

    def toArrow(self) -> pa.Table:  # noqa: N802
        self.was_computed = True
        return pa.table({"n": list(self.numbers)})


@pytest.fixture
def sink(tmp_path: Path) -> Sink:
    (tmp_path / "offsets").mkdir()
    for number in range(3):
        lines = ["v1", '{"batchWatermarkMs": 0}', json.dumps({"logOffset": number})]
        (tmp_path / f"offsets/{number}").write_text("\n".join(lines))
    return Sink(tmp_path, [ONLY])


def give(sink: Sink, frame: Frame, batch_id: int) -> None:
    sink(frame, batch_id)  # type: ignore[arg-type]


def numbers(sink: Sink) -> dict[int, list[Any]]:
    return {number: [row["n"] for row in it[ONLY]] for number, it in sink.batches.items()}


def test_batch_that_comes_again_is_there_once(sink: Sink) -> None:
    for _ in range(2):
        give(sink, Frame(1, 2), 0)
    assert numbers(sink) == {0: [1, 2]}
    assert not sink.changed


def test_batch_that_comes_again_with_other_rows_is_noted(sink: Sink) -> None:
    give(sink, Frame(1, 2), 0)
    give(sink, Frame(1, 3), 0)
    (changed,) = sink.changed
    assert (changed.difference.only_stream, changed.difference.only_batch) == ([(3,)], [(2,)])


def test_careless_sink_has_it_twice(sink: Sink) -> None:
    sink.delivery = "at least once"
    for _ in range(2):
        give(sink, Frame(1), 0)
    assert numbers(sink) == {0: [1, 1]}


@pytest.mark.parametrize(
    ("step", "is_computed", "is_kept"),
    [
        ("crash before work", False, False),
        ("crash before sink", True, False),
        ("crash after sink", True, True),
    ],
)
def test_crash_happens_at_its_step_and_once(
    sink: Sink, step: str, is_computed: bool, is_kept: bool
) -> None:
    sink.arm(1, step)
    give(sink, Frame(1), 0)
    frame = Frame(2)
    with pytest.raises(TrialCrash):
        give(sink, frame, 1)
    assert frame.was_computed is is_computed
    assert (1 in sink.batches) is is_kept
    assert sink.has_crashed
    give(sink, Frame(2), 1)
    assert numbers(sink) == {0: [1], 1: [2]}


def test_crash_that_was_asked_for_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.getLogger("py4j.clientserver")
    for error in (TrialCrash("as told"), ValueError("as it happens")):
        try:
            raise error
        except (TrialCrash, ValueError):
            logger.exception("the callback failed")
    assert "as it happens" in caplog.text
    assert "as told" not in caplog.text


def test_several_outputs_come_in_structs() -> None:
    found: list[dict[str, Any]] = [
        {"a": {"x": 1}, "b": None},
        {"a": None, "b": {"y": 2}},
    ]
    assert split(found, ["a", "b"]) == {"a": [{"x": 1}], "b": [{"y": 2}]}
