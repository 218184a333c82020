"""The in-sync set and the high watermark, connected."""

from __future__ import annotations

import pytest

from millstream.broker.replicas.in_sync import InSyncSet, ReplicaSettings
from millstream.broker.replicas.leadership import Leadership
from millstream.config.topic import TopicConfig
from millstream.coordination.cluster import PartitionImage
from millstream.errors import ApiError, ErrorCode
from tests.broker.replicas.replicated import Entry, FakeLog

ACTIVE = {1: 10, 2: 20, 3: 30}


class Led:
    """Broker 1 leads three replicas."""

    def __init__(self, isr: tuple[int, ...] = (1, 2, 3), records: int = 5) -> None:
        self.log = FakeLog(TopicConfig())
        self.log.entries = [Entry(0, value) for value in range(records)]
        self.log.flushed_offset = records
        self.image = PartitionImage((1, 2, 3), isr, 1, leader_epoch=4, partition_epoch=9)
        self.led = Leadership(
            self.log,
            epoch=4,
            high_watermark=0,
            in_sync_followers=frozenset(isr) - {1},
            replica_count=3,
        )
        self.is_live = True
        self.asked = 0
        settings = ReplicaSettings(1, 1000, ACTIVE, lambda: self.is_live, self._ask)
        self.in_sync = InSyncSet(self.image, self.led, self.log, settings, now_ms=0)

    def _ask(self) -> None:
        self.asked += 1


def test_fetches_of_all_members_move_the_high_watermark() -> None:
    led = Led()
    led.in_sync.fetched(2, 20, 5, 1)
    assert led.led.high_watermark == 0
    led.in_sync.fetched(3, 30, 4, 1)
    assert led.led.high_watermark == 4


def test_fetch_of_an_earlier_incarnation_moves_nothing() -> None:
    led = Led(isr=(1, 2))
    led.in_sync.fetched(2, 20, 1, 1)
    led.in_sync.fetched(2, 19, 5, 2)
    assert led.led.high_watermark == 1


def test_broker_without_a_replica_is_refused() -> None:
    with pytest.raises(ApiError) as error:
        Led().in_sync.fetched(4, 40, 5, 1)
    assert error.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_follower_joins_by_a_proposal_and_holds_the_high_watermark_back() -> None:
    led = Led(isr=(1, 2))
    led.in_sync.fetched(2, 20, 5, 1)
    assert led.led.high_watermark == 5
    led.in_sync.fetched(3, 30, 5, 1)
    assert led.asked == 1
    change = led.in_sync.tick(2)
    assert change is not None
    assert (change.isr, change.broker_epochs) == ((1, 2, 3), (10, 20, 30))
    led.log.entries.append(Entry(4, 5))
    led.log.flushed_offset = 6
    led.led.flushed()
    led.in_sync.fetched(2, 20, 6, 3)
    assert led.led.high_watermark == 5, "the proposal may be decided already"
    led.in_sync.committed(led.image._replace(isr=(1, 2, 3), partition_epoch=10))
    assert led.in_sync.proposal is None
    led.in_sync.fetched(3, 30, 6, 4)
    assert led.led.high_watermark == 6


def test_refused_proposal_is_made_again() -> None:
    led = Led(isr=(1, 2))
    led.in_sync.fetched(3, 30, 5, 1)
    assert led.in_sync.tick(2) is not None
    assert led.in_sync.tick(3) is None
    led.in_sync.refused()
    led.in_sync.fetched(3, 30, 5, 4)
    assert led.in_sync.tick(5) is not None


def test_follower_that_lags_is_proposed_to_leave() -> None:
    led = Led()
    led.in_sync.fetched(2, 20, 5, 400)
    led.in_sync.tick(500)
    led.in_sync.tick(1000)
    change = led.in_sync.tick(1400)
    assert change is not None
    assert change.isr == (1, 2)
    assert led.led.high_watermark == 0, "until it is decided, broker 3 counts"
    led.in_sync.committed(led.image._replace(isr=(1, 2), partition_epoch=10))
    assert led.led.high_watermark == 5


def test_broker_that_is_not_live_refuses() -> None:
    led = Led()
    led.in_sync.check_live()
    led.is_live = False
    with pytest.raises(ApiError, match="may not lead any more"):
        led.in_sync.check_live()


def test_fenced_follower_does_not_join() -> None:
    led = Led(isr=(1, 2))
    led.in_sync.brokers_changed({1: 10, 2: 20})
    led.in_sync.fetched(3, 30, 5, 1)
    assert led.asked == 0
    assert led.in_sync.tick(2) is None
