"""The Spark session that `millstream run` creates, its settings, and their reasons.

A session that the user created is never changed. `spark_settings()` returns these settings, for
such a session.

Some of what makes small batches and starts fast relies on internals of Spark, Hadoop and the JVM
rather than on their documented interfaces:

    CHECKPOINT_FILES      another class for the files of checkpoints
    WORKER_DAEMON         a daemon that has imported what Python workers need (worker_daemon.py)
    local_disk.py         permissions of local files without a process for each
    spark_home.py         PySpark is imported from where it is installed, not from an archive
    light_jars.py         an extension of MLlib is loaded when `pyspark.ml` is imported
    python_processes.py   Spark's Python processes are forked from one that has all imports
    data_sources.py       Spark need not search for data sources
    warm_up.py            the driver imports, and Python workers start, while it waits for the JVM
    class_archive.py      the JVM maps Spark's classes instead of loading them
    light_submit.py       the JVM is started by a command that Spark's launcher gave before

The setting `spark_shortcuts = false` of millstream.toml, or MILLSTREAM_SPARK_SHORTCUTS=false, turns
all of them off. Results are the same. Each has a test that fails, and names it, if a new version of
Spark breaks it or makes it unnecessary.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from millstream.errors import ConfigError
from millstream.pipelines.running.class_archive import prepared_jvm
from millstream.pipelines.running.data_sources import provide_data_sources
from millstream.pipelines.running.light_jars import register_ml_functions_when_needed
from millstream.pipelines.running.local_disk import use_local_disk
from millstream.pipelines.running.python_processes import forked_processes
from millstream.pipelines.running.settings import shortcuts_in
from millstream.pipelines.running.spark_home import light_home
from millstream.pipelines.running.warm_up import import_in_background, start_python_workers

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JAVA_OPTIONS = "spark.driver.extraJavaOptions"
JAVA_VARIABLES = ("JDK_JAVA_OPTIONS", "JAVA_TOOL_OPTIONS", "_JAVA_OPTIONS")
STANDALONE = "spark://"
MASTER_SECONDS_MAX = 10.0


class SparkSetting(NamedTuple):
    name: str
    value: str
    reason: str


CHECKPOINT_FILES = SparkSetting(
    "spark.sql.streaming.checkpointFileManagerClass",
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager",
    "the default one starts processes (readlink, chmod) for every file on a local disk, and a "
    "small batch takes 3 times as long. Both are safe under kill -9, and neither syncs.",
)
WORKER_DAEMON = SparkSetting(
    "spark.python.daemon.module",
    "millstream.pipelines.worker_daemon",
    "workers are forked from a process that has imported what tasks need: a second of a core for "
    "each. On a cluster, executors need it too: docs/guides/cluster.md.",
)
SPARK_SETTINGS = (
    SparkSetting(
        "spark.sql.shuffle.partitions",
        "{cores}",
        "each partition has a task and a state store; Spark's default of 200 is for clusters. A "
        "checkpoint keeps its number.",
    ),
    SparkSetting(
        "spark.python.unix.domain.socket.enabled",
        "true",
        "over TCP, a small task in Python took 40 ms longer, which is the delay of an "
        "acknowledgement.",
    ),
    SparkSetting(
        "spark.sql.streaming.stateStore.providerClass",
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
        "bucketed state needs it: sliding windows, joins with tables. It is on disk, so it may be "
        "larger than memory. A checkpoint keeps its provider.",
    ),
    SparkSetting(
        "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled",
        "true",
        "a batch writes its changes instead of files of the store.",
    ),
    SparkSetting(
        "spark.sql.session.timeZone", "UTC", "the same windows and dates wherever it runs."
    ),
    SparkSetting("spark.sql.streaming.metricsEnabled", "false", "progress is polled."),
    SparkSetting(
        "spark.ui.enabled", "false", "it takes memory and a port, for a page that few open."
    ),
    SparkSetting("spark.ui.showConsoleProgress", "false", "it would overwrite the status lines."),
    SparkSetting(
        "spark.log.level",
        "WARN",
        "PySpark shows no more than that, but lets its JVM compose all messages of level INFO, "
        "which show the statistics of a state store as JSON with every batch.",
    ),
)
JVM = SparkSetting(
    JAVA_OPTIONS,
    "-XX:+UseParallelGC",
    "rows go to Python and back in arrays of up to megabytes, for which the default collector may "
    "mark the heap again and again: up to a sixth of a query's CPU time, here a hundredth.",
)
LOCAL_SETTINGS = (
    SparkSetting(
        "spark.sql.shuffle.orderIndependentChecksum.enabled",
        "false",
        "a seventh of the CPU time of a query that shuffles large rows. The checksum shows when a "
        "task, repeated because its output was lost, writes other rows; one machine loses none.",
    ),
    SparkSetting("spark.driver.host", "127.0.0.1", "one machine needs no name in the network."),
    SparkSetting("spark.driver.bindAddress", "127.0.0.1", "and no open port."),
)


def spark_settings(master: str = "local[*]", *, shortcuts: bool = True) -> dict[str, str]:
    """The settings of a session for small, frequent batches."""
    is_local = master.startswith("local")
    chosen = [*SPARK_SETTINGS, *LOCAL_SETTINGS] if is_local else [*SPARK_SETTINGS]
    if is_local and not names_collector(os.environ):
        chosen.append(JVM)
    if shortcuts:
        chosen += [CHECKPOINT_FILES, WORKER_DAEMON] if is_local else [CHECKPOINT_FILES]
    settings = {it.name: it.value for it in chosen}
    if is_local:
        return {name: value.format(cores=local_cores(master)) for name, value in settings.items()}
    return {name: value for name, value in settings.items() if "{cores}" not in value}


def local_cores(master: str) -> int:
    """`local[3]`, `local[3,1]`: 3; `local[*]`: all; `local`: 1."""
    found = re.match(r"local(?:\[(\d+|\*))?", master)
    number = found[1] if found else None
    return 1 if number is None else os.cpu_count() or 1 if number == "*" else int(number)


def names_collector(environ: Mapping[str, str]) -> bool:
    """Whether the environment chooses the JVM's collector: it does not start with two of them."""
    return any(re.search(r"-XX:\+Use\w+GC\b", environ.get(name, "")) for name in JAVA_VARIABLES)


