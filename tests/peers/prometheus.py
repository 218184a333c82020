"""A real Prometheus (Debian's), with its own data directory and port."""

from __future__ import annotations

import contextlib
import json
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.peers.cache import require_command
from tests.peers.patience import PATIENCE_SECONDS
from tests.peers.servers import free_port

HOW_TO_GET_IT = "apt-get install prometheus"


class Prometheus:
    """A running server."""

    def __init__(self, url: str) -> None:
        self._url = url

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The elements of an instant vector."""
        answer = self._get("query", query=expression)
        assert answer["status"] == "success", answer
        found: list[dict[str, Any]] = answer["data"]["result"]
        return found

    def targets(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self._get("targets")["data"]["activeTargets"]
        return found

    def alerts(self) -> set[str]:
        """The names of all alerting rules."""
        groups = self._get("rules")["data"]["groups"]
        return {rule["name"] for group in groups for rule in group["rules"]}

    def _get(self, path: str, **parameters: str) -> Any:
        url = f"{self._url}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        with urllib.request.urlopen(url, timeout=PATIENCE_SECONDS) as response:
            return json.load(response)


@contextlib.contextmanager
def running_prometheus(
    directory: Path, jobs: Mapping[str, str], rules: Path | None = None, token: str = ""
) -> Iterator[Prometheus]:
    """Scrapes each job's host:port once a second. Raises `PeerMissing`."""
    program = require_command("prometheus", HOW_TO_GET_IT)
    port = free_port()
    config = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [] if rules is None else [str(rules)],
        "scrape_configs": [
            {"job_name": name, "static_configs": [{"targets": [address]}]}
            | ({"authorization": {"credentials": token}} if token else {})
            for name, address in jobs.items()
        ],
    }
    file = directory / "prometheus.json"  # JSON is YAML
    file.write_text(json.dumps(config))
    with (directory / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(
            [
                program,
                f"--config.file={file}",
                f"--storage.tsdb.path={directory / 'prometheus'}",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        url = f"http://127.0.0.1:{port}"
        _wait_until_ready(process, url, directory / "prometheus.log")
        yield Prometheus(url)
    finally:
        process.kill()
        process.wait()


def _wait_until_ready(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        with contextlib.suppress(urllib.error.URLError, ConnectionError):
            urllib.request.urlopen(f"{url}/-/ready", timeout=5).close()
            return
        assert process.poll() is None, log.read_text()[-2000:]
        assert time.monotonic() < deadline, log.read_text()[-2000:]
        time.sleep(0.1)
