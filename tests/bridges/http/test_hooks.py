"""Webhooks that come again: at the same time, after a restart, after an answer that never came, to
another bridge."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from millstream.bridges.http import hooks
from millstream.bridges.http.hooks import HookIds, Once
from millstream.bridges.http.shapes import Written
from millstream.errors import MillstreamError
from millstream.testing.pytest_plugin import SharedBroker

OK = Written(0, 1, 2)


class Log:
    """Where records go: the test settles what was sent."""

    def __init__(self) -> None:
        self.sent: list[asyncio.Future[Written]] = []
        self.ids: list[str] = []  # that came since it was read
        self.reads = 0

    def read(self) -> list[str]:
        self.reads += 1
        found, self.ids = self.ids, []
        return found

    def send(self) -> asyncio.Future[Written]:
        self.sent.append(asyncio.get_running_loop().create_future())
        return self.sent[-1]


async def turn(condition: Callable[[], bool]) -> None:
    for _ in range(10_000):
        if condition():
            return
        await asyncio.sleep(0.001)
    raise AssertionError("waited too long")


def test_id_is_written_once_also_if_it_comes_twice_at_the_same_time() -> None:
    async def run() -> None:
        log = Log()
        once = Once(log.read)
        first = asyncio.create_task(once.write("a", log.send))
        second = asyncio.create_task(once.write("a", log.send))
        await turn(lambda: len(log.sent) == 1)
        log.sent[0].set_result(OK)
        assert await first == OK
        assert await second is None
        assert await once.write("a", log.send) is None
        assert len(log.sent) == 1

    asyncio.run(run())


def test_sender_that_goes_away_does_not_undo_what_was_written() -> None:
    async def run() -> None:
        log = Log()
        once = Once(log.read)
        first = asyncio.create_task(once.write("a", log.send))
        await turn(lambda: len(log.sent) == 1)
        first.cancel()
        log.sent[0].set_result(OK)
        await turn(lambda: log.sent[0].done())
        assert await once.write("a", log.send) is None

    asyncio.run(run())


def test_id_of_another_bridge_is_known_although_the_log_was_read_before() -> None:
    async def run() -> None:
        log = Log()
        once = Once(log.read)
        task = asyncio.create_task(once.write("a", log.send))
        await turn(lambda: len(log.sent) == 1)
        log.sent[0].set_result(OK)
        assert await task == OK
        log.ids = ["b"]
        assert await once.write("b", log.send) is None
        assert len(log.sent) == 1

    asyncio.run(run())


def test_webhooks_that_come_at_the_same_time_share_a_read_that_began_after_them() -> None:
    async def run() -> None:
        log, may_end, began = Log(), threading.Event(), threading.Event()

        def read() -> list[str]:
            found = log.read()
            began.set()
            assert may_end.wait(60)
            return found

        once = Once(read)
        first = asyncio.create_task(once.write("a", log.send))
        await turn(began.is_set)
        log.ids = ["b", "c"]  # too late for the first read
        others = [asyncio.create_task(once.write(it, log.send)) for it in ("b", "c", "b")]
        await asyncio.sleep(0)
        may_end.set()
        assert await asyncio.gather(*others) == [None] * 3
        assert (log.reads, len(log.sent)) == (2, 1)
        log.sent[0].set_result(OK)
        assert await first == OK

    asyncio.run(run())


def test_what_a_read_found_is_known_although_its_sender_went_away() -> None:
    async def run() -> None:
        log, may_end, began = Log(), threading.Event(), threading.Event()
        log.ids = ["b"]

        def read() -> list[str]:
            found = log.read()
            began.set()
            assert may_end.wait(60)
            return found

        once = Once(read)
        first = asyncio.create_task(once.write("a", log.send))
        await turn(began.is_set)
        first.cancel()
        may_end.set()
        assert await once.write("b", log.send) is None
        assert not log.sent

    asyncio.run(run())


def test_record_that_was_not_acknowledged_is_written_again_unless_it_is_in_the_log() -> None:
    async def run() -> None:
        log = Log()
        once = Once(log.read)
        failed = Written(status=503, error="no")
        for _ in range(2):
            task = asyncio.create_task(once.write("a", log.send))
            await turn(lambda: bool(log.sent) and not log.sent[-1].done())
            log.sent[-1].set_result(failed)
            assert await task == failed
        log.ids = ["a"]  # it was late
        assert await once.write("a", log.send) is None
        assert len(log.sent) == 2

    asyncio.run(run())


def test_webhook_is_refused_while_ids_are_unknown() -> None:
    async def run() -> None:
        def fail() -> list[str]:
            raise MillstreamError("the cluster is away")

        log = Log()
        written = await Once(fail).write("a", log.send)
        assert written is not None
        assert (written.status, written.error) == (503, "the cluster is away")
        assert not log.sent

    asyncio.run(run())


def test_webhook_without_an_id_is_written_each_time() -> None:
    async def run() -> None:
        log = Log()
        once = Once(log.read)
        for _ in range(2):
            task = asyncio.create_task(once.write("", log.send))
            await turn(lambda: bool(log.sent) and not log.sent[-1].done())
            log.sent[-1].set_result(OK)
            assert await task == OK
        assert len(log.sent) == 2

    asyncio.run(run())


def test_ids_of_a_hook_are_found_in_all_partitions(millstream: SharedBroker) -> None:
    settings, topic = millstream.client_settings(), millstream.unique_topic()
    admin, producer = AdminClient(settings), Producer(settings)
    ids = HookIds(settings, topic, "in")

    def produce(numbers: range, partitions: int) -> None:
        for number in numbers:
            name = b"in" if number != 5 else b"other"
            headers = [(hooks.ID, b"id-%d" % number), (hooks.HOOK, name)]
            producer.produce(topic, b"{}", partition=number % partitions, headers=headers)
        producer.produce(topic, b"of something else", partition=0)
        assert producer.flush(60) == 0

    assert ids.read() == []
    admin.create_topics([NewTopic(topic, 3)])[topic].result(60)
    assert ids.read() == []
    produce(range(6), 3)
    assert sorted(ids.read()) == [f"id-{it}" for it in range(5)]
    assert ids.read() == []
    admin.create_partitions([NewPartitions(topic, 4)])[topic].result(60)
    producer.list_topics(topic, 60)
    produce(range(6, 10), 4)
    assert sorted(ids.read()) == [f"id-{it}" for it in range(6, 10)]
    ids.close()