def create_session(
    master: str,
    extra: Mapping[str, str],
    app_name: str,
    log: Path,
    *,
    shortcuts: bool | None = None,
) -> SparkSession:
    """A new session, whose JVM and workers write their standard error to `log`. Without a value for
    `shortcuts`, the environment decides."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    check_master(master)
    choose_python(extra)
    is_local = master.startswith("local")
    if is_local:
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    if shortcuts is None:
        shortcuts = shortcuts_in(os.environ)
    settings = spark_settings(master, shortcuts=shortcuts) | dict(extra)
    is_short = is_local and shortcuts
    builder = SparkSession.builder.master(master).appName(app_name)
    for name, value in settings.items():
        builder = builder.config(name, value)
    if is_short:
        import_in_background()
    try:
        with contextlib.ExitStack() as stack:
            stack.enter_context(stderr_into(log))
            if is_short and stack.enter_context(light_home(log.parent)):
                stack.enter_context(forked_processes())
                stack.enter_context(prepared_jvm())
            session = builder.getOrCreate()
    except (PySparkException, Py4JError, OSError) as error:
        reason = reason_of(str(error))
        raise ConfigError(f"Spark does not start with master {master}: {reason} ({log})") from error
    if is_short:
        start_python_workers(session)
        use_local_disk(session)
        provide_data_sources(session)
        register_ml_functions_when_needed(session)
    return session


def reason_of(text: str) -> str:
    """The Java exception in an error of Py4J, or else the first line of the error."""
    lines = text.strip().splitlines() or ["no reason given"]
    thrown = next((line for line in lines if line.startswith(": ")), lines[0])
    return re.sub(r"^: (?:[\w$]+\.)+[\w$]+: ", "", thrown)


def check_master(master: str) -> None:
    """Raise `ConfigError` if no standalone master answers: Spark tries for a minute, and then only
    reports that the session was stopped."""
    if not master.startswith(STANDALONE):
        return
    problems = []
    for address in master.removeprefix(STANDALONE).split(","):
        host, _, port = address.rpartition(":")
        if not host or not port.isdigit():
            raise ConfigError(
                f"master {master}: {address!r} is no address; write {STANDALONE}host:port"
            )
        try:
            socket.create_connection((host.strip("[]"), int(port)), MASTER_SECONDS_MAX).close()
            return
        except OSError as error:
            problems.append(f"{address}: {error}")
    raise ConfigError(
        f"no Spark master answers ({'; '.join(problems)}): start one, or name another with --master"
    )


def choose_python(settings: Mapping[str, str]) -> None:
    """Make driver and executors run the same Python: the one that is set, or else this one.

    Spark runs data sources that it found itself with the Python of its JVM's environment, also on
    executors, and uses `spark.pyspark.python` for everything else.
    """
    given = settings.get("spark.pyspark.python")
    if given is not None:
        os.environ["PYSPARK_PYTHON"] = given
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.pop("PYSPARK_DRIVER_PYTHON", None)  # may be Jupyter, which is no worker


@contextlib.contextmanager
def stderr_into(log: Path) -> Iterator[None]:
    """Make processes that are started now write their standard error to a file."""
    log.parent.mkdir(parents=True, exist_ok=True)
    sys.stderr.flush()
    ours = os.dup(2)
    try:
        with log.open("ab") as file:
            os.dup2(file.fileno(), 2)
        yield
    finally:
        os.dup2(ours, 2)
        os.close(ours)
