"""Backlog policies of a running broker: what is measured, when producers stop and continue."""

from __future__ import annotations

import asyncio
import logging
import threading
from pathlib import Path
from typing import Any

import pytest

from millstream.broker.backlog import monitor
from millstream.broker.metadata.topics import NewTopic
from millstream.broker.server import BrokerServer
from millstream.errors import ApiError, ErrorCode
from millstream.records.record import Record, encode_batch
from millstream.storage.distance import offset_within
from tests.broker.backlog.scenes import (
    RECORD_BYTES,
    backlog,
    hurry,
    is_over,
    partition,
    produce,
    records,
    remove_policy,
    set_policy,
    until,
)
from tests.broker.handlers.group_calls import DELETE_GROUPS, commit, join, run
from tests.broker.handlers.share_group_calls import alter, beat, empty_group
from tests.broker.serving import WireClient
from tests.peers.patience import PATIENCE_SECONDS

BOUND = 10 * RECORD_BYTES


@pytest.fixture(autouse=True)
def _hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    hurry(monkeypatch)


async def fill(server: BrokerServer, client: WireClient, count: int = 12) -> None:
    """Append records for which group g has committed only the start."""
    assert (await produce(client, records())).error_code.value == 0
    await commit(client, 0)
    for _ in range(count - 1):
        await produce(client, records())


