"""Spark's part in a streaming query, played by a small program that starts in milliseconds.

    python -m tests.faults.plain_driver settings.json

It does with writers and sinks what Spark does with them, in the same order and in as many processes
(a writer is made and pickled before the tasks, and again for the commit, in two processes that live
as long as the query; a task has a new one), and keeps a checkpoint as Spark does. So a run can be
killed hundreds of times where Spark allows for a dozen. Every line of its input is a run (JSON:
`kill`, or null, and up to which batch), forked from this process, in a session of its own; it
prints `pid N`, then `end CODE`.

Record n of the source is the number n: it needs no topic.
"""

from __future__ import annotations

import importlib
import json
import multiprocessing
import os
import pickle
import random
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.types import StructType

from millstream.pipelines.offsets import to_json
from millstream.pipelines.running import fan_out
from millstream.pipelines.running.checkpoint import Checkpoint
from millstream.pipelines.running.fan_out import FanOutSink
from millstream.pipelines.running.progress import GroupProgress
from millstream.pipelines.source import MillstreamSource
from millstream.pipelines.stores import TableSpec, open_store
from millstream.pipelines.writing.decisions import TaskTransaction, encode_decision
from millstream.pipelines.writing.options import parse_write_options
from tests.faults import kill_points
from tests.faults.kill_points import Kill

SCHEMA = StructType().add("key", "string").add("value", "string")
TASK_ATTEMPTS = 3
_IMPORTS = Path(sys.argv[-1]).with_suffix(".imports")
_imported: set[str] = set()
_fork = multiprocessing.get_context("fork")


@dataclass(frozen=True)
class Settings:
    bootstrap: str
    source: str  # must exist, for the group's offsets
    target: str
    checkpoints: str
    pipeline: str  # "topic", "topics", "fan" or "pgfan"
    store: str | None
    batches: int
    records_per_batch: int
    timeout_ms: int | None = None

    @property
    def location(self) -> str:
        return f"{self.checkpoints}/{self.pipeline}"

    @property
    def transactional_id(self) -> str:
        """Of a pipeline: made of its name. The writer of `format("millstream")` takes another."""
        return f"millstream-{self.target}-{self.pipeline}"

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)))


