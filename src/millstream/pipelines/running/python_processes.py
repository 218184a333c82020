"""The Python processes of a JVM that starts now: forked from one that has all imports.

See `process_server`, which is started here, and `planner_site/sitecustomize.py`, which asks it. It
is for a JVM whose processes would import what the driver imports (`light_home`).
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from millstream.pipelines import planner_site
from millstream.pipelines.planner_site.sitecustomize import SERVER
from millstream.pipelines.running.spark_home import environment

SITE = Path(planner_site.__file__).parent
MODULE = "millstream.pipelines.process_server"
PATH = "PYTHONPATH"
# For linear algebra, numpy starts threads in every process; a task of Spark has one core.
THREADS = "OPENBLAS_NUM_THREADS"
LIKE_SPARK = {"PYTHONHASHSEED": "0", "PYTHONUNBUFFERED": "YES"}
ONE_CORE = {"OMP_NUM_THREADS": "1", THREADS: "1"}  # Spark sets the first of them for a task
_servers: list[subprocess.Popen[bytes]] = []  # each ends when this process does


@contextlib.contextmanager
def forked_processes() -> Iterator[None]:
    """Have a JVM that is started meanwhile fork its Python processes. One that runs already goes on
    as it began."""
    if _has_jvm():
        yield
        return
    path = os.pathsep.join(filter(None, (str(SITE), os.environ.get(PATH))))
    given = {PATH: path, THREADS: os.environ.get(THREADS, ONE_CORE[THREADS])}
    with contextlib.suppress(OSError):
        given[SERVER] = start_server()
    with environment(given):
        yield


def start_server() -> str:
    """The path of its socket. Requests wait until it has imported everything."""
    directory = tempfile.mkdtemp(prefix="millstream-")
    path = f"{directory}/python"
    try:
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(path)
            listening.listen()
            _servers.append(
                subprocess.Popen(
                    [sys.executable, "-m", MODULE, str(listening.fileno())],
                    env=ONE_CORE | os.environ | LIKE_SPARK,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL,
                    pass_fds=[listening.fileno()],
                )
            )
    except OSError:
        Path(path).unlink(missing_ok=True)
        Path(directory).rmdir()
        raise
    return path


def _has_jvm() -> bool:
    from pyspark import SparkContext

    return SparkContext._gateway is not None
