"""A process that is asked with lines of JSON, and answers each with one."""

from __future__ import annotations

import json
import queue
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from tests.peers.patience import PATIENCE_SECONDS


class AnsweringProcess:
    """Answers one question after another."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._pump, daemon=True).start()

    def ask(self, question: Any) -> dict[str, Any]:
        """The answer, which may be an error of the process's own."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        try:
            line = self._lines.get(timeout=PATIENCE_SECONDS)
            return json.loads(line)  # type: ignore[no-any-return]
        except BaseException:
            self._process.kill()  # the next question would get this one's answer
            raise

    def _pump(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)


@contextmanager
def answering(command: Sequence[str]) -> Iterator[AnsweringProcess]:
    """The process, which is killed at the end."""
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        try:
            yield AnsweringProcess(process)
        finally:
            process.kill()
