"""The controller: liveness, restarts, shutdown, proposals, elections."""

from __future__ import annotations

import contextlib
import random
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.coordination.cluster import RECOVERED, RECOVERING
from millstream.coordination.cluster_records import (
    NO_LEADER,
    BrokerRegistrationChangeRecord,
    PartitionChangeRecord,
)
from millstream.coordination.replication.controller import (
    Proposal,
    alter_partitions,
    elect,
    may_stop,
    prefer,
    reconcile,
    register,
    shut_down,
    unregister,
    withdraw,
)
from millstream.coordination.replication.leader import IsrChange
from millstream.errors import ApiError, ErrorCode
from tests.coordination.replication.images import (
    TOPIC_ID,
    applied,
    image,
    incarnation,
    only,
    partition,
    registration,
    sessions,
)


def test_lost_session_fences_the_broker_and_elects_another_leader() -> None:
    before = image(3, partition(1, 2, 3))
    after = applied(before, reconcile(before, sessions(2, 3)))
    assert [broker.fenced for broker in after.brokers.values()] == [True, False, False]
    assert (only(after).leader, only(after).isr, only(after).leader_epoch) == (2, (2, 3), 1)
    assert reconcile(after, sessions(2, 3)) == []


def test_lost_follower_leaves_the_in_sync_set_in_the_same_leader_epoch() -> None:
    before = image(3, partition(1, 2, 3))
    after = only(applied(before, reconcile(before, sessions(1, 2))))
    assert (after.leader, after.isr, after.leader_epoch, after.partition_epoch) == (1, (1, 2), 0, 1)


def test_session_of_another_incarnation_does_not_make_a_broker_live() -> None:
    before = image(2, partition(1, 2))
    live = {1: incarnation(1, 2), 2: incarnation(2)}
    assert applied(before, reconcile(before, live)).brokers[1].fenced


def test_last_member_of_the_in_sync_set_leads_again_when_it_returns() -> None:
    before = image(2, partition(1, 2, isr=(1,)))
    gone = applied(before, reconcile(before, sessions(2)))
    assert (only(gone).leader, only(gone).isr) == (NO_LEADER, (1,))
    back = applied(gone, reconcile(gone, sessions(1, 2)))
    assert (only(back).leader, only(back).isr, only(back).leader_epoch) == (1, (1,), 2)


def test_unclean_election_happens_only_where_it_is_allowed() -> None:
    before = image(2, partition(1, 2, isr=(1,)))
    records = reconcile(before, sessions(2), is_unclean_allowed=lambda topic: topic == "t")
    after = only(applied(before, records))
    assert (after.leader, after.isr, after.leader_recovery_state) == (2, (2,), RECOVERING)


def test_restarted_broker_is_fenced_and_leaves_the_in_sync_set_until_it_is_seen() -> None:
    before = image(2, partition(1, 2))
    again = applied(before, register(before, registration(1, 2)))
    assert (only(again).leader, only(again).isr) == (2, (2,))
    assert again.brokers[1].fenced
    assert again.brokers[1].epoch == 20
    live = {1: incarnation(1, 2), 2: incarnation(2)}
    seen = applied(again, reconcile(again, live))
    assert seen.brokers[1].is_active
    assert only(seen).isr == (2,), "it has to catch up first"


def test_restarted_broker_that_kept_its_records_stays_in_sync_and_leads_nothing() -> None:
    before = image(2, partition(1, 2), partition(2, 1, index=1), partition(1, index=2))
    records = register(before, registration(1, 2), has_kept_records=True)
    first, second, lone = applied(before, records).topics["t"].partitions
    assert (first.leader, first.isr, first.leader_epoch) == (2, (1, 2), 1)
    assert (second.leader, second.isr, second.partition_epoch) == (2, (2, 1), 0)
    assert (lone.leader, lone.isr) == (NO_LEADER, (1,))


