"""Messages in order, whatever the network does; gaps where nothing helps."""

from __future__ import annotations

import random

import pytest

from millstream.bridges.mold import gaps
from millstream.bridges.mold.gaps import GIVE_UP_SECONDS, REORDER_SECONDS, Gap, Message, Ordered
from millstream.bridges.mold.packets import Packet, session_of

ONE, TWO = session_of("one"), session_of("two")


def packet(sequence: int, count: int = 1, session: bytes = ONE) -> Packet:
    return Packet(session, sequence, tuple(b"%d" % it for it in range(sequence, sequence + count)))


def numbers(found: list[Message | Gap]) -> list[int | tuple[int, int]]:
    return [it.sequence if isinstance(it, Message) else (it.first, it.last) for it in found]


def test_gap_is_asked_for_after_a_moment_and_filled() -> None:
    ordered = Ordered()
    assert numbers(ordered.take(packet(5), 0.0)) == [5]  # the stream is joined here
    assert ordered.take(packet(8, 2), 0.0) == []
    assert ordered.requests(REORDER_SECONDS / 2) == []
    assert ordered.requests(REORDER_SECONDS) == [(6, 2)]
    assert ordered.requests(REORDER_SECONDS) == []
    assert ordered.requests(1.0) == [(6, 2)]
    assert numbers(ordered.take(packet(6, 2), 1.0)) == [6, 7, 8, 9]
    assert ordered.requests(9.0) == []
    assert ordered.expire(9.0) == []


def test_heartbeat_shows_that_the_last_message_is_missing() -> None:
    ordered = Ordered()
    ordered.take(packet(1), 0.0)
    assert ordered.take(Packet(ONE, 3), 0.0) == []
    assert ordered.requests(0.1) == [(2, 1)]
    assert numbers(ordered.expire(GIVE_UP_SECONDS)) == [(2, 2)]
    assert numbers(ordered.take(packet(3), 9.0)) == [3]


def test_gap_is_given_up_and_reported_once() -> None:
    ordered = Ordered()
    ordered.take(packet(1), 0.0)
    ordered.take(packet(4), 0.0)
    ordered.take(packet(6), 1.0)
    assert ordered.expire(GIVE_UP_SECONDS - 0.1) == []
    assert numbers(ordered.expire(GIVE_UP_SECONDS)) == [(2, 3), 4]
    assert numbers(ordered.expire(GIVE_UP_SECONDS + 1)) == [(5, 5), 6]
    assert ordered.take(packet(2), 9.0) == []  # too late
    assert ordered.repeated == 1


def test_next_session_ends_the_one_before() -> None:
    ordered = Ordered()
    ordered.take(packet(1), 0.0)
    ordered.take(packet(4), 0.0)
    assert ordered.take(packet(1, 2, TWO), 0.0) == []
    found = ordered.take(Packet(TWO, 3), 0.0)  # a heartbeat
    assert numbers(found) == [(2, 3), 4, 1, 2]
    assert isinstance(found[0], Gap)
    assert found[0].reason == "the session ended"


def test_next_session_is_received_from_its_beginning() -> None:
    ordered = Ordered(ONE, 7)
    assert ordered.take(packet(49, session=TWO), 0.0) == []
    assert ordered.take(packet(50, session=TWO), 0.0) == []
    assert ordered.requests(1.0) == [(1, 48)]
    assert numbers(ordered.expire(GIVE_UP_SECONDS)) == [(1, 48), 49, 50]
    # What is late of the session before changes nothing.
    assert ordered.take(packet(6), 3.0) == []
    assert ordered.take(Packet(ONE, 7, (), True), 3.0) == []
    assert (ordered.session, ordered.repeated) == (TWO, 1)
    # A session that goes on is continued where it was left.
    assert numbers(ordered.take(packet(7), 3.0)) == [7]
    assert numbers(ordered.take(packet(51, session=TWO), 3.0)) == [51]


