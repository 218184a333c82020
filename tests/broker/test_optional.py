"""Parts that only some settings ask for: they are there then, and their modules only then."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from tests.broker.serving import serving
from tests.peers.patience import PATIENCE_SECONDS

AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"


@pytest.mark.parametrize(
    ("settings", "parts"),
    [
        ({}, set()),
        ({"millstream.audit.log": "topic:audit"}, {"audit"}),
        ({"authorizer.class.name": AUTHORIZER}, {"audit", "authorizer"}),
        ({"millstream.metrics.listener": "127.0.0.1:0"}, {"counters", "telemetry"}),
    ],
)
def test_parts_are_there_if_they_are_asked_for(
    tmp_path: Path, settings: dict[str, object], parts: set[str]
) -> None:
    async def main() -> None:
        async with serving(tmp_path, **settings) as broker:
            optional = ("audit", "authorizer", "counters", "telemetry")
            found = {name for name in optional if getattr(broker.services, name) is not None}
            assert found == parts

    asyncio.run(main())


def test_plain_broker_imports_none_of_their_modules() -> None:
    script = """
import sys
from millstream import Broker
with Broker.start():
    parts = ("security.audit", "security.authorizer", "security.brokers", "telemetry.clients",
             "sharing.partitions", "metrics.collector")
    print([name for name in parts if f"millstream.broker.{name}" in sys.modules])
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=True,
    )
    assert done.stdout.strip() == "[]"
