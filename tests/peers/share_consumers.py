"""Share consumers in three languages, each in a process of its own that does as it is told.

    {"action": "share", "bootstrap", "topic", "group", "explicit", "config"}   -> {"joined": true}

and then, as often as wanted, until stdin ends and the consumer is closed:

    {"do": "poll", "timeout_ms"}          -> {"records": [{"partition", "offset", "value",
                                              "delivery_count"}]}, nothing where nothing came
    {"do": "acknowledge", "types": [[partition, offset, type]]}           -> {"acknowledged": count}
    {"do": "commit"}                      -> {"partitions": [[partition, error or null]]}
    {"do": "callbacks"}                   -> {"callbacks": [[partition, [offset], error or null]]},
                                             what was said of acknowledgements since the last time

Errors of acknowledgements are Kafka's names for them. What goes wrong otherwise is answered with
{"error": text}, and the consumer is asked on. `explicit` is the acknowledgement mode; franz-go has
but one, in which the next poll accepts what nobody acknowledged, and so does "commit" for it where
`explicit` is false.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from tests.peers.clients import go_program
from tests.peers.java_runtime import java_program
from tests.peers.patience import PATIENCE_SECONDS
from tests.peers.programs import Program, ProgramError, python_program
from tests.peers.share_member import ACCEPT


class Delivered(NamedTuple):
    """A record in the hands of a share consumer."""

    partition: int
    offset: int
    value: str
    delivery_count: int


class Told(NamedTuple):
    """What a client's callback heard of acknowledgements."""

    partition: int
    offsets: list[int]
    error: str | None


LONG_POLL_SECONDS = 30.0


class ShareConsumer:
    def __init__(self, program: Program) -> None:
        self._program = program

    def __enter__(self) -> ShareConsumer:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def poll(self, timeout_seconds: float = 1.0) -> list[Delivered]:
        """What one poll brings; nothing, maybe."""
        answer = self._ask(do="poll", timeout_ms=int(timeout_seconds * 1000))
        return [Delivered(**fields) for fields in answer["records"]]

    def receive(self, timeout_seconds: float = PATIENCE_SECONDS) -> list[Delivered]:
        """What the first poll brings that brings something.

        Polls are long: one that ends without records may leave a fetch under way, with which the
        client takes records that nobody has asked it for.
        """
        deadline = time.monotonic() + timeout_seconds
        while True:
            records = self.poll(LONG_POLL_SECONDS)
            if records:
                return records
            if time.monotonic() > deadline:
                raise ProgramError(f"nothing came in {timeout_seconds} s")

    def acknowledge(self, records: Iterable[Delivered], kind: int = ACCEPT) -> None:
        self._ask(do="acknowledge", types=[[it.partition, it.offset, kind] for it in records])

    def commit(self) -> dict[int, str | None]:
        """Send what is acknowledged; the error, if any, of each partition concerned."""
        return dict(self._ask(do="commit")["partitions"])

    def callbacks(self) -> list[Told]:
        return [Told(*it) for it in self._ask(do="callbacks")["callbacks"]]

    def accept_all(self, count: int) -> list[Delivered]:
        """Take and accept records until there are so many."""
        taken: list[Delivered] = []
        while len(taken) < count:
            records = self.receive()
            self.acknowledge(records)
            assert set(self.commit().values()) == {None}
            taken += records
        return taken

    def close(self) -> None:
        self._program.close()

    def kill(self) -> None:
        """kill -9: the broker learns of it from the connection's end."""
        self._program.kill()

    @contextlib.contextmanager
    def suspended(self) -> Iterator[None]:
        """The process is stopped meanwhile: the broker hears nothing from it."""
        self._program.suspend()
        try:
            yield
        finally:
            self._program.resume()

    def _ask(self, **command: Any) -> dict[str, Any]:
        self._program.send(command)
        return self._program.receive()


class ShareClient:
    """A client that has share consumers."""

    def __init__(self, name: str, command: Callable[[], list[str]]) -> None:
        self.name = name
        self._command = command

    def __repr__(self) -> str:
        return self.name

    def prepare(self) -> None:
        """Fetch and build what the client needs; raises `PeerMissing` where that cannot be had."""
        self._command()

    def join(
        self, bootstrap: str, topic: str, group: str, *, explicit: bool = True, **config: Any
    ) -> ShareConsumer:
        """A consumer of the topic; `max_poll_records=5` becomes the setting `max.poll.records`."""
        program = Program(self._command())
        named = {name.replace("_", "."): value for name, value in config.items()}
        program.send(
            {
                "action": "share",
                "bootstrap": bootstrap,
                "topic": topic,
                "group": group,
                "explicit": explicit,
                "config": named,
            }
        )
        program.receive()
        return ShareConsumer(program)


SHARE_CLIENTS: dict[str, ShareClient] = {
    "confluent": ShareClient("confluent", lambda: python_program("confluent_share_program")),
    "java": ShareClient("java", lambda: java_program("ShareProgram", sources="java/share")),
    "franz-go": ShareClient("franz-go", lambda: list(go_program())),
}
