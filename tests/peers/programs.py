"""Clients in many languages behind one interface, each a small program in a process of its own.

A program reads commands from stdin, one JSON object a line, and answers each with one line:

    {"action": "produce", "bootstrap", "topic", "records": [RECORD], "compression", "acks",
     "idempotent", "config"}                    -> {"positions": [[partition, offset], ...]}
    {"action": "consume", "bootstrap", "topic", "count", "config"}
        reads every partition from its beginning -> {"records": [RECORD, ...]}
    {"action": "member", "bootstrap", "topic", "group", "config"}
        joins the group and stays until stdin ends; says {"joined": true} first, then
        {"assigned": [partition, ...]} at each change (all it now owns) and {"record": RECORD}
    {"action": "transact", "bootstrap", "topic", "transactional_id",
     "transactions": [{"commit": bool, "records": [RECORD]}], "config"}
        one transaction after another, each committed or aborted       -> {"transactions": count}
    {"action": "transform", "bootstrap", "source", "target", "group", "transactional_id", "count",
     "config"}
        reads `count` records of `source` as a member of the group, read committed, and writes each
        value in capitals to `target`; records and offsets in one transaction for every poll, the
        second of which is aborted and done again                      -> {"transactions": count}

RECORD is {"partition", "offset", "timestamp", "key", "value", "headers": [[name, value]]}, bytes in
base64. A command that fails is answered with {"error": text}. `config` holds settings under the
client's own names and is left out by programs that have none.
"""

from __future__ import annotations

import base64
import json
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tests.peers.patience import PATIENCE_SECONDS


@dataclass(frozen=True)
class Record:
    """What goes into a log and comes out again; positions are filled in by the broker."""

    key: bytes | None = None
    value: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    partition: int | None = None
    offset: int | None = None
    timestamp: int | None = None

    @property
    def content(self) -> tuple[Any, ...]:
        return (self.key, self.value, self.headers)


class ProgramError(AssertionError):
    """The client reported an error."""


