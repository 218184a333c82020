"""What is counted of requests: their time on the loop, what they send and what they get."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from uuid import UUID

import pytest

from millstream.broker.network.metering import TimedSteps
from millstream.broker.quotas.limits import CLIENT_ID, REQUEST_PERCENTAGE
from millstream.broker.server import BrokerServer
from tests.broker.quota_calls import Talk, alter, talk
from tests.broker.serving import WireClient
from tests.broker.sharing.calls import acquired, joined, run
from tests.peers.wire import request_frame

API_VERSIONS, METADATA, FIND_COORDINATOR, DESCRIBE_GROUPS = 18, 3, 10, 15


@pytest.mark.parametrize(
    ("api_key", "version", "fields"),
    [
        (API_VERSIONS, 3, {}),  # raw
        (METADATA, 12, {"topics": None}),
        (FIND_COORDINATOR, 3, {"key": "group", "key_type": 0}),
        (DESCRIBE_GROUPS, 5, {"groups": ["g"]}),
    ],
)
def test_every_request_counts_with_its_time(
    tmp_path: Path, api_key: int, version: int, fields: dict[str, object]
) -> None:
    async def scenario(it: Talk) -> None:
        await it.client.call(api_key, version, **fields)
        await it.set_quota((CLIENT_ID, "app"), request_percentage=1e-9)
        answer = await it.client.call(api_key, version, **fields)
        assert answer.throttle_time.total_seconds() == 1  # at most a sample
        assert it.muted() == 1
        quotas = it.server.services.throttling.quotas
        assert quotas is not None
        usage = quotas.usage(REQUEST_PERCENTAGE, "ANONYMOUS", "app", 0)
        assert usage is not None
        assert 0 < usage.rate.per_second(0) < 1000

    talk(tmp_path, scenario)


def test_nothing_is_kept_of_strangers(tmp_path: Path) -> None:
    """They would choose the client ids."""

    async def scenario(it: Talk) -> None:
        await it.set_quota((CLIENT_ID, None), request_percentage=1e9)
        reader, writer = await asyncio.open_connection(*it.server.addresses[1])
        stranger = WireClient(reader, writer, "stranger")
        assert (await stranger.call(API_VERSIONS, 0)).error_code == 0
        assert "stranger" not in {metric.client_id for metric in it.quota_metrics()}
        writer.close()
        await it.client.call(API_VERSIONS, 3)
        assert "app" in {metric.client_id for metric in it.quota_metrics()}

    listeners = "PLAINTEXT://127.0.0.1:0,SASL_PLAINTEXT://127.0.0.1:0"
    talk(tmp_path, scenario, listeners=listeners)


def test_request_within_its_quota_is_not_throttled(tmp_path: Path) -> None:
    async def scenario(it: Talk) -> None:
        await it.set_quota((CLIENT_ID, "app"), request_percentage=1e9)
        answer = await it.client.call(DESCRIBE_GROUPS, 5, groups=["g"])
        assert answer.throttle_time.total_seconds() == 0
        assert it.muted() == 0

    talk(tmp_path, scenario)


def test_pipelined_requests_behind_the_one_too_many_wait(tmp_path: Path) -> None:
    async def scenario(it: Talk) -> None:
        await it.set_quota((CLIENT_ID, "wire"), request_percentage=1e-9)
        reader, writer = await asyncio.open_connection(*it.server.addresses[0])
        writer.write(b"".join(request_frame("api_versions", 0, n) for n in range(3)))
        for _ in range(3):
            size = int.from_bytes(await reader.readexactly(4))
            await reader.readexactly(size)
            assert it.muted() == 1
            it.unmute()
        writer.close()

    talk(tmp_path, scenario)


def test_records_of_a_share_fetch_count_and_are_delivered(tmp_path: Path) -> None:
    async def scenario(server: BrokerServer, topic_id: UUID) -> None:
        async with WireClient.connected(server) as admin:
            await alter(admin, ((CLIENT_ID, None),), {"consumer_byte_rate": 1})
        async with joined(server, topic_id) as member:
            response = await member.fetch(max_wait=5_000)
            assert acquired(response) == [(0, 9, 1)]
            assert response.throttle_time.total_seconds() == 10
            assert sum(it.is_muted for it in server.connections._open) == 1

    run(tmp_path, scenario)


def busy(seconds: float) -> None:
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        pass


def test_waiting_is_not_counted_as_busy() -> None:
    async def handler() -> None:
        busy(0.02)
        await asyncio.sleep(0.2)
        busy(0.02)

    async def scenario() -> None:
        steps = TimedSteps()
        await steps.run(handler())
        assert steps.busy_ns >= 40_000_000
        elapsed = TimedSteps()
        started = time.perf_counter_ns()
        await elapsed.run(handler())
        assert elapsed.busy_ns <= time.perf_counter_ns() - started - 150_000_000

    asyncio.run(scenario())


def test_errors_and_cancellation_reach_the_handler() -> None:
    seen: list[str] = []

    async def failing() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise

    async def raising() -> None:
        await asyncio.sleep(0)
        raise ValueError("a defect")

    async def timed(steps: TimedSteps) -> None:
        await steps.run(failing())

    async def scenario() -> None:
        task = asyncio.ensure_future(timed(TimedSteps()))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        with pytest.raises(ValueError, match="a defect"):
            await TimedSteps().run(raising())

    asyncio.run(scenario())
    assert seen == ["cancelled"]
