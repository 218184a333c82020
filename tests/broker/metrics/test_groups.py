"""Lag of consumer groups, and records of share groups in flight."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from millstream.broker.embedded import Broker
from millstream.broker.metrics import groups as module
from millstream.broker.metrics.groups import Commit, GroupSurvey, families
from millstream.metrics.exposition import render
from tests.broker.handlers.calls import append, create_topic, topic_id_of
from tests.broker.metrics.scraping import Metrics, scrape
from tests.peers.share_member import ACCEPT, RELEASE, ShareMember, initialize
from tests.peers.wire import Wire


def test_lag_is_left_out_where_the_end_is_not_known() -> None:
    found = GroupSurvey()
    found.commits = [Commit("g", "t", 0, 10), Commit("g", "t", 1, 5), Commit("g", "gone", 0, 1)]
    found.ends = {("t", 0): 30, ("t", 1): 4}  # the end may have been read before the commit
    found.members = {"g": 2}
    asyncio.run(found.add_up())
    text = Metrics("".join(render(families(found))))
    lags = text.all("kafka_consumergroup_lag")
    assert sorted((it.labels["topic"], it.value) for it in lags) == [("t", 0), ("t", 20)]
    assert text.value("kafka_consumergroup_lag_sum", consumergroup="g", topic="t") == 20
    assert text.value("kafka_consumergroup_current_offset_sum", consumergroup="g", topic="t") == 15
    assert text.value("kafka_consumergroup_members", consumergroup="g") == 2


def test_very_many_commits_are_only_in_the_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "COMMITS_MAX", 2)
    found = GroupSurvey()
    found.commits = [Commit("g", "t", index, 10) for index in range(3)]
    asyncio.run(found.add_up())
    text = Metrics("".join(render(families(found))))
    assert not text.all("kafka_consumergroup_current_offset")
    assert text.value("kafka_consumergroup_current_offset_sum", consumergroup="g", topic="t") == 30


def test_other_work_is_done_while_commits_are_added_up() -> None:
    async def scenario() -> int:
        found = GroupSurvey()
        found.commits = [Commit("g", "t", index, 10) for index in range(1000)]
        adding = asyncio.create_task(found.add_up())
        turns = 0
        while not adding.done():
            turns += 1
            await asyncio.sleep(0)
        return turns

    assert asyncio.run(scenario()) >= 1000 // module.COMMITS_AT_ONCE


@pytest.fixture
def broker() -> Iterator[Broker]:
    settings = {"millstream.metrics.listener": "127.0.0.1:0"}
    with Broker.start(config=settings) as started:
        yield started


def test_records_that_members_of_a_share_group_hold_are_counted(broker: Broker) -> None:
    with Wire(broker.bootstrap_servers) as wire:
        create_topic(wire, "jobs")
        for number in range(10):
            append(wire, "jobs", str(number).encode())
        topic_id = topic_id_of(wire, "jobs")
    assert broker.metrics_url is not None
    acknowledged = "kafka_server_sharegroupmetrics_recordacknowledgements_total"
    fetches = "kafka_server_brokertopicmetrics_totalsharefetchrequests_total"
    assert scrape(broker.metrics_url).value(fetches) == 0
    initialize(broker.bootstrap_servers, "workers", topic_id)
    with ShareMember(broker.bootstrap_servers, "workers", topic_id) as member:
        held = member.fetch(max_records=8, batch_size=1)
        assert held[-1][1] == 7
        assert member.acknowledge((0, 2, ACCEPT), (3, 3, RELEASE)) == 0
        now = scrape(broker.metrics_url)
        at = {"group": "workers", "topic": "jobs", "partition": 0}
        assert now.value("millstream_share_in_flight_records", **at) == 4
        assert now.value("millstream_share_start_offset", **at) == 3
        assert now.value("millstream_share_lag", **at) == 7
        assert now.value(acknowledged, ackType="Accept") == 3
        assert now.value(acknowledged, ackType="Release") == 1
        assert now.value(fetches, topic="jobs") >= 1
        assert now.value("kafka_server_brokertopicmetrics_bytesout_total", topic="jobs") > 0
