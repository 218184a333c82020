"""Intents that change the cluster: what a leader may ask for, and who gets which producer ids."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from millstream.broker.metadata.store import registration
from millstream.broker.metadata.topics import NewTopic
from millstream.coordination.cluster import PartitionImage
from millstream.coordination.cluster_records import (
    BrokerRegistrationChangeRecord,
    PartitionChangeRecord,
)
from millstream.coordination.replication.controller import Proposal
from millstream.coordination.replication.leader import IsrChange
from millstream.coordination.replication.reassignment import Target
from millstream.errors import ApiError, ErrorCode
from millstream.security.scram import ScramCredential
from tests.broker.metadata.homes import ENDPOINT, Home, home

OTHERS = (2, 3)


@pytest.fixture
def it(tmp_path: Path) -> Iterator[Home]:
    """Three brokers, of which the first leads `t-0`, with all replicas in sync."""
    with home(tmp_path) as opened:
        asyncio.run(_set_up(opened))
        yield opened


async def _set_up(it: Home) -> None:
    await it.register()
    for broker_id in OTHERS:
        epoch = it.image.version + 1
        await it.metadata.register(
            registration(broker_id, [ENDPOINT], epoch=epoch, rack=None, directories=())
        )
    await it.actions.create_topics([NewTopic("t", assignments=((0, (1, 2, 3)),))])


def partition(it: Home) -> PartitionImage:
    return it.image.topics["t"].partitions[0]


def proposal(it: Home, *isr: tuple[int, int], **changes: int) -> Proposal:
    now = partition(it)
    change = IsrChange(
        leader_epoch=changes.get("leader_epoch", now.leader_epoch),
        partition_epoch=changes.get("partition_epoch", now.partition_epoch),
        isr=tuple(broker_id for broker_id, _ in isr),
        broker_epochs=tuple(epoch for _, epoch in isr),
    )
    return Proposal(it.image.topics["t"].id, changes.get("index", 0), change)


def propose(it: Home, *proposals: Proposal) -> list[PartitionImage | ApiError]:
    return asyncio.run(it.actions.alter_partitions(proposals))


def refusal(it: Home, wanted: Proposal) -> ErrorCode:
    version = it.image.version
    [outcome] = propose(it, wanted)
    assert isinstance(outcome, ApiError)
    assert it.image.version == version, "a refused proposal changes nothing"
    return ErrorCode(outcome.code)


def epoch_of(it: Home, broker_id: int) -> int:
    return it.image.brokers[broker_id].epoch


def test_leader_shrinks_and_expands_the_in_sync_set(it: Home) -> None:
    before = partition(it)
    [shrunk] = propose(it, proposal(it, (1, -1), (2, -1)))
    assert isinstance(shrunk, PartitionImage)
    assert shrunk.isr == (1, 2)
    assert (shrunk.leader_epoch, shrunk.partition_epoch) == (
        before.leader_epoch,
        before.partition_epoch + 1,
    )
    [expanded] = propose(it, proposal(it, (1, -1), (2, -1), (3, epoch_of(it, 3))))
    assert isinstance(expanded, PartitionImage)
    assert expanded.isr == (1, 2, 3)


def test_same_in_sync_set_is_accepted_again(it: Home) -> None:
    """The answer to the first proposal may have been lost."""
    propose(it, proposal(it, (1, -1)))
    version = it.image.version
    [again] = propose(it, proposal(it, (1, -1), partition_epoch=0))
    assert isinstance(again, PartitionImage)
    assert it.image.version == version


def test_stale_proposals_are_refused(it: Home) -> None:
    propose(it, proposal(it, (1, -1), (2, -1)))
    stale = proposal(it, (1, -1), partition_epoch=partition(it).partition_epoch - 1)
    assert refusal(it, stale) == ErrorCode.INVALID_UPDATE_VERSION
    former = proposal(it, (1, -1), leader_epoch=partition(it).leader_epoch - 1)
    assert refusal(it, former) == ErrorCode.FENCED_LEADER_EPOCH
    assert refusal(it, proposal(it, (1, -1), index=7)) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_leader_stays_in_its_set_and_no_stranger_joins(it: Home) -> None:
    assert refusal(it, proposal(it, (2, -1))) == ErrorCode.INVALID_REQUEST
    assert refusal(it, proposal(it, (1, -1), (9, -1))) == ErrorCode.INVALID_REQUEST


def test_fenced_or_restarted_broker_does_not_join(it: Home) -> None:
    propose(it, proposal(it, (1, -1), (2, -1)))
    old = epoch_of(it, 3)
    assert refusal(it, proposal(it, (1, -1), (2, -1), (3, old - 1))) == (
        ErrorCode.INELIGIBLE_REPLICA
    )
    fence = BrokerRegistrationChangeRecord(3, old, fenced=1)
    asyncio.run(it.metadata.change(lambda image: [fence]))
    assert refusal(it, proposal(it, (1, -1), (2, -1), (3, old))) == ErrorCode.INELIGIBLE_REPLICA


def test_one_refused_proposal_does_not_stop_the_others(it: Home) -> None:
    [first, second] = propose(it, proposal(it, (9, -1)), proposal(it, (1, -1)))
    assert isinstance(first, ApiError)
    assert isinstance(second, PartitionImage)
    assert partition(it).isr == (1,)


def test_deleted_topic_is_unknown(it: Home) -> None:
    wanted = proposal(it, (1, -1))
    asyncio.run(it.actions.delete_topics([wanted.topic_id]))
    [outcome] = propose(it, wanted)
    assert isinstance(outcome, ApiError)
    assert outcome.code == ErrorCode.UNKNOWN_TOPIC_ID


def test_concurrent_blocks_of_producer_ids_do_not_overlap(it: Home) -> None:
    async def allocate() -> list[range]:
        return await asyncio.gather(*(it.actions.allocate_producer_ids() for _ in range(20)))

    blocks = asyncio.run(allocate())
    ids = [producer_id for block in blocks for producer_id in block]
    assert len(set(ids)) == len(ids) == 20 * len(blocks[0])


def test_preferred_replica_leads_after_an_election(it: Home) -> None:
    leave = PartitionChangeRecord(0, it.image.topics["t"].id, leader=2)
    asyncio.run(it.metadata.change(lambda image: [leave]))
    elected = asyncio.run(it.actions.elect_leaders([("t", 0), ("t", 9)], unclean=False))
    assert elected == {
        ("t", 0): ErrorCode.NONE,
        ("t", 9): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
    assert partition(it).leader == 1
    assert asyncio.run(it.actions.elect_leaders(None, unclean=False)) == {}


def test_replicas_do_not_move_without_a_controller(it: Home) -> None:
    same, other = Target("t", 0, (1, 2, 3)), Target("t", 0, (2, 3))
    assert asyncio.run(it.actions.reassign_partitions([same])) == {("t", 0): None}
    refused = asyncio.run(it.actions.reassign_partitions([other]))["t", 0]
    assert refused is not None
    assert refused.code == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert partition(it).replicas == (1, 2, 3)


def test_number_of_replicas_stays_if_it_must(it: Home) -> None:
    fewer = Target("t", 0, (1, 2))
    outcome = asyncio.run(it.actions.reassign_partitions([fewer], may_change_factor=False))
    refused = outcome["t", 0]
    assert refused is not None
    assert refused.code == ErrorCode.INVALID_REPLICATION_FACTOR


def test_first_users_are_created_only_while_there_are_none(it: Home) -> None:
    """Or a user who was deleted would come back with the next start of a broker."""
    admin, other = ScramCredential(b"s", b"k", b"k", 4096), ScramCredential(b"t", b"l", b"l", 4096)
    asyncio.run(it.actions.create_first_users({("admin", 1): admin, ("admin", 2): admin}))
    assert it.image.scram == {("admin", 1): admin, ("admin", 2): admin}
    asyncio.run(it.actions.create_first_users({("admin", 1): other, ("second", 1): other}))
    assert it.image.scram == {("admin", 1): admin, ("admin", 2): admin}
    asyncio.run(it.actions.alter_scram({("second", 1): other, ("admin", 1): None}))
    asyncio.run(it.actions.create_first_users({("admin", 1): admin}))
    assert ("admin", 1) not in it.image.scram
