"""Guards of a partition while a transaction is verified."""

from __future__ import annotations

from millstream.broker.replicas.guards import VerificationGuards

EPOCH = 4


def test_guard_is_valid_until_it_is_dropped() -> None:
    guards = VerificationGuards()
    first, second = guards.take(7, EPOCH), guards.take(7, EPOCH)
    guards.drop(first)
    assert not guards.is_valid(first, EPOCH)
    assert guards.is_valid(second, EPOCH)
    guards.drop(second)
    guards.drop(second)
    assert not guards.is_valid(second, EPOCH)


def test_marker_invalidates_all_guards_of_its_producer_only() -> None:
    guards = VerificationGuards()
    ended, other = [guards.take(7, EPOCH), guards.take(7, EPOCH)], guards.take(8, EPOCH)
    guards.invalidate(7)
    guards.invalidate(9)
    assert not any(guards.is_valid(guard, EPOCH) for guard in ended)
    assert guards.is_valid(other, EPOCH)


def test_guard_taken_after_the_marker_is_valid() -> None:
    guards = VerificationGuards()
    before = guards.take(7, EPOCH)
    guards.invalidate(7)
    after = guards.take(7, EPOCH)
    assert guards.is_valid(after, EPOCH)
    assert not guards.is_valid(before, EPOCH)
    guards.drop(before)  # of no effect on the new one
    assert guards.is_valid(after, EPOCH)


def test_guard_of_another_leader_epoch_is_invalid() -> None:
    guards = VerificationGuards()
    guard = guards.take(7, EPOCH)
    assert not guards.is_valid(guard, EPOCH + 1)
