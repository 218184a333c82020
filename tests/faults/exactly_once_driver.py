"""A Spark driver that copies a topic exactly once, and dies where it is told to.

    python -m tests.faults.exactly_once_driver settings.json

It runs until all that was in the source is copied, or until batch `at_batch` comes to `point`: then
it kills itself, the JVM and all Python workers with kill -9, unless it has done so before (it
leaves a file). The points are named in `POINTS`; they are put in by subclasses and by replacing
functions here, in the driver's processes, so that nothing of them is in what is tested.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from millstream.pipelines.source import MillstreamSource

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceStreamWriter

POINTS = (
    "begun",  # the driver has its transaction, and has looked at nothing yet
    "prepared",  # nothing is left of earlier batches; no task has begun
    "task begins",
    "task written",  # one task has left its transaction open
    "tasks done",  # the driver has all messages
    "decision sent",  # the decision and the offsets are written, and not committed
    "decided",
    "half ended",  # some of the tasks' transactions are committed
    "ended",  # all are; it is not written down
    "completed",  # it is; Spark does not know yet
    "committed",
)


@dataclass(frozen=True)
class Settings:
    bootstrap: str
    source: str
    target: str
    checkpoint: str
    group: str
    records_per_batch: int
    tasks: int | None = None  # None: as many as the source has
    point: str | None = None
    at_batch: int = 0

    @classmethod
    def load(cls, path: str) -> Settings:
        return cls(**json.loads(Path(path).read_text()))

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)))


def processes_of_session(session: int) -> list[int]:
    """All processes of a session: the driver, its JVM, and the workers of that."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[3]) == session and fields[0] != "Z":
                found.append(int(entry.name))
    return found


def kill_session(session: int) -> None:
    """kill -9 all of them, and this process, if it is one, last."""
    others = [pid for pid in processes_of_session(session) if pid != os.getpid()]
    for pid in others:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    if os.getsid(0) == session:
        os.kill(os.getpid(), signal.SIGKILL)


def current_batch(checkpoint: str) -> int:
    offsets = Path(checkpoint) / "offsets"
    return max((int(it.name) for it in offsets.iterdir() if it.name.isdigit()), default=-1)


def die_at(settings: Settings, point: str) -> None:
    if point != settings.point or current_batch(settings.checkpoint) != settings.at_batch:
        return
    done = Path(f"{settings.checkpoint}.died-{settings.at_batch}")
    if not done.exists():
        done.touch()
        kill_session(os.getsid(0))


def around(
    settings: Settings,
    owner: Any,
    name: str,
    *,
    before: str | None = None,
    after: str | None = None,
) -> None:
    """Die before or after a function is called."""
    original: Callable[..., Any] = getattr(owner, name)
    if getattr(original, "dies", False):
        return  # the process is used for many batches

    def replaced(*args: Any, **named: Any) -> Any:
        if before is not None:
            die_at(settings, before)
        result = original(*args, **named)
        if after is not None:
            die_at(settings, after)
        return result

    replaced.dies = True  # type: ignore[attr-defined]
    setattr(owner, name, replaced)


def end_some(settings: Settings, owner: Any) -> None:
    """End one transaction by itself first, and die then."""
    original = owner.end_transactions
    if getattr(original, "dies", False):
        return

    def replaced(cluster: Any, transactions: Any, commit: bool) -> Any:
        codes = original(cluster, transactions[:1], commit)
        die_at(settings, "half ended")
        return codes + original(cluster, transactions[1:], commit)

    replaced.dies = True  # type: ignore[attr-defined]
    owner.end_transactions = replaced


def mortal(writer: Any, settings: Settings) -> Any:
    """The writer, as an object of a class that dies."""
    from millstream.client import producing
    from millstream.pipelines import decisions, settling, writing

    around(settings, writing, "begin_transaction", after="begun")
    around(settings, producing, "end_transaction", before="decision sent", after="decided")
    around(settings, decisions.DecisionLog, "write_completed", before="ended", after="completed")
    end_some(settings, settling)

    class Mortal(writing.TopicStreamWriter):
        def _prepare(self) -> Any:
            plan = super()._prepare()
            die_at(settings, "prepared")
            return plan

        def write(self, iterator: Any) -> Any:
            die_at(settings, "task begins")
            message = super().write(iterator)
            if message.task is not None:
                die_at(settings, "task written")
            return message

        def commit(self, messages: Any, batchId: int) -> None:  # noqa: N803 Spark's name
            die_at(settings, "tasks done")
            super().commit(messages, batchId)
            die_at(settings, "committed")

    writer.__class__ = Mortal
    return writer


def mortal_source(settings: Settings) -> type[MillstreamSource]:
    class MortalSource(MillstreamSource):
        @classmethod
        def name(cls) -> str:
            return "mortal"

        def streamWriter(self, schema: Any, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
            writer: DataSourceStreamWriter = mortal(
                super().streamWriter(schema, overwrite), settings
            )
            return writer

    return MortalSource


def main(settings: Settings) -> None:
    from pyspark.sql import SparkSession

    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )
    spark.dataSource.register(mortal_source(settings))
    kafka = {"kafka.bootstrap.servers": settings.bootstrap}
    rows = (
        spark.readStream.format("millstream")
        .options(**kafka, subscribe=settings.source, startingOffsets="earliest")
        .option("maxOffsetsPerTrigger", settings.records_per_batch)
        .load()
        .selectExpr("key", "concat('copy of ', cast(value as string)) value")
    )
    if settings.tasks is not None:
        rows = rows.repartition(settings.tasks)
    query = (
        rows.writeStream.format("mortal")
        .options(**kafka, topic=settings.target, checkpointLocation=settings.checkpoint)
        .option("kafka.group.id", settings.group)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(Settings.load(sys.argv[1]))
