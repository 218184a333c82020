"""A command of `millstream` as a process that dies at a named point, or kills or pauses there.

    python -m tests.faults.dying DIRECTORY ROLE KILL BREAK -- capture run shop.toml

A role is "capture", "broker" or a sink. KILL is `POINT:COUNT:VICTIM`, or empty: when the process
reaches the point for the COUNT-th time, the victim gets SIGKILL:

    self                     this process
    zombie                   this process stops (SIGSTOP); when it continues, it takes the step that
                             it was stopped before, and dies after it
    broker, database, ...    the process whose id is in DIRECTORY/pids/VICTIM

BREAK is one of BREAKS, or empty: a mistake that the proof has to notice. Nothing of this is in what
is tested.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from pathlib import Path
from typing import Any, NamedTuple

from tests.peers.postgres import kill_with_children

# What each role does, in the order of a round; there is a point before and after each.
STEPS = {
    "capture": ("slot", "state", "open", "start", "send", "commit", "confirm"),
    "sink": ("fetch", "apply", "rows"),
    "cache": ("fetch", "apply"),
    "lake": ("fetch", "apply", "merge"),
    "files": ("fetch", "apply", "file"),
    "search": ("fetch", "apply", "bulk", "position"),
    "broker": ("flush", "prepare", "markers", "complete"),
}
KINDS = {
    "table": ("postgres", "PostgresSink"),
    "index": ("search", "SearchSink"),
    "file": ("sqlite", "SqliteSink"),
    "cache": ("redis", "RedisSink"),
    "lake": ("delta", "DeltaSink"),
    "files": ("parquet", "ParquetSink"),
    "search": ("opensearch", "OpenSearchSink"),
}
# Steps within `apply`, and the methods that they are.
INNER_STEPS = {
    "rows": "_write",
    "merge": "_merge",
    "file": "_add",
    "bulk": "_bulk",
    "position": "_store",
}


class Kill(NamedTuple):
    """Who dies, where."""

    point: str  # "before commit"
    count: int = 1
    victim: str = "self"

    def __str__(self) -> str:
        return f"{self.point}:{self.count}:{self.victim}"


def steps_of(role: str) -> tuple[str, ...]:
    return STEPS.get(role, STEPS["sink"])


def owners(role: str) -> dict[str, tuple[Any, str]]:
    """The functions that are the steps."""
    if role == "capture":
        from tests.connect.capture.driver import POINTS

        return POINTS
    if role == "broker":
        from millstream.broker.coordinators.markers import Markers
        from millstream.broker.coordinators.transactions import TransactionCoordinator
        from millstream.storage.flush import GroupFlush

        return {
            "flush": (GroupFlush, "execute"),
            "prepare": (TransactionCoordinator, "_prepared"),
            "markers": (Markers, "_write_to"),
            "complete": (TransactionCoordinator, "_complete"),
        }
    from millstream.connect.sinks import runner

    kind = kind_of(role)
    found: dict[str, tuple[Any, str]] = {"fetch": (runner, "fetch"), "apply": (kind, "apply")}
    for step, name in INNER_STEPS.items():
        if step in steps_of(role):
            found[step] = (kind, name)
    return found


def kind_of(role: str) -> Any:
    from importlib import import_module

    module, name = KINDS[role]
    return getattr(import_module(f"millstream.connect.sinks.{module}"), name)


class Death:
    """Counts how often the point is reached, and strikes."""

    def __init__(self, directory: Path, role: str, kill: Kill) -> None:
        self._directory, self._role, self._kill = directory, role, kill
        self._reached = 0

    def install(self) -> None:
        when, _, step = self._kill.point.partition(" ")
        owner, name = owners(self._role)[step]
        original = getattr(owner, name)

        @wraps(original)
        def replaced(*arguments: Any, **named: Any) -> Any:
            if when == "before" and self._is_time():
                self._strike()
                if self._kill.victim == "zombie":
                    return self._last_step(lambda: original(*arguments, **named))
            result = original(*arguments, **named)
            if when == "after" and self._is_time():
                self._strike()
            return result

        setattr(owner, name, replaced)

    def _is_time(self) -> bool:
        self._reached += 1
        return self._reached == self._kill.count

    def _strike(self) -> None:
        (self._directory / f"{self._role}.struck").touch()
        if self._kill.victim == "zombie":
            os.kill(os.getpid(), signal.SIGSTOP)
            return
        if self._kill.victim != "self":
            pid = int((self._directory / "pids" / self._kill.victim).read_text())
            with suppress(ProcessLookupError):
                kill_with_children(pid)
                return
        os.kill(os.getpid(), signal.SIGKILL)

    def _last_step(self, step: Callable[[], Any]) -> None:
        """Of a process that slept while another one took over its work."""
        try:
            step()
        finally:
            os.kill(os.getpid(), signal.SIGKILL)


def write_without_fence() -> None:
    """A sink that does not compare the position of the target."""
    from millstream.connect.sinks import sqlite

    sqlite.check_steps = lambda steps, stored: None


def commit_to_lake_without_fence() -> None:
    """The same for Delta, whose own check does not notice it."""
    from millstream.connect.sinks import delta

    delta.check_steps = lambda steps, stored: None


def commit_position_by_itself() -> None:
    """A capture whose position is committed before the changes that lead to it."""
    from confluent_kafka import Producer

    from millstream.connect.capture import output

    own = output.Output._send_own

    def send(self: Any, partition: int, value: bytes) -> None:
        if partition != output.POSITION_PARTITION:
            own(self, partition, value)
            return
        producer = Producer({"bootstrap.servers": self._settings.broker})
        topic = self._settings.position_topic
        producer.produce(topic, value, output.KEYS[partition], partition)
        producer.flush()

    output.Output._send_own = send  # type: ignore[method-assign]


def store_position_first() -> None:
    """A sink that stores its position in a transaction of its own, before the rows."""
    from millstream.connect.sinks.search import SearchSink
    from millstream.connect.sinks.sink import Write

    whole = SearchSink.apply

    def apply(self: Any, write: Write) -> None:
        whole(self, Write(write.steps, {}))
        whole(self, Write((), write.parts))

    SearchSink.apply = apply  # type: ignore[method-assign]


BREAKS: dict[str, Callable[[], None]] = {
    "no fence": write_without_fence,
    "lake without fence": commit_to_lake_without_fence,
    "position by itself": commit_position_by_itself,
    "position first": store_position_first,
}


def main() -> None:
    directory, role, kill, broken = sys.argv[1:5]
    if broken:
        BREAKS[broken]()
    if kill:
        point, count, victim = kill.split(":")
        Death(Path(directory), role, Kill(point, int(count), victim)).install()
    from millstream.cli.entry import main as run_command

    run_command(sys.argv[6:])


if __name__ == "__main__":
    main()
