"""Fetch sessions: KIP-227's rules, the bounded cache, and who is looked at."""

from __future__ import annotations

import asyncio
import random
from functools import partial

import pytest

from millstream.broker.replicas.fetch_sessions import (
    EVICTION_AGE_MS,
    FINAL_EPOCH,
    INITIAL_EPOCH,
    NO_SESSION,
    FetchSession,
    FetchSessionCache,
)
from millstream.broker.replicas.pending import ACKS_LEADER
from millstream.broker.replicas.replica_sessions import ReplicaSession
from millstream.errors import ApiError, ErrorCode
from millstream.protocol.fetch import FetchedPartition, FetchPartition, FetchRequest
from tests.broker.sharing.leading import Leader


def request(
    session_id: int = NO_SESSION,
    epoch: int = INITIAL_EPOCH,
    wanted: tuple[int, ...] = (),
    forgotten: tuple[int, ...] = (),
) -> FetchRequest:
    partitions = [FetchPartition(index, -1, 0, -1, 1000) for index in wanted]
    return FetchRequest(
        replica_id=-1,
        max_wait_ms=0,
        min_bytes=1,
        max_bytes=1000,
        isolation_level=0,
        session_id=session_id,
        session_epoch=epoch,
        topics=[("topic", partitions)] if partitions else [],
        forgotten=[("topic", list(forgotten))] if forgotten else [],
    )


def new_cache(slots: int = 2) -> FetchSessionCache:
    return FetchSessionCache(slots, random_source=random.Random(1))


def open_session(cache: FetchSessionCache, now_ms: int = 0, **fields: object) -> FetchSession:
    return cache.open(request(**fields), now_ms, uses_topic_ids=False)  # type: ignore[arg-type]


def wanted_by(session: FetchSession) -> list[int]:
    return sorted(index for _, index in session.targets)


def test_first_fetch_opens_a_session_that_later_fetches_add_to_and_take_from() -> None:
    cache = new_cache()
    session = open_session(cache, wanted=(0, 1))
    assert session.id != NO_SESSION
    again = open_session(cache, session_id=session.id, epoch=1, wanted=(2,), forgotten=(0,))
    assert again is session
    assert wanted_by(session) == [1, 2]
    assert open_session(cache, session_id=session.id, epoch=2) is session


def test_fetch_without_a_session_leaves_nothing_behind() -> None:
    cache = new_cache()
    session = open_session(cache, epoch=FINAL_EPOCH, wanted=(0,))
    assert session.id == NO_SESSION
    assert len(cache) == 0


@pytest.mark.parametrize(
    ("session_id_shift", "epoch", "code"),
    [
        (1, 1, ErrorCode.FETCH_SESSION_ID_NOT_FOUND),
        (0, 2, ErrorCode.INVALID_FETCH_SESSION_EPOCH),
    ],
)
def test_fetch_that_is_out_of_step_is_refused(
    session_id_shift: int, epoch: int, code: ErrorCode
) -> None:
    cache = new_cache()
    session = open_session(cache, wanted=(0,))
    with pytest.raises(ApiError) as refusal:
        open_session(cache, session_id=session.id + session_id_shift, epoch=epoch)
    assert refusal.value.code is code


def test_session_is_its_owners_alone() -> None:
    cache = new_cache()
    session = cache.open(request(0, 0, wanted=(0,)), 0, uses_topic_ids=False, owner="ann")
    with pytest.raises(ApiError) as refusal:
        cache.open(request(session.id, 1), 0, uses_topic_ids=False, owner="bob")
    assert refusal.value.code is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    for epoch in (INITIAL_EPOCH, FINAL_EPOCH):
        cache.open(request(session.id, epoch), 0, uses_topic_ids=False, owner="bob")
    assert cache.open(request(session.id, 1), 0, uses_topic_ids=False, owner="ann") is session


def test_session_of_names_is_not_continued_with_topic_ids() -> None:
    cache = new_cache()
    session = open_session(cache, wanted=(0,))
    with pytest.raises(ApiError) as refusal:
        cache.open(request(session.id, 1), 0, uses_topic_ids=True)
    assert refusal.value.code is ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR


def test_final_fetch_closes_its_session() -> None:
    cache = new_cache()
    session = open_session(cache, wanted=(0,))
    open_session(cache, session_id=session.id, epoch=FINAL_EPOCH, wanted=(0,))
    assert len(cache) == 0


def test_session_that_has_forgotten_everything_is_closed() -> None:
    cache = new_cache()
    session = open_session(cache, wanted=(0,))
    session = open_session(cache, session_id=session.id, epoch=1, forgotten=(0,))
    assert session.id == NO_SESSION
    assert len(cache) == 0


def test_full_cache_declines_until_a_session_was_unused_for_long() -> None:
    cache = new_cache(slots=1)
    oldest = open_session(cache, wanted=(0,))
    assert open_session(cache, EVICTION_AGE_MS - 1, wanted=(0,)).id == NO_SESSION
    newer = open_session(cache, EVICTION_AGE_MS, wanted=(0,))
    assert newer.id != NO_SESSION
    with pytest.raises(ApiError):
        open_session(cache, session_id=oldest.id, epoch=1)


def test_session_looks_only_at_partitions_that_changed() -> None:
    async def main() -> None:
        leader = Leader()
        partitions = [leader.partition("topic", index) for index in range(3)]
        session = open_session(new_cache(), wanted=(0, 1, 2))
        for target, partition in zip(session.targets.values(), partitions, strict=True):
            session.bind(target, partition)
        session.candidates.clear()
        partitions[1].append(leader.batch(b"a"), acks=ACKS_LEADER)
        assert [target.partition for target in session.candidates] == [partitions[1]]
        session.candidates.clear()
        partitions[2].go_offline(ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
        (gone,) = session.candidates
        assert gone.wanted.partition == 2
        assert gone.partition is None
        session.close()
        session.candidates.clear()
        partitions[1].append(leader.batch(b"a"), acks=ACKS_LEADER)
        assert not session.candidates

    asyncio.run(main())


def test_incremental_answer_mentions_only_what_is_new() -> None:
    (target,) = open_session(new_cache(), wanted=(0,)).targets.values()
    quiet = FetchedPartition(0, ErrorCode.NONE, 5, 5, 0)
    assert target.has_news(quiet)
    target.last_answer = (0, 5, 5, 0)
    assert not target.has_news(quiet)
    for news in (
        quiet._replace(high_watermark=6),
        quiet._replace(log_start_offset=1),
        quiet._replace(records=b"batch"),
        quiet._replace(error=ErrorCode.NOT_LEADER_OR_FOLLOWER),
        quiet._replace(diverging_epoch=(1, 2)),
    ):
        assert target.has_news(news)


def test_consumers_make_room_for_a_follower() -> None:
    cache = new_cache(slots=2)
    first, second = (open_session(cache, wanted=(0,)) for _ in range(2))
    assert open_session(cache, wanted=(0,)).id == NO_SESSION
    new = partial(ReplicaSession, replica_id=2, now_ms=lambda: 0)
    followers = [cache.open_as(new, request(wanted=(0,)), 0, False, ("x", 2)) for _ in range(3)]
    assert [it.id != NO_SESSION for it in followers] == [True, True, False]
    for session in (first, second):
        with pytest.raises(ApiError):
            open_session(cache, session_id=session.id, epoch=1)
    with pytest.raises(ApiError) as error:  # a consumer cannot use the session of a follower
        open_session(cache, session_id=followers[0].id, epoch=1)
    assert error.value.code is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