def test_restarted_broker_with_other_directories_has_not_kept_its_records() -> None:
    before = image(2, partition(1, 2))
    other = registration(1, 2)._replace(log_dirs=(incarnation(9),))
    records = register(before, other, has_kept_records=True)
    assert only(applied(before, records)).isr == (2,)


def test_first_broker_after_a_power_cut_of_all_leads_when_the_others_are_seen_to_be_down() -> None:
    """They are active in the metadata until then: it must not leave the in-sync set to them."""
    before = image(3, partition(2, 1, isr=(2, 1)))
    now = applied(before, register(before, registration(1, 2), has_kept_records=True))
    now = applied(now, reconcile(now, {1: incarnation(1, 2)}))
    assert (only(now).leader, only(now).isr) == (1, (1,))


def test_shutdown_moves_leaders_and_may_end_when_nothing_is_led() -> None:
    before = image(3, partition(1, 2, 3), partition(2, 1, index=1), partition(1, index=2))
    assert not may_stop(before, 1)
    after = applied(before, shut_down(before, 1, 10))
    first, second, lone = after.topics["t"].partitions
    assert (first.leader, first.isr) == (2, (2, 3))
    assert (second.leader, second.isr) == (2, (2,))
    assert (lone.leader, lone.isr) == (NO_LEADER, (1,))
    assert may_stop(after, 1)
    assert reconcile(after, sessions(1, 2, 3)) == []
    assert shut_down(after, 1, 10) == []
    assert shut_down(before, 1, 9) == [], "of an earlier incarnation"


def test_broker_that_is_down_is_unregistered_unless_only_it_has_all_records() -> None:
    before = image(3, partition(1, 2), partition(3, index=1))
    for broker_id, code in (
        (1, ErrorCode.INVALID_REQUEST),
        (9, ErrorCode.BROKER_ID_NOT_REGISTERED),
    ):
        with pytest.raises(ApiError) as refused:
            unregister(before, broker_id)
        assert refused.value.code is code
    down = applied(before, reconcile(before, sessions(2)))
    with pytest.raises(ApiError, match="only one that has all records of t-1"):
        unregister(down, 3)
    after = applied(down, unregister(down, 1))
    assert set(after.brokers) == {2, 3}
    assert after.topics == down.topics
    returned = applied(after, register(after, registration(1), has_kept_records=True))
    assert returned.topics["t"].partitions[0].isr == (2,)


def test_brokers_that_are_unregistered_while_all_are_down_leave_the_in_sync_sets() -> None:
    before = image(3, partition(1, 2, 3))
    down = applied(before, reconcile(before, sessions()))
    assert only(down).isr == (1, 2, 3)
    for broker_id, isr in ((2, (1, 3)), (1, (3,))):
        down = applied(down, unregister(down, broker_id))
        assert only(down).isr == isr
    with pytest.raises(ApiError, match="only one that has all records"):
        unregister(down, 3)
    back = applied(down, register(down, registration(2, 2), has_kept_records=True))
    assert only(back).isr == (3,)


def test_broker_that_cannot_write_leaves_in_sync_sets_to_others() -> None:
    led, followed, lone = partition(1, 2, 3), partition(2, 1, index=1), partition(1, index=2)
    last = partition(1, 2, isr=(1,), index=3)
    before = image(3, led, followed, lone, last)
    where = [(TOPIC_ID, index) for index in range(5)] + [(uuid.UUID(int=1), 0)]
    after = applied(before, withdraw(before, 1, 10, where))
    first, second, third, fourth = after.topics["t"].partitions
    assert (first.leader, first.isr, first.leader_epoch) == (2, (2, 3), 1)
    assert (second.leader, second.isr, second.leader_epoch) == (2, (2,), 0)
    assert (third.leader, third.isr) == (1, (1,))
    assert (fourth.leader, fourth.isr) == (1, (1,))
    assert withdraw(after, 1, 10, where) == []
    assert withdraw(before, 1, 9, where) == [], "of an earlier incarnation"