class Query:
    """A checkpoint, and the batches that follow from it."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._path = Path(settings.location)
        for name in ("offsets", "commits"):
            (self._path / name).mkdir(parents=True, exist_ok=True)
        if not (self._path / "metadata").exists():
            self._write("metadata", json.dumps({"id": os.urandom(8).hex()}))

    def run(self, write_batch: Callable[[int, range], None]) -> None:
        begun, done = self._last("offsets"), self._last("commits")
        batch_id = begun if begun > done else begun + 1
        size = self._settings.records_per_batch
        while batch_id < self._settings.batches:
            if begun < batch_id:
                end = to_json({(self._settings.source, 0): (batch_id + 1) * size})
                self._write(f"offsets/{batch_id}", "\n".join(["v1", "{}", json.dumps(end)]))
            write_batch(batch_id, range(batch_id * size, (batch_id + 1) * size))
            self._write(f"commits/{batch_id}", 'v1\n{"nextBatchWatermarkMs":0}')
            batch_id += 1

    def _last(self, name: str) -> int:
        numbers = [int(it.name) for it in (self._path / name).iterdir() if it.name.isdigit()]
        return max(numbers, default=-1)

    def _write(self, name: str, content: str) -> None:
        unfinished = self._path / f".{name.replace('/', '-')}.tmp"
        unfinished.write_text(content)
        unfinished.rename(self._path / name)


# Tasks, in processes of their own


def in_process(work: Callable[[], Any]) -> Any:
    """What `work` returns in a child process; raises if it dies or raises."""
    receiver, sender = _fork.Pipe(duplex=False)

    def run() -> None:
        try:
            result = work()
            note_imports()
            sender.send(result)
        except BaseException:  # noqa: BLE001 the child ends here, whatever it was
            traceback.print_exc()
            os._exit(1)
        sender.close()
        os._exit(0)

    child = _fork.Process(target=run)
    child.start()
    sender.close()
    try:
        return receiver.recv()
    except EOFError as error:
        raise RuntimeError("a process ended without a result") from error
    finally:
        child.join()


def note_imports() -> None:
    """Tell the process that all others are forked from what it should have imported."""
    new = sys.modules.keys() - _imported
    if new:
        with _IMPORTS.open("a") as file:
            file.write("".join(f"{name}\n" for name in new))


def import_noted() -> None:
    names = set(_IMPORTS.read_text().split()) if _IMPORTS.exists() else set()
    for name in sorted(names - sys.modules.keys()):
        with suppress(ImportError):
            importlib.import_module(name)
    _imported.update(sys.modules)


def run_tasks(numbers: range, batch_id: int, work: Callable[[Any], Any]) -> list[Any]:
    """`work` on the rows of each of some tasks; what they return."""
    count = random.SystemRandom().randint(1, 4)
    return [run_task(part, batch_id, numbers[part::count], work) for part in range(count)]


def run_task(part: int, batch_id: int, numbers: range, work: Callable[[Any], Any]) -> Any:
    def attempt(number: int) -> Any:
        context: Any = TaskContext._getOrCreate()
        context._partitionId, context._attemptNumber = part, number
        context._localProperties = {"streaming.sql.batchId": str(batch_id)}
        return work(rows_of(numbers))

    for number in range(TASK_ATTEMPTS):
        try:
            return in_process(lambda number=number: attempt(number))  # type: ignore[misc]
        except RuntimeError:
            continue
    raise RuntimeError(f"task {part} failed {TASK_ATTEMPTS} times")


def rows_of(numbers: range) -> Iterator[pa.RecordBatch]:
    half = len(numbers) // 2
    for part in (numbers[:half], numbers[half:]):
        texts = [str(number) for number in part]
        yield pa.RecordBatch.from_pydict({"key": texts, "value": texts})


# A topic, by Spark's interface of writers


class Servant:
    """A process that does one thing again and again, and remembers what it did, as Spark's do."""

    def __init__(self, work: Callable[..., Any]) -> None:
        self._calls, calls = _fork.Pipe()

        def serve() -> None:
            self._calls.close()  # or it would never see its end
            while True:
                try:
                    calls.send(work(*calls.recv()))
                except EOFError:
                    os._exit(0)  # the query has ended
                except BaseException:  # noqa: BLE001 the child ends here, whatever it was
                    traceback.print_exc()
                    os._exit(1)
                note_imports()

        self._process = _fork.Process(target=serve, daemon=True)
        self._process.start()
        calls.close()

    def __call__(self, *arguments: Any) -> Any:
        self._calls.send(arguments)
        try:
            return self._calls.recv()
        except EOFError as error:
            raise RuntimeError("a process ended without a result") from error


