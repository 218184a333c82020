"""The example of versions on Apache Kafka; tests/test_docs.py runs it on Millstream."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conformance.brokers import SETTINGS
from tests.peers.kafka import start_kafka

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "versions.py"
SECONDS_MAX = 600


@pytest.mark.slow
@pytest.mark.java
@pytest.mark.timeout(SECONDS_MAX + 100)
def test_versions_are_deployed_compared_and_switched_on_apache_kafka(tmp_path: Path) -> None:
    kafka = start_kafka(tmp_path / "kafka", SETTINGS)
    try:
        done = subprocess.run(
            [sys.executable, EXAMPLE, kafka.bootstrap],
            capture_output=True,
            text=True,
            timeout=SECONDS_MAX,
            check=False,
        )
    finally:
        kafka.stop()
    assert done.returncode == 0, done.stdout + done.stderr
