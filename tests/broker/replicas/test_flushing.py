"""Group commit: who is flushed together, and where the flush runs."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from unittest import mock

import pytest

from millstream.broker.replicas import flushing
from millstream.broker.replicas.partition import Partition
from millstream.broker.replicas.pending import ACKS_ALL
from millstream.errors import ApiError, ErrorCode
from tests.broker.sharing.leading import Leader, turn


def syncs(leader: Leader) -> list[str]:
    """The segments and journals that were synced, by their file names."""
    synced = [Path(it.path).name for it in leader.fs.operations if it.name == "fdatasync"]
    return [name for name in synced if name.endswith(".log") or "journal" in name]


def test_one_flush_serves_all_requests_of_a_turn() -> None:
    async def main() -> None:
        leader = Leader()
        first, second = leader.partition("a"), leader.partition("b")
        pending = [
            partition.append(leader.batch(b"x"), acks=ACKS_ALL)
            for partition in (first, second, first, second, first)
        ]
        await turn()
        assert all(it.is_done for it in pending)
        assert leader.flusher.flush_count == 1
        assert syncs(leader) == ["millstream-journal-0"]

    asyncio.run(main())


def test_clients_are_answered_in_the_turn_of_the_flush_and_consumers_first() -> None:
    async def main() -> None:
        leader, calls = Leader(), list[str]()

        class Consumer:
            def partition_changed(self, partition: Partition) -> None:
                leader.turn.call_at_end(lambda: calls.append("consumer"))

        partition = leader.partition()
        partition.watch(Consumer())
        pending = partition.append(leader.batch(b"x"), acks=ACKS_ALL)
        pending.when_done(lambda _: leader.turn.call_at_end(lambda: calls.append("producer")))
        await asyncio.sleep(0)  # one turn of the loop, in which the flush runs
        assert calls == ["consumer", "producer"]

    asyncio.run(main())


def test_flush_in_the_thread_leaves_the_loop_free_and_gathers_what_comes_meanwhile() -> None:
    async def main() -> None:
        leader = Leader()
        partition = leader.partition()
        release, entered = threading.Event(), threading.Event()
        real = leader.fs.fdatasync

        def slow_sync(fd: int) -> None:
            entered.set()
            assert threading.current_thread() is not threading.main_thread()
            release.wait()
            real(fd)

        leader.flusher.use_thread()
        leader.fs.fdatasync = slow_sync  # type: ignore[method-assign]
        first = partition.append(leader.batch(b"a"), acks=ACKS_ALL)
        await asyncio.to_thread(entered.wait)
        later = [partition.append(leader.batch(b"b"), acks=ACKS_ALL) for _ in range(3)]
        assert not first.is_done
        release.set()
        await first
        for pending in later:
            await pending
        assert leader.flusher.flush_count == 2
        assert partition.high_watermark == 4
        leader.flusher.close()

    asyncio.run(main())


def test_first_flush_of_a_log_runs_in_the_thread() -> None:
    """Its names are synced with it, which takes long while the disk is busy."""

    async def main() -> None:
        leader = Leader(new_logs_inline=False)
        threads: list[threading.Thread] = []
        real = leader.fs.fdatasync

        def sync(fd: int) -> None:
            threads.append(threading.current_thread())
            real(fd)

        leader.fs.fdatasync = sync  # type: ignore[method-assign]
        partition = leader.partition()
        await partition.append(leader.batch(b"a"), acks=ACKS_ALL)
        assert threading.main_thread() not in threads
        threads.clear()
        leader.flusher.uses_thread = False  # however long that one took
        await partition.append(leader.batch(b"b"), acks=ACKS_ALL)
        assert threads == [threading.main_thread()]
        leader.flusher.close()

    asyncio.run(main())


def test_flush_of_many_new_logs_runs_in_the_thread() -> None:
    """Each of them has names to sync: together they are not short."""

    async def main() -> None:
        leader = Leader()
        threads: set[threading.Thread] = set()
        real = leader.fs.fdatasync

        def sync(fd: int) -> None:
            threads.add(threading.current_thread())
            real(fd)

        leader.fs.fdatasync = sync  # type: ignore[method-assign]
        names = [f"t{number}" for number in range(flushing.INLINE_SYNCS_MAX)]
        pending = [
            leader.partition(name).append(leader.batch(b"x"), acks=ACKS_ALL) for name in names
        ]
        for it in pending:
            await it
        assert threads
        assert threading.main_thread() not in threads
        assert leader.flusher.flush_count == 1
        leader.flusher.close()

    asyncio.run(main())


def test_flusher_moves_to_the_thread_when_flushes_are_long_and_back_when_short() -> None:
    async def main() -> None:
        leader = Leader()
        for _ in range(50):
            leader.flusher.note_duration(10 * flushing.TO_THREAD_ABOVE_SECONDS)
        assert leader.flusher.uses_thread
        for _ in range(50):
            leader.flusher.note_duration(0.1 * flushing.BACK_INLINE_BELOW_SECONDS)
        assert not leader.flusher.uses_thread

    asyncio.run(main())


def test_failed_directory_is_reported_with_its_logs() -> None:
    async def main() -> None:
        leader = Leader()
        partition = leader.partition()
        reported: list[object] = []
        leader.flusher.on_directory_failed = reported.extend
        partition.append(leader.batch(b"a"), acks=ACKS_ALL)
        leader.fs.fail_next_sync("journal")
        await turn()
        assert reported == [partition.log]

    asyncio.run(main())


def test_closed_flusher_begins_no_flush() -> None:
    """What is asked for at the very end is left to the stop, which flushes everything."""

    async def main() -> None:
        leader = Leader()
        pending = leader.partition().append(leader.batch(b"x"), acks=ACKS_ALL)
        leader.flusher.close()
        await turn()
        assert not pending.is_done
        assert leader.flusher.flush_count == 0

    asyncio.run(main())


def test_flush_waits_while_every_turn_brings_another_request() -> None:
    async def main() -> None:
        leader = Leader()
        partition = leader.partition()
        crowd = [partition.append(leader.batch(b"x"), acks=ACKS_ALL) for _ in range(5)]
        await turn()
        assert all(it.is_done for it in crowd)
        leader.flusher.uses_thread = False  # however long that one took

        first = partition.append(leader.batch(b"x"), acks=ACKS_ALL)
        await asyncio.sleep(0)
        assert not first.is_done  # five shared the flush before: more may come
        second = partition.append(leader.batch(b"x"), acks=ACKS_ALL)
        await turn()
        assert first.is_done
        assert second.is_done
        assert leader.flusher.flush_count == 2

    asyncio.run(main())


def test_partition_whose_waiters_fail_does_not_cost_the_others_their_answers() -> None:
    async def main() -> None:
        leader = Leader()
        first, second = leader.partition("a"), leader.partition("b")
        with mock.patch.object(first, "flushed", side_effect=RuntimeError("a defect")):
            first.append(leader.batch(b"x"), acks=ACKS_ALL)
            pending = second.append(leader.batch(b"x"), acks=ACKS_ALL)
            await turn()
        assert pending.is_done

    asyncio.run(main())


def test_flush_in_the_thread_that_ends_with_a_defect_is_answered() -> None:
    async def main() -> None:
        leader = Leader()
        partition = leader.partition()
        leader.flusher.use_thread()
        with mock.patch.object(leader.fs, "fdatasync", side_effect=TypeError("a defect")):
            pending = partition.append(leader.batch(b"x"), acks=ACKS_ALL)
            with pytest.raises(ApiError) as refused:
                await pending
        assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR
        assert leader.flusher.flush_count == 1
        leader.flusher.close()

    asyncio.run(main())