def test_broker_that_cannot_write_stays_while_the_others_are_fenced() -> None:
    before = image(2, partition(1, 2))
    fenced = applied(before, [BrokerRegistrationChangeRecord(2, 10, 1)])
    assert withdraw(fenced, 1, 10, [(TOPIC_ID, 0)]) == []


def propose(
    isr: tuple[int, ...],
    epochs: tuple[int, ...] | None = None,
    leader_epoch: int = 0,
    partition_epoch: int = 0,
) -> Proposal:
    epochs = (10,) * len(isr) if epochs is None else epochs
    return Proposal(TOPIC_ID, 0, IsrChange(leader_epoch, partition_epoch, isr, epochs))


def codes(errors: list[ApiError | None]) -> list[ErrorCode]:
    return [ErrorCode.NONE if error is None else error.code for error in errors]


@pytest.mark.parametrize(
    ("proposal", "error"),
    [
        (propose((1, 2, 3)), ErrorCode.NONE),
        (propose((1,)), ErrorCode.NONE),
        (propose((1, 2), partition_epoch=-1), ErrorCode.NONE),  # has that state already
        (propose((1, 2), (10, -1)), ErrorCode.NONE),
        (propose((1, 2, 3), (10, -1, 10)), ErrorCode.NONE),  # 2 has not fetched yet
        (propose((1, 2, 3), (10, 10, -1)), ErrorCode.INELIGIBLE_REPLICA),
        (propose((1, 2, 3), (10, 10, 9)), ErrorCode.INELIGIBLE_REPLICA),
        (propose((1, 2, 4)), ErrorCode.INELIGIBLE_REPLICA),  # fenced
        (propose((1, 2, 5)), ErrorCode.INVALID_REQUEST),  # not a replica
        (propose((2, 3)), ErrorCode.INVALID_REQUEST),  # without the leader
        (propose((1, 3), partition_epoch=-1), ErrorCode.INVALID_UPDATE_VERSION),
        (propose((1, 3), partition_epoch=1), ErrorCode.NOT_CONTROLLER),
        (propose((1, 3), leader_epoch=-1), ErrorCode.FENCED_LEADER_EPOCH),
        (propose((1, 3), leader_epoch=1), ErrorCode.NOT_CONTROLLER),
        (propose((1, 3))._replace(partition_id=1), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (propose((1, 3))._replace(topic_id=incarnation(1)), ErrorCode.UNKNOWN_TOPIC_ID),
    ],
)
def test_proposal_is_checked_as_kafka_does(proposal: Proposal, error: ErrorCode) -> None:
    before = image(5, partition(1, 2, 3, 4, isr=(1, 2)))
    before = applied(before, [registration(4)._replace(fenced=True)])
    records, errors = alter_partitions(before, 1, 10, [proposal])
    assert codes(errors) == [error]
    expected = proposal.change.isr if error is ErrorCode.NONE else (1, 2)
    assert only(applied(before, records)).isr == expected


def test_proposal_of_an_earlier_incarnation_of_the_leader_is_refused() -> None:
    before = image(3, partition(1, 2, 3))
    records, errors = alter_partitions(before, 1, 9, [propose((1,))])
    assert (records, codes(errors)) == ([], [ErrorCode.STALE_BROKER_EPOCH])


def test_first_proposal_of_a_recovering_leader_ends_the_recovery() -> None:
    before = image(2, partition(1, 2, isr=(1,)))
    recovering = PartitionChangeRecord(0, TOPIC_ID, leader_recovery_state=RECOVERING)
    before = applied(before, [recovering])
    _, errors = alter_partitions(before, 1, 10, [propose((1, 2), partition_epoch=1)])
    assert codes(errors) == [ErrorCode.INVALID_REQUEST]
    records, errors = alter_partitions(before, 1, 10, [propose((1,), partition_epoch=1)])
    assert codes(errors) == [ErrorCode.NONE]
    assert only(applied(before, records)).leader_recovery_state == RECOVERED


def test_proposal_that_brings_the_last_added_replica_completes_a_reassignment() -> None:
    moving = partition(3, 1, isr=(1,), leader=1, adding_replicas=(3,), removing_replicas=(1,))
    before = image(3, moving)
    records, _ = alter_partitions(before, 1, 10, [propose((1, 3))])
    after = only(applied(before, records))
    assert (after.replicas, after.isr, after.leader, after.leader_epoch) == ((3,), (3,), 3, 1)


def test_preferred_election_is_answered_as_kafka_does() -> None:
    before = image(
        3,
        partition(1, 2, leader=2),
        partition(1, 2, index=1),
        partition(1, 2, isr=(2,), index=2),
    )
    wanted = [("t", 0), ("t", 1), ("t", 2), ("t", 3), ("u", 0)]
    records, outcome = elect(before, wanted, unclean=False)
    assert list(outcome.values()) == [
        ErrorCode.NONE,
        ErrorCode.ELECTION_NOT_NEEDED,
        ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]
    assert only(applied(before, records)).leader == 1


def test_unclean_election_on_demand_needs_a_partition_without_leader_and_a_live_replica() -> None:
    before = image(
        2,
        partition(1, 2, isr=(1,)),
        partition(2, 1, index=1),
        partition(1, isr=(1,), index=2),
    )
    before = applied(before, reconcile(before, sessions(2)))
    records, outcome = elect(before, [("t", 0), ("t", 1), ("t", 2)], unclean=True)
    assert list(outcome.values()) == [
        ErrorCode.NONE,
        ErrorCode.ELECTION_NOT_NEEDED,
        ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE,
    ]
    assert only(applied(before, records)).leader == 2


def test_leaders_go_back_to_brokers_whose_imbalance_is_above_the_limit() -> None:
    before = image(
        2,
        *(partition(1, 2, leader=2, index=index) for index in range(2)),
        *(partition(1, 2, index=index) for index in range(2, 8)),
    )
    assert prefer(before, imbalance_percent=25) == []
    after = applied(before, prefer(before, imbalance_percent=24))
    assert [it.leader for it in after.topics["t"].partitions] == [1] * 8


@given(st.integers(0, 2**32))
def test_reconciling_any_history_leaves_nothing_to_do_and_keeps_the_rules(seed: int) -> None:
    """Brokers come, restart, go and shut down; after each step the image obeys the rules."""
    drawn = random.Random(seed)
    now = image(4, *(partition(*drawn.sample((1, 2, 3, 4), 3), index=it) for it in range(3)))
    numbers = dict.fromkeys(range(1, 5), 1)
    live = sessions(1, 2, 3, 4)
    for _ in range(20):
        broker_id = drawn.randint(1, 4)
        match drawn.choice(["lost", "restart", "shutdown", "unregister"]):
            case "lost":
                live.pop(broker_id, None)
            case "restart":
                numbers[broker_id] += 1
                live[broker_id] = incarnation(broker_id, numbers[broker_id])
                now = applied(now, register(now, registration(broker_id, numbers[broker_id])))
            case "unregister":
                with contextlib.suppress(ApiError):
                    now = applied(now, unregister(now, broker_id))
            case "shutdown" if broker_id in now.brokers:
                epoch = now.brokers[broker_id].epoch
                now = applied(now, shut_down(now, broker_id, epoch))
                assert may_stop(now, broker_id)
        before = now
        now = applied(now, reconcile(now, live))
        assert reconcile(now, live) == []
        for old, new in zip(before.topics["t"].partitions, now.topics["t"].partitions, strict=True):
            assert new.isr
            assert set(new.isr) <= set(old.isr)
            assert new.leader == NO_LEADER or new.leader in new.isr
            assert new.leader == NO_LEADER or now.brokers[new.leader].is_active
            assert new.leader_epoch >= old.leader_epoch
            assert (new.leader == old.leader) or new.leader_epoch > old.leader_epoch
