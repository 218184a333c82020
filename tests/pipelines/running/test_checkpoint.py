"""Spark's checkpoint as the driver reads it, with real files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import UUID

import pytest

from millstream.errors import ConfigError
from millstream.pipelines import Pipeline, pipeline, table, topic
from millstream.pipelines.offsets import EARLIEST
from millstream.pipelines.running import checkpoint as checkpoint_module
from millstream.pipelines.running.checkpoint import Checkpoint, align

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def declared(*names: str) -> Pipeline:
    reads = {f"frame{number}": topic(name) for number, name in enumerate(names)}
    declare = pipeline(reads=reads, writes=table("t"), name="p")
    return declare(lambda frame0, frame1=None: frame0)


def plan_a_batch(checkpoint: Path) -> None:
    """As Spark does: it writes where a batch ends before it reads it."""
    (checkpoint / "offsets").mkdir(parents=True)
    (checkpoint / "offsets" / "0").write_text('v1\n{}\n{"a": {"0": 4}}')


def test_checkpoint_lists_its_batches(spark: SparkSession, tmp_path: Path) -> None:
    checkpoint = Checkpoint(spark, str(tmp_path))
    assert checkpoint.is_new()
    assert checkpoint.last_completed_batch() is None
    (tmp_path / "offsets").mkdir()
    (tmp_path / "commits").mkdir()
    (tmp_path / "offsets" / "11").write_text('v1\n{}\n{"orders": {"0": 17}}')
    for name in ("9", "10", ".10.crc", "10.tmp"):
        (tmp_path / "commits" / name).write_text("v1\n{}")
    assert checkpoint.last_completed_batch() == 10
    assert checkpoint.batch_end(11) == {("orders", 0): 17}
    assert not checkpoint.is_new()


def test_checkpoint_has_where_a_batch_begins(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "offsets").mkdir()
    for number in (3, 4, 5):
        content = f'v1\n{{}}\n{{"orders": {{"0": {number}}}}}'
        (tmp_path / "offsets" / str(number)).write_text(content)
    checkpoint = Checkpoint(spark, str(tmp_path))
    assert checkpoint.batch_start(3) == {}
    for number in (4, 5, 5, 4):
        checkpoint.planned_end(number)
        assert checkpoint.batch_start(number) == {("orders", 0): number - 1}


def test_checkpoint_belongs_to_the_topics_it_was_made_for(
    spark: SparkSession, tmp_path: Path
) -> None:
    checkpoint = Checkpoint(spark, str(tmp_path / "new" / "p"))
    checkpoint.claim(declared("a", "b"), {})
    plan_a_batch(tmp_path / "new" / "p")
    checkpoint.claim(declared("b", "a"), {})
    with pytest.raises(ConfigError, match="made by p reading a, b, and now reads a:"):
        checkpoint.claim(declared("a"), {})


def test_checkpoint_detects_a_recreated_topic(spark: SparkSession, tmp_path: Path) -> None:
    checkpoint = Checkpoint(spark, str(tmp_path / "p"))
    old, new = UUID(int=1), UUID(int=2)
    plan_a_batch(tmp_path / "p")
    checkpoint.claim(declared("a"), {})  # from a broker that has no ids
    checkpoint.claim(declared("a"), {"a": old, "written": new})
    checkpoint.claim(declared("a"), {"a": old})
    with pytest.raises(ConfigError, match="topic a was deleted and recreated since p last ran"):
        checkpoint.claim(declared("a"), {"a": new})
    forgiving = topic("a", options={"failOnDataLoss": False})
    checkpoint.claim(declared("a").variant("p", reads=forgiving), {"a": new})
    checkpoint.claim(declared("a"), {"a": new})


def test_checkpoint_without_a_batch_belongs_to_no_topics(
    spark: SparkSession, tmp_path: Path
) -> None:
    """A first start that fails has read nothing."""
    checkpoint = Checkpoint(spark, str(tmp_path / "p"))
    old, new = UUID(int=1), UUID(int=2)
    checkpoint.claim(declared("aa"), {"aa": old})
    checkpoint.check_windows(["tumbling 1 minute"])
    checkpoint.claim(declared("a"), {"a": old})
    checkpoint.check_windows(["tumbling 2 minutes"])
    checkpoint.claim(declared("a"), {"a": new})
    plan_a_batch(tmp_path / "p")
    checkpoint.claim(declared("a"), {"a": new})
    checkpoint.check_windows(["tumbling 2 minutes"])
    with pytest.raises(ConfigError, match="made by p reading a, and now reads aa"):
        checkpoint.claim(declared("aa"), {"aa": old})
    with pytest.raises(ConfigError, match="topic a was deleted and recreated"):
        checkpoint.claim(declared("a"), {"a": old})
    with pytest.raises(ConfigError, match="windows that end at tumbling 2 minutes"):
        checkpoint.check_windows(["tumbling 1 minute"])


def test_checkpoint_without_a_batch_keeps_where_the_same_topics_begin(
    spark: SparkSession, tmp_path: Path
) -> None:
    checkpoint = Checkpoint(spark, str(tmp_path / "p"))
    ids = {name: UUID(int=number) for number, name in enumerate("abc")}
    reads = {
        "same": topic("a", start_at="latest"),
        "renamed": topic("bb", start_at="latest"),
        "recreated": topic("c", start_at="latest"),
    }
    first = declared("a").variant("p", reads=reads, function=lambda same, renamed, recreated: same)
    checkpoint.claim(first, ids)
    began = {it: {(reads[it].name, 0): 4} for it in reads}
    checkpoint.keep_starting(began)
    second = first.variant("p", reads=reads | {"renamed": topic("b", start_at="latest")})
    for _ in range(2):
        checkpoint.claim(second, ids | {"c": UUID(int=9)})
        assert checkpoint.starting() == {"same": began["same"], "recreated": {("c", 0): EARLIEST}}


def test_checkpoint_keeps_where_inputs_begin_through_hadoop_too(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint_module, "is_local", lambda location: False)
    through_hadoop = Checkpoint(spark, f"file://{tmp_path}/p")
    for offset in (3, 5):  # it is created, then replaced
        through_hadoop.keep_starting({"a": {("topic", 0): offset}})
        assert through_hadoop.starting() == {"a": {("topic", 0): offset}}
    assert through_hadoop._list("") == ["millstream-starting.json"]
    monkeypatch.undo()
    local = Checkpoint(spark, str(tmp_path / "p"))
    assert local.starting() == {"a": {("topic", 0): 5}}


def test_checkpoint_that_another_driver_has_written_to_is_refused(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets" / "7").write_text('v1\n{}\n{"orders": {"0": 4}}')
    checkpoint = Checkpoint(spark, str(tmp_path))
    assert checkpoint.planned_end(7) == {("orders", 0): 4}
    monkeypatch.setattr(checkpoint, "_planned", lambda: {("orders", 0): 6})
    with pytest.raises(ConfigError, match=r"batch 7 ends at .*6.*another process writes to it"):
        checkpoint.planned_end(7)


@pytest.mark.parametrize(
    ("lines", "aligned"),
    [
        (["A", "B"], ["A", "B", "A"]),  # it is used once more
        (["B", "A", "A"], ["A", "B", "A"]),
        (["B", "-"], ["-", "B", "-"]),
        (["A", "C"], ["A", "C"]),  # of a topic that is not read
    ],
)
def test_offsets_of_sources_follow_the_order_of_the_plan(
    lines: list[str], aligned: list[str]
) -> None:
    written = {it: json.dumps({it.lower(): {"0": 7}}) for it in "ABC"} | {"-": "-"}
    found = align([written[it] for it in lines], ["a", "b", "a"])
    assert found == [written[it] for it in aligned]


def test_checkpoint_takes_the_order_of_the_plan(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "offsets").mkdir()
    for number in range(3):
        lines = ["v1", "{}", f'{{"a": {{"0": {number}}}}}', '{"b": {"0": 9}}']
        (tmp_path / "offsets" / str(number)).write_text("\n".join(lines))
    checkpoint = Checkpoint(spark, str(tmp_path))
    ends = [checkpoint.batch_end(number) for number in range(3)]
    for _ in range(2):
        checkpoint.align_sources(declared("a", "b"), ["frame1", "frame0"])
    assert [checkpoint.batch_end(number) for number in range(3)] == ends
    files = [(tmp_path / "offsets" / name).read_text().splitlines() for name in "012"]
    topics = [[next(iter(json.loads(line))) for line in lines[2:]] for lines in files]
    assert topics == [["a", "b"], ["b", "a"], ["b", "a"]]