def test_stray_packets_do_not_end_a_session() -> None:
    ordered = Ordered()
    ordered.take(packet(1), 0.0)
    ordered.take(packet(3), 0.0)
    for number in range(40):  # more than the sessions that are kept
        assert ordered.take(packet(7, session=session_of(f"stray {number}")), 0.0) == []
    assert ordered.take(packet(2**60, session=session_of("stray 39")), 0.0) == []  # not behind it
    assert ordered.strays == 40
    assert numbers(ordered.take(packet(2), 0.0)) == [2, 3]
    # Another session is received from its first packet on, whatever comes of the old one meanwhile.
    assert ordered.take(packet(1, session=TWO), 1.0) == []
    assert numbers(ordered.take(packet(4), 1.0)) == [4]
    assert numbers(ordered.take(packet(2, session=TWO), 60.0)) == [1, 2]


def test_one_packet_far_ahead_is_not_believed() -> None:
    ordered = Ordered()
    ordered.take(packet(1), 0.0)
    assert ordered.take(packet(2**50), 0.0) == []
    assert ordered.take(packet(2**50), 0.0) == []  # the same one again
    assert numbers(ordered.take(packet(2), 0.0)) == [2]
    assert ordered.take(packet(2**51), 0.0) == []
    assert ordered.refused == 3
    assert ordered.expire(GIVE_UP_SECONDS) == []
    # A stream that has really moved on is followed.
    assert ordered.take(packet(2**51 + 1), 5.0) == []
    assert numbers(ordered.expire(9.0)) == [(3, 2**51), 2**51 + 1]


def test_stream_continues_after_what_was_written() -> None:
    ordered = Ordered(ONE, 4)
    assert ordered.take(packet(2), 0.0) == []
    assert ordered.take(packet(9), 0.0) == []
    assert ordered.requests(1.0) == [(4, 5)]


def test_gaps_behind_one_that_never_comes_are_asked_for() -> None:
    ordered = Ordered()
    for sequence in (1, 3, 6):
        ordered.take(packet(sequence), 0.0)
    assert ordered.requests(0.01) == [(2, 1), (4, 2)]
    assert ordered.requests(0.02) == []
    assert ordered.take(packet(4, 2), 0.03) == []
    assert ordered.requests(0.07) == [(2, 1)]
    assert numbers(ordered.expire(GIVE_UP_SECONDS)) == [(2, 2), 3, 4, 5, 6]


def test_what_waits_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gaps, "WAITING_MAX", 3)
    ordered = Ordered()
    ordered.take(packet(1), 0.0)
    assert ordered.take(packet(3, 3), 0.0) == []
    assert numbers(ordered.take(packet(6), 0.0)) == [(2, 2), 3, 4, 5, 6]


def test_bytes_that_wait_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gaps, "WAITING_BYTES_MAX", 100)
    ordered = Ordered()
    ordered.take(packet(1), 0.0)
    for sequence, found in ((3, []), (4, [(2, 2), 3, 4]), (6, []), (7, [(5, 5), 6, 7])):
        large = Packet(ONE, sequence, (b"x" * 60,))
        assert numbers(ordered.take(large, 0.0)) == found


@pytest.mark.parametrize("seed", range(30))
@pytest.mark.parametrize("is_served", [True, False])
def test_every_message_comes_once_in_order_or_is_in_a_gap(seed: int, is_served: bool) -> None:
    dice = random.Random(seed)
    ordered, now, found = Ordered(), 0.0, list[Message | Gap]()
    found += ordered.take(packet(1), now)
    sent = [packet(it, 2) for it in range(2, 200, 2)]
    on_the_way = [it for it in sent if dice.random() > 0.2]
    on_the_way += [it for it in on_the_way if dice.random() < 0.1]  # repeated
    on_the_way.sort(key=lambda it: it.sequence + dice.uniform(-8, 8))
    for one in [*on_the_way, Packet(ONE, 200)]:
        now += dice.uniform(0, 0.02)
        found += ordered.take(one, now)
        for first, count in ordered.requests(now):
            if is_served and dice.random() > 0.3:
                found += ordered.take(packet(first, count), now)
        found += ordered.expire(now)
    for _ in range(400):
        now += 0.05
        for first, count in ordered.requests(now):
            if is_served:
                found += ordered.take(packet(first, count), now)
        found += ordered.expire(now)
    covered: list[int] = []
    for it in found:
        covered += [it.sequence] if isinstance(it, Message) else range(it.first, it.last + 1)
    assert covered == list(range(1, 200))
    if is_served:
        assert not [it for it in found if isinstance(it, Gap)]
