"""OpenSearch, from Maven: a single node that answers on HTTP."""

from __future__ import annotations

import http.client
import json
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.peers.java_runtime import java_program
from tests.peers.patience import PATIENCE_SECONDS
from tests.peers.servers import free_port


@dataclass
class OpenSearchServer:
    """A server's process, with its data in a directory of its own."""

    directory: Path
    port: int
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"opensearch://127.0.0.1:{self.port}"

    def start(self) -> None:
        command = java_program("OpenSearchProgram", "opensearch", ["-Xmx384m"])
        log_path = self.directory / "server.log"
        with log_path.open("ab") as log:
            self.process = subprocess.Popen(
                [*command, str(self.directory), str(self.port)], stdout=log, stderr=log
            )
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not self._answers():
            if self.process.poll() is not None or time.monotonic() > deadline:
                tail = log_path.read_text(errors="replace")[-2000:]
                raise RuntimeError(f"OpenSearch does not start:\n{tail}")
            time.sleep(0.1)

    def _answers(self) -> bool:
        try:
            return self.ask("GET", "/_cluster/health?wait_for_status=yellow&timeout=1s")[0] == 200
        except OSError:
            return False

    def ask(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_SECONDS)
        content = None if body is None else json.dumps(body)
        try:
            connection.request(method, path, content, {"Content-Type": "application/json"})
            response = connection.getresponse()
            return response.status, json.loads(response.read() or b"null")
        finally:
            connection.close()

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait(PATIENCE_SECONDS)

    def remove(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.kill()
        shutil.rmtree(self.directory, ignore_errors=True)


def running_opensearch() -> Iterator[OpenSearchServer]:
    """A new server; raises `PeerMissing` where there is none."""
    server = OpenSearchServer(Path(tempfile.mkdtemp(prefix="millstream-opensearch-")), free_port())
    try:
        server.start()
        yield server
    finally:
        server.remove()
