"""One step of one member towards its target, in every state."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.coordination.groups.consumer_assignment import Reconciliation, reconcile
from millstream.coordination.groups.consumer_member import ConsumerMember, MemberState
from millstream.errors import ApiError, ErrorCode

T, U = UUID(int=1), UUID(int=2)


def step(target: dict[UUID, set[int]], **fields: Any) -> Reconciliation:
    elsewhere = fields.pop("elsewhere", frozenset())
    owned = fields.pop("owned", None)
    return Reconciliation(
        target_epoch=fields.pop("epoch", 2),
        target={t: frozenset(partitions) for t, partitions in target.items()},
        subscribed_topics=fields.pop("subscribed", {T, U}),
        subscription_changed=fields.pop("changed", False),
        owned=None if owned is None else {t: frozenset(p) for t, p in owned.items()},
        is_owned=lambda t, partition: (t, partition) in elsewhere,
    )


def member(assigned: dict[UUID, dict[int, int]], **fields: Any) -> ConsumerMember:
    return ConsumerMember("m", epoch=1, assigned=assigned, **fields)


def test_stable_member_at_the_target_stays_as_it_is() -> None:
    before = replace(member({T: {0: 1}}), epoch=2)
    assert reconcile(before, step({T: {0, 1}})) is before


def test_free_partitions_are_taken_at_once() -> None:
    after = reconcile(member({T: {0: 1}}), step({T: {0, 1}}))
    assert (after.state, after.epoch, after.previous_epoch) == (MemberState.STABLE, 2, 1)
    assert after.assigned == {T: {0: 1, 1: 2}}


def test_partitions_must_be_given_up_before_the_epoch_moves() -> None:
    after = reconcile(member({T: {0: 1, 1: 1}}), step({T: {1}, U: {0}}))
    assert (after.state, after.epoch) == (MemberState.UNREVOKED_PARTITIONS, 1)
    assert (after.assigned, after.pending_revocation) == ({T: {1: 1}}, {T: {0: 1}})

    still = reconcile(after, step({T: {1}, U: {0}}, owned={T: {0, 1}}))
    assert still is after
    silent = reconcile(after, step({T: {1}, U: {0}}))
    assert silent is after, "saying nothing is not giving up"

    done = reconcile(after, step({T: {1}, U: {0}}, owned={T: {1}}))
    assert (done.state, done.epoch) == (MemberState.STABLE, 2)
    assert (done.assigned, done.pending_revocation) == ({T: {1: 1}, U: {0: 2}}, {})


def test_partitions_the_member_never_took_need_no_giving_up() -> None:
    after = reconcile(member({T: {0: 1, 1: 1}}), step({T: {1}}, owned={T: {1}}))
    assert (after.state, after.epoch) == (MemberState.STABLE, 2)
    assert after.assigned == {T: {1: 1}}


def test_partitions_of_others_are_waited_for() -> None:
    after = reconcile(member({}), step({T: {0, 1}}, elsewhere={(T, 0)}))
    assert (after.state, after.epoch) == (MemberState.UNRELEASED_PARTITIONS, 2)
    assert after.assigned == {T: {1: 2}}
    later = reconcile(after, step({T: {0, 1}}, epoch=3))
    assert (later.state, later.assigned) == (MemberState.STABLE, {T: {0: 3, 1: 2}})


def test_partition_the_member_itself_gives_up_can_come_back_to_it() -> None:
    before = member({}, pending_revocation={T: {0: 1}}, state=MemberState.UNREVOKED_PARTITIONS)
    after = reconcile(before, step({T: {0}}, owned={}, elsewhere={(T, 0)}))
    assert (after.state, after.assigned) == (MemberState.STABLE, {T: {0: 2}})


def test_unsubscribed_topic_is_taken_away_before_the_target_is_computed() -> None:
    before = replace(member({T: {0: 1}, U: {0: 1}}), epoch=2)
    after = reconcile(before, step({T: {0}, U: {0}}, subscribed={T}, changed=True))
    assert (after.state, after.epoch) == (MemberState.UNREVOKED_PARTITIONS, 2)
    assert (after.assigned, after.pending_revocation) == ({T: {0: 1}}, {U: {0: 1}})
    given_up = reconcile(
        before, step({T: {0}, U: {0}}, subscribed={T}, changed=True, owned={T: {0}})
    )
    assert (given_up.state, given_up.assigned) == (MemberState.STABLE, {T: {0: 1}})


def test_further_topics_join_those_already_to_be_given_up() -> None:
    before = member(
        {U: {0: 1}}, pending_revocation={T: {0: 1}}, state=MemberState.UNREVOKED_PARTITIONS
    )
    after = reconcile(before, step({U: {0}}, subscribed={T}, changed=True, owned={T: {0}}))
    assert after.pending_revocation == {T: {0: 1}, U: {0: 1}}
    unchanged = reconcile(before, step({U: {0}}, changed=True, owned={T: {0}}))
    assert unchanged is before


def test_target_of_an_unsubscribed_topic_is_ignored() -> None:
    after = reconcile(member({}), step({T: {0}, U: {0}}, subscribed={U}))
    assert after.assigned == {U: {0: 2}}


def test_member_of_an_unknown_state_starts_over() -> None:
    before = member({T: {0: 1}}, state=MemberState.UNKNOWN)
    with pytest.raises(ApiError) as fenced:
        reconcile(before, step({T: {0}}, owned={T: {0}}))
    assert fenced.value.code is ErrorCode.FENCED_MEMBER_EPOCH
    assert reconcile(before, step({T: {0}}, owned={})).epoch == 2


partitions = st.frozensets(st.integers(0, 5))


@given(has=partitions, target=partitions, elsewhere=partitions, claims=st.none() | partitions)
def test_step_never_gives_what_others_own_nor_drops_what_it_has_not_given_up(
    has: frozenset[int],
    target: frozenset[int],
    elsewhere: frozenset[int],
    claims: frozenset[int] | None,
) -> None:
    elsewhere -= has
    before = member({T: dict.fromkeys(has, 1)} if has else {})
    owned = None if claims is None else {T: set(claims)}
    step_taken = step(
        {T: set(target)}, elsewhere={(T, partition) for partition in elsewhere}, owned=owned
    )
    after = reconcile(before, step_taken)
    held = set(after.assigned.get(T, {}))
    to_give_up = set(after.pending_revocation.get(T, {}))
    assert not held & elsewhere
    assert held <= target
    claimed = has if claims is None else has & claims
    assert claimed - target <= to_give_up or not claimed - target
    if after.state is MemberState.STABLE:
        assert held == target
