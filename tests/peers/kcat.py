"""kcat (librdkafka's command line), behind the same interface as the other clients.

It is older than the rest (Debian's is librdkafka 2.0) and speaks through its command line: text
in, JSON out. It reports no positions, so `produce` answers none.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from typing import Any

from tests.peers.cache import require_command
from tests.peers.patience import PATIENCE_SECONDS
from tests.peers.programs import Member, Program, ProgramError, Record


class Kcat:
    name = "kcat"

    def __repr__(self) -> str:
        return self.name

    def prepare(self) -> None:
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
        """One run per set of headers and partition, since kcat takes those as options."""
        settings = {
            "compression.codec": compression,
            "acks": acks,
            "enable.idempotence": str(idempotent).lower(),
            "linger.ms": 20,
            **(config or {}),
        }
        for run in _runs(records):
            options = [f"-X{name}={value}" for name, value in settings.items()]
            options += [f"-H{name}={(value or b'').decode()}" for name, value in run[0].headers]
            if run[0].partition is not None:
                options.append(f"-p{run[0].partition}")
            lines = b"".join(
                (record.key or b"") + b"\x01" + (record.value or b"") + b"\x02" for record in run
            )
            delimiters = ["-K\\x01", "-D\\x02", "-Z"]
            self._run(["-P", "-b", bootstrap, "-t", topic, *delimiters, *options], lines)
        return []

    def consume(
        self, bootstrap: str, topic: str, count: int, config: dict[str, Any] | None = None
    ) -> list[Record]:
        options = [f"-X{name}={value}" for name, value in (config or {}).items()]
        arguments = ["-C", "-b", bootstrap, "-t", topic, "-o", "beginning", "-c", str(count)]
        output = self._run([*arguments, "-J", "-u", "-q", *options])
        return [_record(json.loads(line)) for line in output.splitlines() if line.strip()]

    def join(
        self, bootstrap: str, topic: str, group: str, config: dict[str, Any] | None = None
    ) -> Member:
        raise NotImplementedError("kcat's members are started by its own test")

    def close(self) -> None:
        """Nothing stays open between two calls."""

    def metadata(self, bootstrap: str, topic: str) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(self._run(["-L", "-J", "-b", bootstrap, "-t", topic]))
        return answer

    def group_reader(self, bootstrap: str, topic: str, group: str) -> Program:
        """A group member whose records come as kcat's JSON lines; ends when killed."""
        address = ["-b", bootstrap, "-G", group, "-Xauto.offset.reset=earliest"]
        return Program([self._command(), *address, "-J", "-u", "-q", topic])

    def _command(self) -> str:
        return require_command("kcat", "install it with `apt-get install kcat` (as root)")

    def _run(self, arguments: Sequence[str], stdin: bytes = b"") -> str:
        result = subprocess.run(
            [self._command(), "-m100", *arguments],  # seconds for metadata, instead of five
            input=stdin,
            capture_output=True,
            timeout=PATIENCE_SECONDS,
        )
        if result.returncode != 0:
            raise ProgramError(result.stderr.decode())
        return result.stdout.decode()


def _runs(records: Sequence[Record]) -> list[list[Record]]:
    runs: list[list[Record]] = []
    for record in records:
        last = runs[-1][0] if runs else None
        if last and (last.headers, last.partition) == (record.headers, record.partition):
            runs[-1].append(record)
        else:
            runs.append([record])
    return runs


def _record(fields: dict[str, Any]) -> Record:
    headers = fields.get("headers") or []
    pairs = zip(headers[::2], headers[1::2], strict=True)
    return Record(
        key=None if fields["key"] is None else fields["key"].encode(),
        value=None if fields["payload"] is None else fields["payload"].encode(),
        headers=tuple((name, None if value is None else value.encode()) for name, value in pairs),
        partition=fields["partition"],
        offset=fields["offset"],
        timestamp=fields["ts"],
    )
