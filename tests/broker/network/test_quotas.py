"""Quotas of a broker: switched on and off, changed under way, for open connections."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from millstream.broker.metadata.local import LocalMetadata
from millstream.broker.metadata.store import registration
from millstream.broker.quotas.limits import CLIENT_ID, IP, PRODUCER_BYTE_RATE, USER
from millstream.coordination.cluster_records import BrokerEndpoint
from millstream.security.principal import Principal
from tests.broker.quota_calls import PRODUCE, Talk, alter, produce_fields, talk
from tests.broker.serving import WireClient, serving

MEGABYTE = 1_000_000
HEARTBEAT, API_VERSIONS = 12, 18


def test_producer_is_throttled_and_muted_once_it_exceeds_its_quota(tmp_path: Path) -> None:
    async def scenario(it: Talk) -> None:
        await it.set_quota((CLIENT_ID, "app"), producer_byte_rate=100_000)
        assert [await it.produce(900_000), it.muted()] == [0, 0]
        throttle_ms = await it.produce(300_000)
        assert 2000 <= throttle_ms < 2100
        assert it.muted() == 1
        it.client.send(PRODUCE, 9, **produce_fields(10))
        async with WireClient.connected(it.server, "other") as other:
            assert await it.produce(MEGABYTE, other) == 0  # others are not throttled
        assert it.muted() == 1
        it.clock.advance(11_000)
        it.unmute()
        answer = await it.client.receive(PRODUCE, 9)
        assert answer.throttle_time.total_seconds() == 0

    talk(tmp_path, scenario)


def test_total_over_many_windows_is_the_quota(tmp_path: Path) -> None:
    async def scenario(it: Talk) -> None:
        bound, size = 200_000, 90_000
        await it.set_quota((CLIENT_ID, "app"), producer_byte_rate=bound)
        start_ms, total = it.clock.monotonic_ms(), 0
        while it.clock.monotonic_ms() < start_ms + 60_000:
            throttle_ms = await it.produce(size)
            total += size
            it.clock.advance(throttle_ms + 10)  # it waits as long as it is told
            it.unmute()
        seconds = (it.clock.monotonic_ms() - start_ms) / 1000
        assert bound * (seconds - 11) <= total <= bound * (seconds + 11) + size

    talk(tmp_path, scenario)


def test_small_requests_far_from_the_quota_are_counted_together(tmp_path: Path) -> None:
    async def scenario(it: Talk) -> None:
        bound, size = 100_000, 50
        await it.set_quota((CLIENT_ID, "app"), producer_byte_rate=bound)
        quotas = it.server.services.throttling.quotas
        assert quotas is not None
        usage = quotas.usage(PRODUCER_BYTE_RATE, "ANONYMOUS", "app", 0)
        assert usage is not None
        for _ in range(100):
            assert await it.produce(size) == 0
        counted = usage.rate.per_second(0) * 10
        assert 100 * (size + 100) - 1000 < counted < 100 * (size + 250)
        assert await it.produce(900_000) == 0  # near the quota, each is counted
        before = usage.rate.per_second(0)
        await it.produce(size)
        assert usage.rate.per_second(0) > before

    talk(tmp_path, scenario)


def test_two_connections_share_the_quota_of_their_client_id(tmp_path: Path) -> None:
    async def scenario(it: Talk) -> None:
        await it.set_quota((CLIENT_ID, None), producer_byte_rate=100_000)
        async with WireClient.connected(it.server, "app") as second:
            assert await it.produce(900_000) == 0
            assert await it.produce(300_000, second) > 0
            assert it.muted() == 1
            assert await it.produce(1) > 0
            assert it.muted() == 2

    talk(tmp_path, scenario)


def test_user_has_its_quota_on_every_connection(tmp_path: Path) -> None:
    async def scenario(it: Talk) -> None:
        await it.set_quota((USER, "alice"), producer_byte_rate=1000)
        assert await it.produce(100_000) == 0  # nobody is logged in
        (connection,) = it.server.connections._open
        connection._client.principal = Principal("User", "alice")
        connection.client_changed()
        assert await it.produce(100_000) == 10_000
        await it.set_quota((USER, "ANONYMOUS"), producer_byte_rate=1)
        async with WireClient.connected(it.server, "app") as anonymous:
            assert await it.produce(100_000, anonymous) == 10_000

    talk(tmp_path, scenario)


def test_quota_that_is_removed_or_raised_frees_a_muted_client_at_once(tmp_path: Path) -> None:
    async def scenario(it: Talk) -> None:
        for change in (None, 10**9):
            await it.set_quota((CLIENT_ID, "app"), producer_byte_rate=100)
            assert await it.produce(100_000) == 10_000
            it.client.send(PRODUCE, 9, **produce_fields(10))
            assert it.muted() == 1
            await it.set_quota((CLIENT_ID, "app"), producer_byte_rate=change)
            assert it.muted() == 0
            await it.client.receive(PRODUCE, 9)
        await it.set_quota((CLIENT_ID, "app"), producer_byte_rate=None)
        assert it.server.services.throttling.quotas is None

    talk(tmp_path, scenario)


def test_client_without_acknowledgements_is_muted_too(tmp_path: Path) -> None:
    async def scenario(it: Talk) -> None:
        await it.set_quota((CLIENT_ID, "app"), producer_byte_rate=100)
        it.client.send(PRODUCE, 9, **produce_fields(100_000, acks=0))
        while not it.muted():
            await asyncio.sleep(0)

    talk(tmp_path, scenario)


def test_throttled_client_that_leaves_is_forgotten(tmp_path: Path) -> None:
    async def scenario(it: Talk) -> None:
        await it.set_quota((CLIENT_ID, "gone"), producer_byte_rate=100)
        async with WireClient.connected(it.server, "gone") as gone:
            assert await it.produce(100_000, gone) == 10_000
            gone.send(PRODUCE, 9, **produce_fields(10))
        assert it.muted() == 1  # it is not read, so the broker does not know
        it.unmute()
        while len(it.server.connections) > 1:
            await asyncio.sleep(0)
        async with WireClient.connected(it.server, "gone") as again:
            assert await it.produce(10, again) == 10_000  # connecting again does not help

    talk(tmp_path, scenario)


def test_brokers_of_the_cluster_are_not_throttled(tmp_path: Path) -> None:
    async def scenario(it: Talk) -> None:
        await it.set_quota((CLIENT_ID, None), producer_byte_rate=100)
        async with WireClient.connected(it.server, f"broker-{it.server.id}-fetcher-0") as broker:
            assert await it.produce(100_000, broker) == 0
        for name in ("broker-999", "broker-" + "9" * 5_000):  # int() refuses that many digits
            async with WireClient.connected(it.server, name) as stranger:
                assert await it.produce(100_000, stranger) == 10_000

    talk(tmp_path, scenario)


def test_other_connections_of_a_muted_client_go_on(tmp_path: Path) -> None:
    async def scenario(it: Talk) -> None:
        await it.set_quota((CLIENT_ID, "app"), consumer_byte_rate=100)
        await it.produce(100_000)
        await it.fetch(0)
        assert await it.fetch(0) == (10_000, 0)
        assert it.muted() == 1
        async with WireClient.connected(it.server, "app") as heartbeats:
            for _ in range(3):
                answer = await heartbeats.call(HEARTBEAT, 4, group_id="g", member_id="m")
                assert answer.throttle_time.total_seconds() == 0
        assert it.muted() == 1

    talk(tmp_path, scenario)


def test_workers_of_one_host_divide_a_quota(tmp_path: Path) -> None:
    async def scenario(it: Talk) -> None:
        await it.set_quota((CLIENT_ID, "app"), producer_byte_rate=100_000)
        metadata = it.server.metadata
        assert isinstance(metadata, LocalMetadata)
        assert not metadata.has_workers
        metadata.has_workers = True  # of the shared home
        endpoint = BrokerEndpoint("PLAINTEXT", "localhost", 1)
        await metadata.register(registration(2, [endpoint], epoch=10**6, rack=None, directories=[]))
        quotas = it.server.services.throttling.quotas
        assert quotas is not None
        limit = quotas.limits.find(PRODUCER_BYTE_RATE, "ANONYMOUS", "app")
        assert limit is not None
        assert limit.bound == 50_000
        assert await it.produce(400_000) == 0
        assert await it.produce(400_000) > 0

    talk(tmp_path, scenario)


def test_quotas_outlast_a_restart(tmp_path: Path) -> None:
    async def run() -> None:
        async with serving(tmp_path) as server, WireClient.connected(server) as client:
            await alter(client, ((USER, None),), {"producer_byte_rate": 1000})
        async with serving(tmp_path) as server:
            assert server.metadata.image.quotas == {
                frozenset({(USER, None)}): {"producer_byte_rate": 1000.0}
            }
            assert server.services.throttling.quotas is not None

    asyncio.run(run())


def test_connections_beyond_the_rate_of_their_address_are_closed(tmp_path: Path) -> None:
    async def scenario(it: Talk) -> None:
        await it.set_quota((IP, "127.0.0.1"), connection_creation_rate=1)
        accepted = 0
        for _ in range(30):
            async with WireClient.connected(it.server) as client:
                try:
                    await client.call(API_VERSIONS, 3)
                    accepted += 1
                except (asyncio.IncompleteReadError, ConnectionError):
                    break
        assert accepted == 10  # the quota of a window
        assert (await it.server.connections.survey()).refused == 1
        (metric,) = it.quota_metrics()
        assert metric.throttled_count == 1
        it.clock.advance(11_000)
        async with WireClient.connected(it.server) as client:
            await client.call(API_VERSIONS, 3)

    talk(tmp_path, scenario)


def test_refused_connections_do_not_hold_up_the_end(tmp_path: Path) -> None:
    async def scenario(it: Talk) -> None:
        await it.set_quota((IP, None), connection_creation_rate=1)
        for _ in range(20):
            await asyncio.open_connection(*it.server.addresses[0])

    talk(tmp_path, scenario)


@pytest.mark.parametrize("module", ["millstream.broker.quotas.clients"])
def test_broker_without_quotas_does_not_import_them(tmp_path: Path, module: str) -> None:
    program = (
        "import sys\n"
        "from millstream import Broker\n"
        f"with Broker.start({str(tmp_path / 'data')!r}): pass\n"
        f"assert {module!r} not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)
