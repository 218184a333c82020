"""A process that has imported what Spark's Python processes need, and from which they are forked.

    python -m millstream.pipelines.process_server DESCRIPTOR     of a listening socket

Until the first batches of three pipelines are done, Spark starts half a dozen Python processes one
after the other: a daemon for the workers of tasks, two for what its planner asks, and one for each
source of a stream. Each imports PySpark, Arrow and our source: half a second of a core, while the
pipelines wait. Here this is done once, while the JVM starts.

Spark starts its processes as ever. `planner_site/sitecustomize.py`, which Python runs first, sends
us what they would have run. This process ends with the driver, which holds its standard input;
those that were forked end with the JVM, as without us.
"""

from __future__ import annotations

import contextlib
import json
import os
import runpy
import selectors
import signal
import socket
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn, Protocol

from millstream.pipelines.planner_site.sitecustomize import PID, STREAMS, facts
from millstream.pipelines.worker_daemon import PRELOADED
from millstream.pipelines.workers import preload

DAEMON = "pyspark.daemon"
PLANNERS = ("pyspark.sql.worker.create_data_source", "pyspark.sql.worker.plan_data_source_read")
SOURCE_RUNNER = "pyspark.sql.streaming.python_streaming_source_runner"
PROGRAMS = (DAEMON, SOURCE_RUNNER, "millstream.pipelines.worker_daemon")
REQUEST_SECONDS_MAX = 5.0


class Closes(Protocol):
    def close(self) -> None: ...


def serve(listening: socket.socket) -> None:
    """Until standard input ends; in a forked process, run its program and do not return."""
    with selectors.DefaultSelector() as waiting:
        waiting.register(listening, selectors.EVENT_READ)
        waiting.register(STREAMS[0], selectors.EVENT_READ)
        while all(key.fileobj is listening for key, _ in waiting.select()):
            connection, _ = listening.accept()
            with connection, contextlib.suppress(OSError, ValueError):
                answer(connection, [listening, waiting])


def answer(connection: socket.socket, ours: Sequence[Closes]) -> None:
    """Fork a process for a request; it closes what is ours, and keeps the connection, which is
    closed when it ends. Without an answer, the program runs where it was started."""
    request, streams = receive(connection)
    try:
        if not is_possible(request):
            return
        pid = os.fork()
        if pid == 0:
            become(request, streams, ours)
        connection.sendall(PID.pack(pid))
    finally:
        for it in streams:
            os.close(it)


def receive(connection: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """What is to be run, and its standard streams."""
    connection.settimeout(REQUEST_SECONDS_MAX)
    _, streams, _, _ = socket.recv_fds(connection, 1, len(STREAMS))
    with connection.makefile("rb") as file:
        request = json.loads(file.readline())
    connection.settimeout(None)
    return request, streams


def is_possible(request: dict[str, Any]) -> bool:
    """Whether it is a program of Spark, for a Python like this one."""
    return request["facts"] == facts() and request["arguments"][0] in PROGRAMS


def become(request: dict[str, Any], streams: Sequence[int], ours: Sequence[Closes]) -> NoReturn:
    """Run the program as `python -m` does, in a process of its own, and exit."""
    try:
        for it in ours:
            it.close()
        for theirs, number in zip(streams, STREAMS, strict=True):
            os.dup2(theirs, number)
            os.close(theirs)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.chdir(request["directory"])
        os.environ.clear()
        os.environ.update(request["environment"])
        sys.path[:] = [request["directory"], *request["path"]]
        sys.argv = request["arguments"]
        name = sys.argv[0]
        sys.modules.pop(name, None)  # it is run from its beginning
        runpy.run_module(name, run_name="__main__", alter_sys=True)
    except SystemExit:
        pass
    except BaseException:  # noqa: BLE001 - as an interpreter does at its end
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(0)


def main(descriptor: str) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # as Spark's JVM does, and hence its processes
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those that were forked
    listening = socket.socket(fileno=int(descriptor))
    preload(*PRELOADED, DAEMON, *PLANNERS, SOURCE_RUNNER)
    path = Path(listening.getsockname())
    try:
        serve(listening)
    finally:
        path.unlink(missing_ok=True)
        path.parent.rmdir()
        # At once: an interpreter that finalizes its modules complains about frozen objects.
        os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1])
