"""When a broker is not ready, and why."""

from __future__ import annotations

import asyncio
from pathlib import Path

from millstream.broker.metrics.readiness import problems
from tests.broker.serving import serving


def test_reasons_are_named(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as server:
            assert server.is_serving
            assert problems(server.services, is_serving=lambda: True) == []
            assert "starting or stopping" in problems(server.services, is_serving=lambda: False)[0]
            (directory,) = server.directories.directories
            directory.failure = OSError("gone")
            found = problems(server.services, is_serving=lambda: True)
            assert found == ["log directories offline: 1"]
            directory.failure = None

    asyncio.run(scenario())


def test_a_stopped_broker_does_not_serve(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as server:
            pass
        assert not server.is_serving

    asyncio.run(scenario())
