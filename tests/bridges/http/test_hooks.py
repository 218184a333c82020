"""Webhooks that come again: at the same time, after a restart, after an answer that never came."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from millstream.bridges.http import hooks
from millstream.bridges.http.hooks import Once, last_ids
from millstream.bridges.http.shapes import Written
from millstream.errors import MillstreamError
from millstream.testing.pytest_plugin import SharedBroker

OK = Written(0, 1, 2)


class Log:
    """Where records go: the test settles what was sent."""

    def __init__(self) -> None:
        self.sent: list[asyncio.Future[Written]] = []
        self.ids: list[str] = []
        self.loads = 0

    def load(self) -> list[str]:
        self.loads += 1
        return list(self.ids)

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
        once = Once(log.load)
        first = asyncio.create_task(once.write("a", log.send))
        second = asyncio.create_task(once.write("a", log.send))
        await turn(lambda: len(log.sent) == 1)
        log.sent[0].set_result(OK)
        assert await first == OK
        assert await second is None
        assert await once.write("a", log.send) is None
        assert (len(log.sent), log.loads) == (1, 1)

    asyncio.run(run())


def test_sender_that_goes_away_does_not_undo_what_was_written() -> None:
    async def run() -> None:
        log = Log()
        once = Once(log.load)
        first = asyncio.create_task(once.write("a", log.send))
        await turn(lambda: len(log.sent) == 1)
        first.cancel()
        log.sent[0].set_result(OK)
        await turn(lambda: log.sent[0].done())
        assert await once.write("a", log.send) is None

    asyncio.run(run())


def test_ids_are_read_again_after_an_answer_that_never_came() -> None:
    """The record may be in the log, or not."""

    async def run() -> None:
        log = Log()
        once = Once(log.load)
        for status, loads in ((503, 2), (413, 2)):
            task = asyncio.create_task(once.write("a", log.send))
            await turn(lambda: bool(log.sent) and not log.sent[-1].done())
            failed = Written(status=status, error="no")
            log.sent[-1].set_result(failed)
            assert await task == failed
            again = asyncio.create_task(once.write(f"other {status}", log.send))
            await turn(lambda: not log.sent[-1].done())
            log.sent[-1].set_result(OK)
            await again
            assert log.loads == loads
        log.ids = ["late"]
        once = Once(log.load)
        assert await once.write("late", log.send) is None

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
        once = Once(log.load)
        for _ in range(2):
            task = asyncio.create_task(once.write("", log.send))
            await turn(lambda: bool(log.sent) and not log.sent[-1].done())
            log.sent[-1].set_result(OK)
            assert await task == OK
        assert len(log.sent) == 2

    asyncio.run(run())


def test_ids_of_a_hook_are_found_in_all_partitions(millstream: SharedBroker) -> None:
    settings, topic = millstream.client_settings(), millstream.unique_topic()
    admin = AdminClient(settings)
    admin.create_topics([NewTopic(topic, 3)])[topic].result(60)
    assert last_ids(settings, topic, "in") == []
    producer = Producer(settings)
    for number in range(6):
        name = b"in" if number < 5 else b"other"
        headers = [(hooks.ID, b"id-%d" % number), (hooks.HOOK, name)]
        producer.produce(topic, b"{}", partition=number % 3, headers=headers)
    producer.produce(topic, b"of something else", partition=0)
    assert producer.flush(60) == 0
    assert sorted(last_ids(settings, topic, "in")) == [f"id-{it}" for it in range(5)]
