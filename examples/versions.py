"""Versions side by side: deploy a second version, compare it, move readers to it and back.

    python examples/versions.py [HOST:PORT]

Writes a pipeline into a new directory and types the commands that you would type there. Without an
address it starts its own broker; with one it uses that cluster, Apache Kafka for instance.
"""

import json
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SHOP = """
from pyspark.sql import functions as F

from millstream.pipelines import pipeline, table, topic

orders = topic("shop.orders", schema="id long, user string, amount double")
alerts = topic("shop.alerts")


@pipeline(reads=orders, writes={"revenue": table("revenue", key="user"), "alerts": alerts})
def revenue(orders):
    return {
        "revenue": orders.groupBy("user").agg(F.sum("amount").alias("total")),
        "alerts": orders.where("amount > 100").selectExpr(
            "user as key", "to_json(struct(id, user, amount)) as value"
        ),
    }
"""
# Version 2 does not count refunds, and alerts of orders from 50 on.
SHOP_2 = SHOP.replace("orders.groupBy", 'orders.where("amount > 0").groupBy').replace("100", "50")
ORDERS = [(1, "ada", 120.0), (2, "bob", 60.0), (3, "ada", -20.0), (4, "eve", 10.0)]
LATER = [(5, "bob", 70.0), (6, "eve", 300.0)]
PATIENCE_SECONDS = 180


class Shell:
    """Commands in the directory of the shop; each is printed with its output."""

    def __init__(self, directory: Path, broker: str) -> None:
        self.directory = directory
        scripts = Path(sys.executable).parent
        self._environment = os.environ | {
            "PATH": f"{scripts}:{os.environ['PATH']}",
            "MILLSTREAM_BOOTSTRAP_SERVERS": broker,
            "COLUMNS": "100",
        }
        self._running: list[subprocess.Popen[bytes]] = []

    def run(self, *command: str, exit_code: int = 0, quiet: bool = False) -> str:
        done = subprocess.run(
            command, cwd=self.directory, env=self._environment, capture_output=True, text=True
        )
        if not quiet:
            print("$", *command, f"\n{done.stdout}{done.stderr}")
        assert done.returncode == exit_code, done.stdout + done.stderr
        return done.stdout

    def start(self, *command: str) -> None:
        """In the background, as in another terminal."""
        print("$", *command, "&\n")
        log = self.directory / f"terminal-{len(self._running)}.log"
        with log.open("wb") as output:
            self._running.append(
                subprocess.Popen(
                    command,
                    cwd=self.directory,
                    env=self._environment,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                )
            )

    def produce(self, orders: list[tuple[int, str, float]]) -> None:
        values = [json.dumps({"id": id, "user": user, "amount": it}) for id, user, it in orders]
        self.run("millstream", "produce", "shop.orders", *values)

    def wait_for_version(self, version: str, records: int) -> None:
        """Until the version has read all records, and is known to have caught up."""

        def has_read() -> bool:
            for process in self._running:
                assert process.poll() is None, self.logs()
            if not (self.directory / ".millstream" / "store.db").exists():
                return False
            found = json.loads(self.run("millstream", "versions", "list", "--json", quiet=True))
            return any(
                it["version"] == version
                and it["state"] == "caught up"
                and sum(it["offsets"].get("shop.orders", {}).values()) == records
                for it in found
            )

        deadline = time.monotonic() + PATIENCE_SECONDS
        while not has_read():
            assert time.monotonic() < deadline, self.logs()
            time.sleep(1)

    def revenue(self) -> dict[str, float]:
        """As a reader of the table reads it, who knows nothing of versions."""
        with sqlite3.connect(self.directory / ".millstream" / "store.db") as database:
            return dict(database.execute("SELECT user, total FROM revenue"))

    def alerts(self, count: int) -> list[int]:
        """The first ones in the topic, as a reader reads it."""
        command = ("consume", "shop.alerts", "--from-beginning", "--count", str(count))
        lines = self.run("millstream", *command).splitlines()
        return [json.loads(it)["id"] for it in lines]

    def logs(self) -> str:
        return "\n".join(it.read_text() for it in sorted(self.directory.glob("terminal-*.log")))

    def stop(self) -> None:
        """Ctrl-C in each terminal."""
        for process in self._running:
            process.send_signal(signal.SIGINT)
        for process in self._running:
            process.wait()
        self._running.clear()


def walk(shell: Shell) -> None:
    shop = shell.directory / "shop.py"
    shop.write_text(SHOP)
    shell.run("millstream", "topic", "create", "shop.orders")
    shell.run("millstream", "topic", "create", "shop.alerts")
    shell.produce(ORDERS)
    shell.start("millstream", "deploy", "shop.py:revenue")
    shell.wait_for_version("1", 4)
    assert shell.revenue() == {"ada": 100.0, "bob": 60.0, "eve": 10.0}

    shop.write_text(SHOP_2)
    shell.start("millstream", "deploy", "shop.py:revenue", "--version", "2")
    shell.wait_for_version("2", 4)
    shell.run("millstream", "versions", "list")
    assert shell.revenue()["ada"] == 100.0  # readers still read version 1
    found = shell.run("millstream", "diff", "revenue", "1", "2", exit_code=1)
    assert "user ada: total 100.0 -> 120.0" in found
    assert "topic shop.alerts: different" in found

    shell.run("millstream", "switch", "revenue", "2")
    assert shell.revenue()["ada"] == 120.0
    shell.produce(LATER)
    assert shell.alerts(3) == [1, 5, 6]  # 1 by version 1, the others by version 2

    shell.run("millstream", "rollback", "revenue")
    assert shell.revenue() == {"ada": 100.0, "bob": 130.0, "eve": 310.0}
    shell.stop()
    shell.run("millstream", "versions", "remove", "revenue", "2", "--yes")


def main(address: str | None = None) -> None:
    from millstream import Broker

    with tempfile.TemporaryDirectory() as directory:
        broker = Broker.start() if address is None else None
        shell = Shell(Path(directory), address or broker.bootstrap_servers)
        try:
            walk(shell)
        finally:
            shell.stop()
            if broker is not None:
                broker.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