def test_policy_applies_to_the_slowest_group_until_it_has_caught_up(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(server: BrokerServer, client: WireClient) -> None:
        await fill(server, client)
        await commit(client, 12, group_id="fast")
        await set_policy(server, policy="reject", bytes=BOUND, groups="g,fast")
        await until(lambda: is_over(server))
        found = backlog(server)
        assert (found.policy, found.group) == ("reject", "g")
        assert found.size_bytes == partition(server).log.size_bytes
        await commit(client, 2)
        await until(lambda: backlog(server).size_bytes < found.size_bytes)
        assert is_over(server)  # below its bound, but more than nine tenths of it
        await commit(client, 5)
        await until(lambda: not is_over(server))
        await commit(client, 12)
        await until(lambda: backlog(server).group == "")

    with caplog.at_level(logging.INFO, "millstream.backlog"):
        run(tmp_path, scenario)
    first = caplog.messages[0]
    assert first.startswith("orders-0 rejects producers: group g has ")
    assert first.endswith(f" bytes unread of at most {BOUND}")


def test_other_groups_and_partitions_do_not_count(tmp_path: Path) -> None:
    async def scenario(server: BrokerServer, client: WireClient) -> None:
        await fill(server, client)
        await set_policy(server, policy="reject", bytes=BOUND, groups="other")
        await until(lambda: [*server.backlog.partitions()])
        await asyncio.sleep(0.2)
        assert not is_over(server)
        await commit(client, 0, group_id="other")
        await until(lambda: is_over(server))
        assert not is_over(server, 1)
        assert (await produce(client, records(), partitions=(1,))).error_code.value == 0

    run(tmp_path, scenario)


def test_groups_match_a_pattern(tmp_path: Path) -> None:
    async def scenario(server: BrokerServer, client: WireClient) -> None:
        await fill(server, client)
        await set_policy(server, policy="reject", bytes=BOUND, groups="team-*")
        await commit(client, 0, group_id="team-a")
        await until(lambda: is_over(server))
        assert backlog(server).group == "team-a"

    run(tmp_path, scenario)


def test_age_is_that_of_the_oldest_unread_record(tmp_path: Path) -> None:
    async def scenario(server: BrokerServer, client: WireClient) -> None:
        now_ms = server.clock.now_ms()
        await produce(client, records(timestamp_ms=now_ms - 3_600_000))
        await produce(client, records(timestamp_ms=now_ms))
        await commit(client, 0)
        await set_policy(server, policy="reject", ms=1_800_000, groups="g")
        await until(lambda: is_over(server))
        assert 3_600_000 <= backlog(server).age_ms < 3_600_000 + 600_000
        await commit(client, 1)
        await until(lambda: not is_over(server))

    run(tmp_path, scenario)


def test_forgotten_group_stops_nobody(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(server: BrokerServer, client: WireClient) -> None:
        await fill(server, client)
        await set_policy(server, policy="reject", bytes=BOUND, groups="g", group_idle_ms=300)
        await until(lambda: "group g no longer counts" in caplog.text)
        await until(lambda: not is_over(server))
        assert (await produce(client, records())).error_code.value == 0
        assert caplog.text.count("group g no longer counts") == 1
        await join(client)  # it is back
        await until(lambda: is_over(server))
        assert "group g counts again" in caplog.text

    with caplog.at_level(logging.INFO, "millstream.backlog"):
        run(tmp_path, scenario)


def test_group_that_is_deleted_and_made_again_counts_from_its_first_commit(
    tmp_path: Path,
) -> None:
    async def scenario(server: BrokerServer, client: WireClient) -> None:
        await fill(server, client)
        await set_policy(server, policy="reject", bytes=BOUND, groups="g")
        await until(lambda: is_over(server))
        answer = await client.call(DELETE_GROUPS, 2, groups_names=["g"])
        assert answer.results[0].error_code.value == 0
        await until(lambda: not is_over(server))
        await commit(client, 12)
        await asyncio.sleep(0.2)
        assert not is_over(server)
        await commit(client, 1)
        await until(lambda: is_over(server))

    run(tmp_path, scenario)


def test_share_group_counts_by_its_start_offset(tmp_path: Path) -> None:
    async def scenario(server: BrokerServer, client: WireClient) -> None:
        await fill(server, client)
        await client.call(DELETE_GROUPS, 2, groups_names=["g"])
        await empty_group(client)
        await alter(client, 0, 0, 0)
        await set_policy(server, policy="reject", bytes=BOUND, groups="g")
        await until(lambda: is_over(server))
        await alter(client, 11, 0, 0)
        await until(lambda: not is_over(server))
        assert (await beat(client)).error_code.value == 0

    run(tmp_path, scenario)


def test_records_of_an_open_transaction_are_no_backlog(tmp_path: Path) -> None:
    """Consumers cannot read them: else the transaction could not be completed."""

    async def scenario(server: BrokerServer, client: WireClient) -> None:
        await commit(client, 0)
        await set_policy(server, policy="reject", bytes=BOUND, groups="g")
        led = partition(server)
        for number in range(15):
            batch = encode_batch(
                [Record(0, 1_700_000_000_000, None, b"x" * RECORD_BYTES)],
                producer_id=7,
                producer_epoch=0,
                base_sequence=number,
                is_transactional=True,
            )
            await led.append(batch, acks=-1, verified=True)
        await asyncio.sleep(0.2)
        assert led.last_stable_offset == 0
        assert not is_over(server)
        await led.append_marker(
            producer_id=7,
            producer_epoch=0,
            coordinator_epoch=0,
            committed=True,
            transaction_version=1,
        )  # a marker is not asked for its admission
        await until(lambda: is_over(server))

    run(tmp_path, scenario)


def test_drop_keeps_the_backlog_within_its_bound_and_counts_what_groups_lost(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(server: BrokerServer, client: WireClient) -> None:
        await fill(server, client, 30)
        await commit(client, 25, group_id="fast")
        await set_policy(server, policy="drop", bytes=BOUND)
        led = partition(server)
        await until(lambda: led.log_start_offset > 0)
        start = led.log_start_offset
        batch_bytes = len(records())
        assert start == 30 - BOUND // batch_bytes
        await until(lambda: server.backlog.counters.dropped_records)
        assert server.backlog.counters.dropped_records == {("orders", "g"): start}
        assert led.admission is None
        for _ in range(3):  # its records are gone already: they are not lost again
            await produce(client, records())
        await until(lambda: led.log_start_offset == start + 3)
        assert server.backlog.counters.dropped_records["orders", "g"] == start + 3
        await commit(client, 33)
        await until(lambda: not is_over(server))

    with caplog.at_level(logging.INFO, "millstream.backlog"):
        run(tmp_path, scenario)
    assert "orders-0 drops records: group g has " in caplog.text


@pytest.mark.parametrize("how", ["removed", "raised"])
def test_policy_that_changes_while_records_are_looked_for_drops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    is_looking, may_go_on = threading.Event(), threading.Event()

    def look(*arguments: Any) -> int:
        is_looking.set()
        assert may_go_on.wait(PATIENCE_SECONDS)
        return offset_within(*arguments)

    async def scenario(server: BrokerServer, client: WireClient) -> None:
        await fill(server, client, 30)
        monkeypatch.setattr(monitor, "offset_within", look)
        try:
            await set_policy(server, policy="drop", bytes=BOUND)
            await until(is_looking.is_set)
            if how == "removed":
                await remove_policy(server)
            else:
                await set_policy(server, bytes=100 * BOUND)
        finally:
            may_go_on.set()
        await until(lambda: not is_over(server))
        await asyncio.sleep(0.2)  # several measurements
        assert partition(server).log_start_offset == 0

    run(tmp_path, scenario)


def test_drop_by_age_keeps_newer_records(tmp_path: Path) -> None:
    async def scenario(server: BrokerServer, client: WireClient) -> None:
        now_ms = server.clock.now_ms()
        for age_ms in (7_200_000, 3_600_000, 0):
            await produce(client, records(timestamp_ms=now_ms - age_ms))
        await commit(client, 0)
        await set_policy(server, policy="drop", ms=1_800_000)
        await until(lambda: partition(server).log_start_offset == 2)

    run(tmp_path, scenario)


def test_policy_that_is_removed_or_changed_applies_at_once(tmp_path: Path) -> None:
    async def scenario(server: BrokerServer, client: WireClient) -> None:
        await fill(server, client)
        await set_policy(server, policy="reject", bytes=BOUND, groups="g")
        await until(lambda: is_over(server))
        await set_policy(server, bytes=10 * BOUND)
        await until(lambda: not is_over(server))
        await set_policy(server, bytes=BOUND)
        await until(lambda: is_over(server))
        await remove_policy(server)
        assert partition(server).admission is None
        assert (await produce(client, records())).error_code.value == 0
        await set_policy(server, policy="reject", bytes=BOUND, groups="g")
        await until(lambda: is_over(server))
        await set_policy(server, policy="drop")
        assert partition(server).admission is None
        await until(lambda: partition(server).log_start_offset > 0)

    run(tmp_path, scenario)


def test_topic_that_is_deleted_and_made_again_begins_without_backlog(tmp_path: Path) -> None:
    async def scenario(server: BrokerServer, client: WireClient) -> None:
        settings = {
            "millstream.backlog.policy": "reject",
            "millstream.backlog.bytes": str(BOUND),
            "millstream.backlog.groups": "g",
        }
        await fill(server, client)
        await set_policy(server, policy="reject", bytes=BOUND, groups="g")
        await until(lambda: is_over(server))
        old = partition(server)
        await server.topics.delete([server.metadata.image.topics["orders"].id])
        await server.topics.create([NewTopic("orders", 1, settings=settings)])
        assert old.admission is None
        assert (await produce(client, records())).error_code.value == 0
        await until(lambda: partition(server).admission is not None)
        await asyncio.sleep(0.2)
        assert not is_over(server)
        await fill(server, client)
        await until(lambda: is_over(server))

    run(tmp_path, scenario)


@pytest.mark.parametrize("is_clean", [True, False])
def test_policy_applies_after_a_restart(tmp_path: Path, is_clean: bool) -> None:
    async def before(server: BrokerServer, client: WireClient) -> None:
        await fill(server, client)
        await set_policy(server, policy="reject", bytes=BOUND, groups="g")
        await until(lambda: is_over(server))

    async def after(server: BrokerServer, client: WireClient) -> None:
        await until(lambda: is_over(server))
        answer = await produce(client, records())
        assert answer.error_code.value == ErrorCode.POLICY_VIOLATION
        await commit(client, 12)
        await until(lambda: not is_over(server))

    run(tmp_path, before)
    if not is_clean:
        for marker in tmp_path.glob(".kafka_cleanshutdown"):
            marker.unlink()
    run(tmp_path, after)


def test_settings_that_do_not_go_together_are_refused(tmp_path: Path) -> None:
    async def scenario(server: BrokerServer, client: WireClient) -> None:
        with pytest.raises(ApiError, match=r"needs millstream\.backlog\.groups") as refused:
            await set_policy(server, policy="hold", bytes=BOUND)
        assert refused.value.code is ErrorCode.INVALID_CONFIG
        assert not server.backlog.is_used

    run(tmp_path, scenario)