class Program:
    """One running client program."""

    def __init__(self, command: Sequence[str]) -> None:
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=None, text=True
        )
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def send(self, command: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()

    def receive(self, timeout_seconds: float = PATIENCE_SECONDS) -> dict[str, Any]:
        try:
            line = self._lines.get(timeout=timeout_seconds)
        except queue.Empty:
            raise ProgramError(f"no answer in {timeout_seconds} s") from None
        if line is None:
            raise ProgramError(f"the program ended with code {self._process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise ProgramError(answer["error"])
        return answer

    def suspend(self) -> None:
        """It does nothing until it is resumed, and its connections stay open."""
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def close(self, timeout_seconds: float = PATIENCE_SECONDS) -> None:
        """End of input: the program leaves its group and ends."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(timeout_seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            raise ProgramError("the program did not end when its input did") from None

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put(None)


class Member:
    """A group member in a process of its own: what it owns and what it has read."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self.partitions: set[int] = set()
        self.records: list[Record] = []

    def wait_until(
        self, condition: Callable[[Member], bool], timeout_seconds: float = PATIENCE_SECONDS
    ) -> None:
        deadline = time.monotonic() + timeout_seconds
        while not condition(self):
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                owned = sorted(self.partitions)
                raise ProgramError(f"owns {owned} and has {len(self.records)} records")
            self._take(remaining)

    def drain(self) -> None:
        """Take in what has been said already."""
        while not self._program._lines.empty():
            self._take(1)

    def close(self) -> None:
        self._program.close()

    def kill(self) -> None:
        self._program.kill()

    def _take(self, timeout_seconds: float) -> None:
        try:
            event = self._program.receive(timeout_seconds)
        except ProgramError as error:
            if "no answer" in str(error):
                return
            raise
        if "assigned" in event:
            self.partitions = set(event["assigned"])
        elif "record" in event:
            self.records.append(decode_record(event["record"]))


class Client:
    """A Kafka client of some language; one long-lived program answers its commands."""

    def __init__(self, name: str, command: Callable[[], list[str]]) -> None:
        self.name = name
        self._command = command
        self._program: Program | None = None

    def __repr__(self) -> str:
        return self.name

    def prepare(self) -> None:
        """Fetch and build what the client needs; raises `PeerMissing` where that cannot be had."""
        self._command()

    def produce(
        self,
        bootstrap: str,
        topic: str,
        records: Sequence[Record],
        *,
        compression: str = "none",
        acks: str = "all",
        idempotent: bool = False,
        config: dict[str, Any] | None = None,
    ) -> list[tuple[int, int]]:
        answer = self._ask(
            action="produce",
            bootstrap=bootstrap,
            topic=topic,
            records=[encode_record(record) for record in records],
            compression=compression,
            acks=acks,
            idempotent=idempotent,
            config=config or {},
        )
        return [(partition, offset) for partition, offset in answer["positions"]]

    def consume(
        self, bootstrap: str, topic: str, count: int, config: dict[str, Any] | None = None
    ) -> list[Record]:
        answer = self._ask(
            action="consume", bootstrap=bootstrap, topic=topic, count=count, config=config or {}
        )
        return [decode_record(record) for record in answer["records"]]

    def transact(
        self,
        bootstrap: str,
        topic: str,
        transactional_id: str,
        transactions: Sequence[tuple[bool, Sequence[bytes]]],
        *,
        partition: int = 0,
        config: dict[str, Any] | None = None,
    ) -> None:
        """Transactions in turn: whether each is committed, and the values it writes."""
        described = [
            {
                "commit": commit,
                "records": [
                    encode_record(Record(value=value, partition=partition)) for value in values
                ],
            }
            for commit, values in transactions
        ]
        answer = self._ask(
            action="transact",
            bootstrap=bootstrap,
            topic=topic,
            transactional_id=transactional_id,
            transactions=described,
            config=config or {},
        )
        assert answer["transactions"] == len(transactions)

    def transform(
        self,
        bootstrap: str,
        source: str,
        target: str,
        group: str,
        transactional_id: str,
        count: int,
    ) -> int:
        """Consume, transform, produce; how many transactions that took."""
        answer = self._ask(
            action="transform",
            bootstrap=bootstrap,
            source=source,
            target=target,
            group=group,
            transactional_id=transactional_id,
            count=count,
            config={},
        )
        return int(answer["transactions"])

    def join(
        self, bootstrap: str, topic: str, group: str, config: dict[str, Any] | None = None
    ) -> Member:
        program = Program(self._command())
        program.send(
            {
                "action": "member",
                "bootstrap": bootstrap,
                "topic": topic,
                "group": group,
                "config": config or {},
            }
        )
        program.receive()
        return Member(program)

    def close(self) -> None:
        if self._program is not None:
            self._program.kill()
            self._program = None

    def _ask(self, **command: Any) -> dict[str, Any]:
        if self._program is None:
            self._program = Program(self._command())
        try:
            self._program.send(command)
            return self._program.receive()
        except (ProgramError, BrokenPipeError):
            self.close()
            raise


def python_program(module: str) -> list[str]:
    return [sys.executable, "-m", f"tests.peers.python.{module}"]


def encode_record(record: Record) -> dict[str, Any]:
    return {
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        "key": encode_bytes(record.key),
        "value": encode_bytes(record.value),
        "headers": [[name, encode_bytes(value)] for name, value in record.headers],
    }


def decode_record(fields: dict[str, Any]) -> Record:
    return Record(
        key=decode_bytes(fields["key"]),
        value=decode_bytes(fields["value"]),
        headers=tuple((name, decode_bytes(value)) for name, value in fields["headers"] or []),
        partition=fields["partition"],
        offset=int(fields["offset"]) if fields["offset"] is not None else None,
        timestamp=int(fields["timestamp"]) if fields["timestamp"] is not None else None,
    )


def encode_bytes(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()


def decode_bytes(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)
