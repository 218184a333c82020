"""A process that works on versions without Spark, or is killed while it does.

    python -m tests.pipelines.versions.operating URL BOOTSTRAP DIRECTORY

reads lines `OPERATION PIPELINE KILL_AT` and prints `end STATUS` when the operation has ended. Each
operation runs in a process of its own, which kills itself with SIGKILL at that call: one before and
one after each statement of the database, and around each step on brokers and files. 0 kills none,
`before:note_switch` and `after:note_switch` kill at a step by its name.

A pipeline `p` writes the tables `p_a` and `p_b`, and the topic `p` if its name ends in `-topic`.
Rows contain the version that wrote them.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas  # noqa: F401  pyarrow would import it in every child
import psycopg
import pyarrow as pa

from millstream.client.cluster import Cluster
from millstream.client.producing import RawProducer
from millstream.pipelines.running.settings import Settings
from millstream.pipelines.stores import TableSpec, open_store, sqlite
from millstream.pipelines.versions import carrying, halting, removing, switching, topics
from millstream.pipelines.versions.catalog import open_catalog
from millstream.pipelines.versions.deploying import publish, register
from millstream.pipelines.versions.registry import (
    TableOutput,
    Version,
    catch_up,
    identity_of,
    physical_table,
    private_topic,
)
from millstream.pipelines.versions.removing import remove_version
from millstream.pipelines.versions.switching import switch_readers
from millstream.pipelines.writing.decisions import Decision, TaskTransaction, encode_decision
from millstream.records.record import Record, encode_batch

STEPS = {
    carrying: ("copy_checkpoint", "copy_tables"),
    removing: ("forget_decisions", "delete_topics", "delete_group", "delete_checkpoint"),
    halting.Operator: ("_claim", "_running", "release"),
    switching: ("complete_last_batch", "output_ends", "swap_views", "note_switch"),
}
LEASE_SECONDS = 0.1  # so that the halt of a process that was killed is not waited for
TIMEOUT_MS = 60_000
ORDERS = "operated-orders"  # has ORDER_COUNT records
ORDER_COUNT = 10
POSITION = f'{{"{ORDERS}": {{"0": {ORDER_COUNT}}}}}'


def tables_of(pipeline: str) -> tuple[str, str]:
    name = pipeline.replace("-", "_")
    return f"{name}_a", f"{name}_b"


def described(pipeline: str, version: str, checkpoint: str = "") -> Version:
    query = identity_of(pipeline, version)
    return Version(
        version,
        (ORDERS,),
        tuple(TableOutput(it, physical_table(it, version), ("id",)) for it in tables_of(pipeline)),
        (pipeline,) if pipeline.endswith("-topic") else (),
        checkpoint=checkpoint,
        transactional_id=f"millstream-{query}",
        group=query,
        is_caught_up=True,
    )


def make_checkpoint(directory: Path, *, offsets: int = 3, commits: int = 3, **owner: Any) -> None:
    """The files of a query that has completed so many batches."""
    for name, count in (("offsets", offsets), ("commits", commits)):
        (directory / name).mkdir(parents=True)
        for number in range(count):
            (directory / name / str(number)).write_text("v1")
    (directory / "metadata").write_text('{"id": "old"}')
    (directory / "millstream.lock").write_text("1")
    (directory / "millstream.json").write_text(json.dumps({"pipeline": "revenue", **owner}))


class Operations:
    """What can be done to the versions 1 and 2 of a pipeline."""

    def __init__(self, url: str, bootstrap: str, directory: Path) -> None:
        self.url = url
        self._directory = directory
        self.settings = Settings(directory, broker=bootstrap, store=url)

    def ran(self, pipeline: str) -> None:
        """Version 1 has run without being deployed."""
        self._write(pipeline, "1", list(tables_of(pipeline)))

    def deployed(self, pipeline: str) -> None:
        """Both versions are deployed and stand at one place; version 1 is in force."""
        for version in ("1", "2"):
            self._deploy_and_write(pipeline, version)

    def deployed_again(self, pipeline: str) -> None:
        """Version 2 is deployed after its removal, and has written its tables."""
        self._deploy_and_write(pipeline, "2")

    def deploy(self, pipeline: str) -> None:
        self._register(pipeline, "2")

    def switch(self, pipeline: str) -> None:
        with open_catalog(self.url) as catalog:
            switch_readers(catalog, self.settings, pipeline, "2")

    def rollback(self, pipeline: str) -> None:
        with open_catalog(self.url) as catalog:
            switch_readers(catalog, self.settings, pipeline)

    def remove(self, pipeline: str) -> None:
        with open_catalog(self.url) as catalog:
            remove_version(catalog, self.settings, pipeline, "2")

    def deployed_with_state(self, pipeline: str) -> None:
        """Version 1 is deployed, and its checkpoint stands where its tables do."""
        checkpoint = self._checkpoint(pipeline, "1")
        make_checkpoint(checkpoint, state=["aggregate"])
        (checkpoint / "offsets" / "2").write_text(f"v1\n{{}}\n{POSITION}")
        with open_catalog(self.url) as catalog:
            register(catalog, pipeline, described(pipeline, "1", str(checkpoint)))
        self._write(pipeline, "1", [physical_table(it, "1") for it in tables_of(pipeline)])
        with open_catalog(self.url) as catalog:
            catalog.run(lambda work: publish(work, pipeline, "1"), "publish")

    def carry(self, pipeline: str) -> None:
        version = described(pipeline, "2", str(self._checkpoint(pipeline, "2")))
        with open_catalog(self.url) as catalog:
            document = register(catalog, pipeline, replace(version, state_from="1"))
            carrying.carry_state(catalog, self.settings, document, "2")

    def _checkpoint(self, pipeline: str, version: str) -> Path:
        return self._directory / identity_of(pipeline, version)

    def deploy_third(self, pipeline: str) -> None:
        self._register(pipeline, "3")

    def remove_third(self, pipeline: str) -> None:
        with open_catalog(self.url) as catalog:
            remove_version(catalog, self.settings, pipeline, "3")

    def _deploy_and_write(self, pipeline: str, version: str) -> None:
        self._register(pipeline, version)
        physical = [physical_table(it, version) for it in tables_of(pipeline)]
        self._write(pipeline, version, physical)
        with open_catalog(self.url) as catalog:
            catalog.run(lambda work: publish(work, pipeline, version), "publish")

    def _register(self, pipeline: str, version: str) -> None:
        with open_catalog(self.url) as catalog:
            register(catalog, pipeline, described(pipeline, version))
            catalog.run(
                lambda work: work.save(catch_up(work.load(pipeline), version)),  # type: ignore[arg-type]
                "catch up",
            )

    def _write(self, pipeline: str, version: str, tables: list[str]) -> None:
        """A batch. That of a pipeline with a topic is decided, and its transaction left open, as
        by a version that was killed then."""
        query = identity_of(pipeline, version)
        rows = pa.table({"id": [0, 1], "version": [version, version]})
        specs = [(rows, TableSpec(it, ("id",))) for it in tables]
        with open_store(self.url) as store:
            store.write_arrow(specs, 0, query, POSITION)
            if not pipeline.endswith("-topic"):
                return
            topic = pipeline if version == "1" else private_topic(pipeline, version)
            with Cluster(self.settings.required_broker()) as cluster:
                decision = leave_open(cluster, described(pipeline, version), topic)
            text = encode_decision(decision).decode()
            store.write_many([], 1, query, POSITION, decision=text)


def leave_open(cluster: Cluster, version: Version, topic: str) -> Decision:
    """What a driver and a task do until their batch is decided."""
    protocol = topics._protocol(cluster, version)
    begun = protocol.begin()
    producer = RawProducer(cluster)
    producer.begin(f"{protocol.task_prefix}0-0", TIMEOUT_MS)
    producer.join([(topic, 0)])
    identity = producer.identity(topic, 0)
    batch = encode_batch(
        [Record(0, 0, None, version.version.encode())],
        producer_id=identity.producer_id,
        producer_epoch=identity.epoch,
        base_sequence=identity.base_sequence,
        is_transactional=True,
    )
    producer.send(topic, 0, batch, 1)
    written = tuple(producer.flush())
    assert producer.transaction is not None
    task = TaskTransaction(producer.transaction, written)
    return Decision(1, (task,), {(ORDERS, 0): ORDER_COUNT}, "checkpoint", begun.epoch)


def main(url: str, bootstrap: str, directory: str) -> None:
    operations = Operations(url, bootstrap, Path(directory))
    halting.LEASE_SECONDS = LEASE_SECONDS
    for line in sys.stdin:
        operation, pipeline, kill_at = line.split()
        child = os.fork()
        if child == 0:
            kill_at_call(kill_at)
            getattr(operations, operation)(pipeline)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        print("end", os.waitstatus_to_exitcode(status), flush=True)


def kill_at_call(wanted: str) -> None:
    """Count the calls, and end at the one with this number or name."""
    counted = 0

    def step(name: str) -> None:
        nonlocal counted
        counted += 1
        if wanted in (str(counted), name):
            os.kill(os.getpid(), signal.SIGKILL)

    def counting(call: Callable[..., Any]) -> Callable[..., Any]:
        def counted_call(*arguments: Any, **options: Any) -> Any:
            step(f"before:{call.__name__}")
            result = call(*arguments, **options)
            step(f"after:{call.__name__}")
            return result

        return counted_call

    class CountingConnection(sqlite.sqlite3.Connection):
        execute = counting(sqlite.sqlite3.Connection.execute)

    connect = sqlite.sqlite3.connect
    sqlite.sqlite3.connect = lambda *arguments, **options: connect(  # type: ignore[assignment]
        *arguments, factory=CountingConnection, **options
    )
    psycopg.Connection.execute = counting(psycopg.Connection.execute)  # type: ignore[method-assign]
    psycopg.Transaction.__exit__ = counting(psycopg.Transaction.__exit__)  # type: ignore[method-assign]
    for module, names in STEPS.items():
        for name in names:
            setattr(module, name, counting(getattr(module, name)))


if __name__ == "__main__":
    main(*sys.argv[1:])
