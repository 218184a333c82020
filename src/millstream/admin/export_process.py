"""Exports records of a topic in a child process, so that reading and writing them delays nothing in
this one, which may be a broker's.

    with ExportProcess("localhost:9092", settings, "orders", Asked(), "csv") as export:
        while (chunk := export.read()) is not None:
            ...  # empty: nothing yet

The child gets the request and the credentials through a pipe, and exits when that pipe is closed.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict
from typing import Self

from millstream.admin.browsing import Asked
from millstream.admin.exporting import CHUNK_BYTES, EXIT_REFUSED, ExportFailed
from millstream.errors import ApiError, ErrorCode, MillstreamError

MODULE = "millstream.admin.export_child"
WAIT_SECONDS = 0.5  # for the child, before the caller is asked whether to go on


class ExportProcess:
    """See the module. One thread at a time."""

    def __init__(
        self,
        bootstrap_servers: str,
        client_settings: Mapping[str, str],
        topic: str,
        asked: Asked,
        kind: str,
    ) -> None:
        """`kind` is json, csv or parquet."""
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (closed by `close`)
        self._child = subprocess.Popen(
            [sys.executable, "-m", MODULE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
        )
        request = {
            "bootstrap_servers": bootstrap_servers,
            "settings": dict(client_settings),
            "topic": topic,
            "asked": asdict(asked),
            "kind": kind,
        }
        assert self._child.stdin is not None
        self._child.stdin.write(json.dumps(request).encode() + b"\n")
        self._child.stdin.flush()

    def read(self) -> bytes | None:
        """What the child has written, at the latest after `WAIT_SECONDS`; None at the end. Raises
        `ApiError` if a broker refused it, and `ExportFailed`."""
        assert self._child.stdout is not None
        descriptor = self._child.stdout.fileno()
        ready = select.poll()
        ready.register(descriptor, select.POLLIN)
        if not ready.poll(WAIT_SECONDS * 1000):
            return b""
        chunk = os.read(descriptor, CHUNK_BYTES)
        if chunk:
            return chunk
        exit_code = self._child.wait()
        if exit_code != 0:
            raise self._failure(exit_code)
        return None

    def _failure(self, exit_code: int) -> MillstreamError:
        self._errors.seek(0)
        lines = self._errors.read().decode("utf-8", "replace").strip().splitlines()
        if not lines:
            return ExportFailed("the export was ended")
        if exit_code != EXIT_REFUSED:
            return ExportFailed(lines[-1])
        name, _, message = lines[-1].partition(" ")
        return ApiError(ErrorCode[name], message or None)

    def close(self) -> None:
        """The child ends with it."""
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        self._child.kill()
        self._child.wait()
        for file in (self._child.stdin, self._child.stdout, self._errors):
            file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