class TopicQuery:
    """Writes batches as Spark does."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._prepare = Servant(lambda: pickle.dumps(self._writer()))
        self._commit = Servant(self._commit_or_abort)

    def _writer(self) -> Any:
        source = MillstreamSource(write_options(self._settings, self._settings.target))
        return source.streamWriter(SCHEMA, overwrite=False)

    def _commit_or_abort(self, messages: list[Any], batch_id: int) -> None:
        writer = self._writer()
        try:
            writer.commit(messages, batch_id)
        except BaseException:
            traceback.print_exc()
            writer.abort(messages, batch_id)
            raise

    def write(self, batch_id: int, numbers: range) -> None:
        pickled = self._prepare()
        messages = run_tasks(numbers, batch_id, lambda rows: pickle.loads(pickled).write(rows))
        self._commit(messages, batch_id)


def write_options(settings: Settings, topic: str) -> dict[str, str]:
    options = {
        "kafka.bootstrap.servers": settings.bootstrap,
        "kafka.group.id": settings.pipeline,
        "topic": topic,
        "checkpointLocation": settings.location,
    }
    if settings.timeout_ms is not None:
        options["kafka.transaction.timeout.ms"] = str(settings.timeout_ms)
    return options


# Several outputs, by a sink that is called with each batch


class PlainCheckpoint(Checkpoint):
    """Without Spark."""

    def __init__(self, location: str) -> None:
        self.location, self._ends = location, {}

    def _planned(self) -> None:
        """There is no plan."""


class PlainBatch:
    """What a sink is called with in place of a DataFrame."""

    def __init__(self, batch_id: int, numbers: range) -> None:
        self.batch_id, self.numbers = batch_id, numbers

    def persist(self) -> PlainBatch:
        return self

    def unpersist(self) -> None: ...

    # `batch.write.format("noop").mode("overwrite").save()`: it is computed, and that is all.

    @property
    def write(self) -> PlainBatch:
        return self

    def format(self, name: str) -> PlainBatch:
        return self

    def mode(self, name: str) -> PlainBatch:
        return self

    def save(self) -> None: ...


def as_frame(batch_id: int, numbers: range) -> Any:
    return PlainBatch(batch_id, numbers)


class PlainFanOut(FanOutSink):
    """The sink; the two steps in which Spark computes rows are done here."""

    def _write_topics(self, batch: Any, topics: Any) -> list[TaskTransaction]:
        protocol = self._protocol
        assert protocol is not None

        def work(rows: Iterator[pa.RecordBatch]) -> Any:
            tagged = (pa.record_batch([it.to_struct_array()] * 2, ["one", "two"]) for it in rows)
            used = (it.select(list(topics)) for it in tagged)
            tagged_rows = fan_out.rows_by_output(topics, used)
            return fan_out.write_open(
                topics, protocol.task_prefix, protocol.task_timeout_ms, tagged_rows
            )

        tasks = run_tasks(batch.numbers, batch.batch_id, work)
        return [task for _, task in tasks if task is not None]

    def _write_tables(self, batch: Any, decision: Any, role: Any = None) -> None:
        assert self.store is not None
        assert role is None
        rows = pa.Table.from_batches(rows_of(batch.numbers))
        self.store.write_arrow(
            [(rows, table) for table in self.tables.values()],
            decision.batch_id,
            self.query,
            json.dumps(to_json(decision.ends or {})),
            decision=encode_decision(decision).decode(),
            begins=json.dumps(to_json(self.checkpoint.batch_start(decision.batch_id))),
        )


def make_fan_out(settings: Settings) -> PlainFanOut:
    names = {"one": settings.target}
    if settings.pipeline == "topics":
        names["two"] = f"{settings.target}-more"
    store = None
    tables = {}
    if settings.store is not None:
        store = open_store(settings.store)
        store.claim(settings.pipeline)
        tables = {"rows": TableSpec(f"{settings.pipeline}_rows", mode="append")}
    named = {"kafka.transactional.id": settings.transactional_id}
    return PlainFanOut(
        settings.pipeline,
        {
            name: parse_write_options(write_options(settings, topic) | named, streaming=True)
            for name, topic in names.items()
        },
        tables,
        store,
        PlainCheckpoint(settings.location),
        GroupProgress(settings.bootstrap, settings.pipeline),
    )


def run(settings: Settings) -> None:
    query = Query(settings)
    if settings.pipeline == "topic":
        query.run(TopicQuery(settings).write)
        return
    sink = make_fan_out(settings)
    sink.recover()
    query.run(lambda batch_id, numbers: sink(as_frame(batch_id, numbers), batch_id))


def serve(settings: Settings, lines: Iterator[str]) -> None:
    for line in lines:
        import_noted()
        child = os.fork()
        if child == 0:
            os.setsid()
            wanted = json.loads(line)
            code = 1
            try:
                if wanted["kill"] is not None:
                    kill_points.install([Kill(**wanted["kill"])], PlainFanOut)
                run(replace(settings, batches=wanted["batches"]))
                code = 0
            except BaseException:  # noqa: BLE001 the child ends here, whatever it was
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(code)
        print("pid", child, flush=True)
        _, status = os.waitpid(child, 0)
        print("end", os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    serve(Settings(**json.loads(Path(sys.argv[1]).read_text())), iter(sys.stdin.readline, ""))
