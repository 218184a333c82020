"""A Spark standalone cluster out of PySpark's own jars: a master and workers.

Everything listens on addresses of this machine, on free ports; executors have directories below the
worker's, as they do on machines of their own, and neither the environment nor the directory of the
driver.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyspark

from tests.peers.java_runtime import java_command
from tests.peers.servers import Server, free_port, wait_until_listening

SPARK_HOME = Path(pyspark.__file__).parent
_START_SECONDS_MAX = 120
_DAEMON_MEMORY = "256m"
_EXECUTOR_MEMORY_MIB = 640


@dataclass
class SparkCluster:
    """A master with its workers."""

    master: Server
    directory: Path
    workers: list[Server] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"spark://{self.master.host}:{self.master.port}"

    def executors(self) -> list[Path]:
        """The directories of all executors that ever ran: worker/app/number."""
        return sorted(self.directory.glob("worker-*/*/app-*/*"))

    def stop(self) -> None:
        """Workers first: with them go what executors there may be."""
        for it in (*self.workers, self.master):
            it.stop()


def start_spark_cluster(
    directory: Path, hosts: Sequence[str] = ("127.0.0.1", "127.0.0.1"), cores: int = 1
) -> SparkCluster:
    """With a worker on each host; returns when all have registered."""
    java_command()
    directory.mkdir(parents=True)
    port = free_port()
    arguments = ["--host", "127.0.0.1", "--port", str(port), "--webui-port", str(free_port())]
    master = _start("master", "127.0.0.1", port, directory / "master", arguments)
    cluster = SparkCluster(master, directory)
    try:
        for number, host in enumerate(hosts):
            port = free_port()
            home = directory / f"worker-{number}"
            arguments = ["--host", host, "--port", str(port), "--cores", str(cores)]
            arguments += ["--memory", f"{_EXECUTOR_MEMORY_MIB}m", "--work-dir", str(home / "work")]
            arguments += ["--webui-port", str(free_port()), cluster.url]
            cluster.workers.append(_start("worker", host, port, home, arguments))
        for number in range(len(hosts)):
            _wait_until_registered(directory / f"worker-{number}" / "log")
    except BaseException:
        cluster.stop()
        raise
    return cluster


def spark_environment(**more: str) -> dict[str, str]:
    """What a shell on some machine has: nothing of ours, and nothing of Spark's driver."""
    ours = ("MILLSTREAM_", "PYSPARK_", "SPARK_", "PYTHON")
    clean = {it: value for it, value in os.environ.items() if not it.startswith(ours)}
    return {**clean, "SPARK_LOCAL_IP": "127.0.0.1", **more}


def spark_submit(*arguments: str | Path) -> list[str]:
    return [str(SPARK_HOME / "bin" / "spark-submit"), *map(str, arguments)]


def _start(kind: str, host: str, port: int, home: Path, arguments: list[str]) -> Server:
    main_class = f"org.apache.spark.deploy.{kind}.{kind.capitalize()}"
    home.mkdir()
    log = home / "log"
    with log.open("ab") as output:
        process = subprocess.Popen(
            [SPARK_HOME / "bin" / "spark-class", main_class, *arguments],
            stdout=output,
            stderr=output,
            cwd=home,
            env=spark_environment(
                SPARK_DAEMON_MEMORY=_DAEMON_MEMORY,
                SPARK_DAEMON_JAVA_OPTS="-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
            ),
        )
    server = Server(f"spark-{kind}", host, port, process, home)
    wait_until_listening(server, log, _START_SECONDS_MAX)
    return server


def _wait_until_registered(log: Path) -> None:
    deadline = time.monotonic() + _START_SECONDS_MAX
    while "Successfully registered with master" not in log.read_text(errors="replace"):
        if time.monotonic() > deadline:
            raise RuntimeError(f"a worker has not registered:\n{log.read_text()[-2000:]}")
        time.sleep(0.1)
