"""`millstream bridge` as a process that can be killed."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any


class BridgeProcess:
    """A bridge that runs in a process of its own."""

    def __init__(self, process: subprocess.Popen[str], ready: str) -> None:
        self.process, self.ready = process, ready

    def address(self, pattern: str) -> str:
        """The address behind this in the line that says that it is ready."""
        found = re.search(pattern + r"([^\s,]+)", self.ready)
        assert found is not None, f"{pattern} is not in {self.ready}"
        return found[1]

    def kill(self) -> None:
        """As kill -9 does."""
        self.process.kill()
        self.process.wait()


@contextlib.contextmanager
def running_bridge(file: Path, tables: Mapping[str, Any]) -> Iterator[BridgeProcess]:
    """Write a file, and run it until the end of the block, or until it is killed."""
    file.write_text(toml(tables))
    command = [sys.executable, "-m", "millstream.cli.entry", "bridge", str(file)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=dict(os.environ)) as it:
        try:
            assert it.stdout is not None
            ready = it.stdout.readline()
            assert "is ready" in ready, f"the bridge did not start: {ready}"
            yield BridgeProcess(it, ready)
        finally:
            if it.poll() is None:
                it.send_signal(signal.SIGTERM)
                it.wait(120)


def toml(tables: Mapping[str, Any], prefix: str = "") -> str:
    """Tables of tables, strings, numbers and lists as TOML."""
    text = "".join(
        f"{name} = {json.dumps(value)}\n"
        for name, value in tables.items()
        if not isinstance(value, Mapping)
    )
    for name, value in tables.items():
        if isinstance(value, Mapping):
            text += f"[{prefix}{json.dumps(name)}]\n" + toml(value, f"{prefix}{json.dumps(name)}.")
    return text
