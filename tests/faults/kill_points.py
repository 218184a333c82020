"""Where drivers and tasks of pipelines are killed, and how: nothing of it is in what is tested.

Every Python process of a run has `kill_hooks/` on its PYTHONPATH, whose `sitecustomize` calls
`install` here. It wraps the functions between which a pipeline may die. When a process comes to a
point that the environment names, for the pipeline that it names, in a batch that was begun in this
run, it does what the environment says, once: by default it kills all processes of its session with
SIGKILL: the driver, its JVM, all workers.

    MILLSTREAM_KILL    a list of `Kill` as JSON
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import wraps
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any

ENVIRONMENT = "MILLSTREAM_KILL"
TOPIC_POINTS = (
    "begun",  # the driver has its transaction, and has looked at nothing yet
    "prepared",  # nothing is left of earlier batches; no task has begun
    "task begins",
    "task begun",  # it has its transaction, and has written nothing
    "task written",  # one task has left its transaction open
    "tasks done",  # the driver has all messages
    "decision sent",  # the decision and the offsets are written, and not committed
    "decided",
    "half ended",  # some of the tasks' transactions are committed
    "ended",  # all are; it is not written down
    "completed",  # it is; Spark does not know yet
    "committed",
)
TABLE_POINTS = (
    "called",  # Spark hands over the batch
    "merging",  # rows are in the store's transaction, which is open
    "stored",  # it is committed
    "reported",  # the group's offsets are, too; Spark does not know yet
)
STAGED_POINTS = ("called", "staged", "merging", "stored", "reported")
FAN_OUT_POINTS = (
    "called",
    "begun",
    "prepared",
    "task begun",
    "task written",
    "tasks done",
    "merging",
    "stored",  # which is the decision
    "decision sent",  # a copy of it, which is not committed yet
    "decided",
    "half ended",
    "ended",
    "completed",
    "reported",
)
TOPICS_POINTS = tuple(  # a fan-out without a store
    it for it in FAN_OUT_POINTS if it not in ("merging", "stored")
)
# Needs transactions that time out between the decision and their end.
PUBLISHED_AGAIN = "published again"
TASK_POINTS = {
    "topic": ("task begins", "task begun", "task written"),
    "fan": ("task begun", "task written"),
    "postgres": ("staged",),
}

HOWS = (
    "all",  # kill -9 of the driver and all that it has started
    "worker",  # kill -9 of the process that comes there
    "executor",  # kill -9 of the JVM that it works for
    "stand",  # it goes no further: Spark may run the task elsewhere, or the test kills all
    "broker",  # kill -9 of the broker
    "pause",  # SIGSTOP to the driver and all that it has started, which are then thought dead
    "raise",  # an error in place of the next step
)

FAULT = "fault at"  # so begins the message of what is raised

_of_thread = threading.local()  # which pipeline it works for


@dataclass(frozen=True)
class Kill:
    """Who dies where."""

    pipeline: str
    point: str
    checkpoints: str
    after: int = -1  # the last batch that was begun before this run
    how: str = "all"  # one of HOWS
    broker_pid: int = 0

    @property
    def report(self) -> Path:
        """Exists when somebody was killed."""
        name = f"killed-{self.pipeline}-{self.point}-{self.after}-{self.how}".replace(" ", "-")
        return Path(self.checkpoints) / name


Kills = Sequence[Kill]


def wanted_kills() -> Kills:
    return [Kill(**it) for it in json.loads(os.environ.get(ENVIRONMENT, "[]"))]


def environment_of(kills: Kills) -> dict[str, str]:
    return {ENVIRONMENT: json.dumps([asdict(it) for it in kills])}


def current_batch(checkpoints: str, pipeline: str) -> int:
    offsets = Path(checkpoints) / pipeline / "offsets"
    with suppress(FileNotFoundError):
        return max((int(it.name) for it in offsets.iterdir() if it.name.isdigit()), default=-1)
    return -1


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


def signal_session(session: int, number: signal.Signals) -> None:
    """kill -9 (or another) to all of them, and to this process, if it is one, last."""
    others = [pid for pid in processes_of_session(session) if pid != os.getpid()]
    for pid in others:
        with suppress(ProcessLookupError):
            os.kill(pid, number)
    if os.getsid(0) == session:
        os.kill(os.getpid(), number)


def jvm_of(pid: int) -> int:
    """The nearest ancestor that is one."""
    while b"java" not in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0]:
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return pid


def reach(kills: Kills, point: str) -> None:
    """Die, if it is here."""
    pipeline = getattr(_of_thread, "pipeline", None)
    for kill in kills:
        if (pipeline, point) == (kill.pipeline, kill.point) and _is_time(kill):
            strike(kill)


def _is_time(kill: Kill) -> bool:
    """Whether it is a new batch, and nobody else has been here."""
    is_new = current_batch(kill.checkpoints, kill.pipeline) > kill.after
    if not is_new and kill.point != PUBLISHED_AGAIN:
        return False
    try:
        with kill.report.open("x") as report:
            report.write(str(time.time()))
    except FileExistsError:
        return False
    return True


def strike(kill: Kill) -> None:
    match kill.how:
        case "worker":
            os.kill(os.getpid(), signal.SIGKILL)
        case "executor":
            os.kill(jvm_of(os.getpid()), signal.SIGKILL)
        case "stand":
            stand()
        case "broker":
            os.kill(kill.broker_pid, signal.SIGKILL)
        case "pause":
            signal_session(os.getsid(0), signal.SIGSTOP)
        case "raise":
            raise OSError(f"{FAULT} {kill.point!r}")
        case _:
            signal_session(os.getsid(0), signal.SIGKILL)


def stand() -> None:
    """As long as there is somebody to wait for it."""
    parent = os.getppid()
    while os.getppid() == parent:
        time.sleep(0.1)
    os._exit(1)


def install(kills: Kills, fan: Any = None) -> None:
    """Wrap what a pipeline does; `fan` is the class of sinks for several outputs, if not ours."""
    sys.meta_path.insert(0, _Patcher(kills))
    for name, patch in PATCHES.items():
        if name in sys.modules:
            patch(kills, sys.modules[name])
    if fan is not None:
        patch_sink(kills, fan)


class _Patcher(MetaPathFinder):
    """Patches modules when they are imported: nobody pays for those that are not."""

    def __init__(self, kills: Kills) -> None:
        self._kills = kills

    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        if name not in PATCHES:
            return None
        spec = PathFinder.find_spec(name, path)
        assert spec is not None
        loader: Any = spec.loader
        execute = loader.exec_module

        def execute_and_patch(module: Any) -> None:
            execute(module)
            PATCHES[name](self._kills, module)

        loader.exec_module = execute_and_patch
        return spec


def patch_producing(kills: Kills, module: Any) -> None:
    around(kills, module, "begin_transaction", after="task begun")
    around(kills, module, "end_transaction", before="decision sent", after="decided")


def patch_decisions(kills: Kills, module: Any) -> None:
    around(kills, module.DecisionLog, "write_completed", before="ended", after="completed")


def patch_completing(kills: Kills, module: Any) -> None:
    around(kills, module.Completer, "_publish_again", after=PUBLISHED_AGAIN)
    end_some(kills, module)


def patch_protocol(kills: Kills, module: Any) -> None:
    around(kills, module, "begin_transaction", after="begun")


def patch_tasks(kills: Kills, module: Any) -> None:
    around(kills, module, "write_open", after="task written", pipeline_of=of_topics)


def use_patched_tasks(module: Any) -> None:
    """Also in a module that was imported before."""
    from millstream.pipelines.writing import tasks

    module.write_open = tasks.write_open


def patch_writing(kills: Kills, module: Any) -> None:
    use_patched_tasks(module)
    writer = module.TopicStreamWriter
    around(kills, writer, "_prepare", after="prepared", pipeline_of=of_writer)
    around(kills, writer, "write", before="task begins", pipeline_of=of_writer)
    around(kills, writer, "commit", before="tasks done", after="committed", pipeline_of=of_writer)
    around(kills, writer, "abort", pipeline_of=of_writer)


def patch_fan_out(kills: Kills, module: Any) -> None:
    use_patched_tasks(module)
    patch_sink(kills, module.FanOutSink)


def patch_sink(kills: Kills, sink: Any) -> None:
    around(kills, sink, "__call__", before="called", after="reported", pipeline_of=of_sink)
    around(kills, sink, "_begin", pipeline_of=of_sink)
    around(kills, sink, "_resume", pipeline_of=of_sink)
    around(kills, sink, "_write_topics", before="prepared", after="tasks done", pipeline_of=of_sink)
    around(kills, sink, "_write_tables", after="stored", pipeline_of=of_sink)


def patch_sqlite(kills: Kills, module: Any) -> None:
    around(kills, module, "apply", after="merging")
    around(kills, module.SqliteStore, "write_many", after="stored")


def patch_postgres(kills: Kills, module: Any) -> None:
    around(kills, module, "_stage_here", after="merging")
    around(kills, module.PostgresStore, "write_many", after="stored")


def patch_staging(kills: Kills, module: Any) -> None:
    module._SENT_ROWS_MAX = 10  # so that tables are staged also in small batches
    around(kills, module, "fill_stage", after="staged", pipeline_of=of_stage)


def patch_written(kills: Kills, module: Any) -> None:
    """Rows of one table are in the transaction of the target."""
    sink = module.DuckdbSink if hasattr(module, "DuckdbSink") else module.SearchSink
    around(kills, sink, "_write", after="merging")


def patch_delta(kills: Kills, module: Any) -> None:
    """Each table has a transaction of its own: one is committed, and the next is not."""
    around(kills, module.DeltaSink, "_merge", after="merging")


def patch_redis(kills: Kills, module: Any) -> None:
    """One request writes everything."""
    around(kills, module.RedisSink, "apply", before="merging")


PATCHES: Mapping[str, Callable[[Kills, Any], None]] = {
    "millstream.client.producing": patch_producing,
    "millstream.pipelines.writing.decisions": patch_decisions,
    "millstream.pipelines.writing.completing": patch_completing,
    "millstream.pipelines.writing.protocol": patch_protocol,
    "millstream.pipelines.writing.tasks": patch_tasks,
    "millstream.pipelines.writing.writer": patch_writing,
    "millstream.pipelines.running.fan_out": patch_fan_out,
    "millstream.pipelines.stores.sqlite": patch_sqlite,
    "millstream.pipelines.stores.postgres": patch_postgres,
    "millstream.pipelines.stores.staging": patch_staging,
    "millstream.connect.sinks.duckdb": patch_written,
    "millstream.connect.sinks.search": patch_written,
    "millstream.connect.sinks.delta": patch_delta,
    "millstream.connect.sinks.redis": patch_redis,
}


def of_writer(writer: Any, *_: Any) -> str:
    return of_options(writer._options)


def of_options(options: Any, *_: Any) -> str:
    return str(options.checkpoint_location).rpartition("/")[2]


def of_topics(topics: Any, *_: Any) -> str:
    return of_options(next(iter(topics.values())))


def of_sink(sink: Any, *_: Any) -> str:
    return str(sink.query)


def of_stage(url: str, name: str, rows: Any, layout: Any) -> str:
    """Tables are named after their pipeline."""
    return str(layout.table.name.rpartition("_")[2])


def around(
    kills: Kills,
    owner: Any,
    name: str,
    *,
    before: str | None = None,
    after: str | None = None,
    pipeline_of: Callable[..., str] | None = None,
) -> None:
    """Die before or after a function is called; who knows its pipeline tells those it calls."""
    original: Callable[..., Any] = getattr(owner, name)

    # Pickled by its name, which is found only in the module that defines it: patch that one.
    @wraps(original)
    def replaced(*args: Any, **named: Any) -> Any:
        if pipeline_of is not None:
            _of_thread.pipeline = pipeline_of(*args)
        if before is not None:
            reach(kills, before)
        result = original(*args, **named)
        if after is not None:
            reach(kills, after)
        return result

    setattr(owner, name, replaced)


def end_some(kills: Kills, owner: Any) -> None:
    """End one transaction by itself first, and die then."""
    original = owner.end_transactions

    @wraps(original)
    def replaced(cluster: Any, transactions: Any, commit: bool) -> Any:
        codes = original(cluster, transactions[:1], commit)
        reach(kills, "half ended")
        return codes + original(cluster, transactions[1:], commit)

    owner.end_transactions = replaced
