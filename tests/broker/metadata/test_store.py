"""A commit goes on when its caller is cancelled."""

from __future__ import annotations

import asyncio

import pytest

from millstream.broker.metadata.store import registration, run_to_its_end


def test_work_goes_on_when_its_caller_is_cancelled() -> None:
    async def scenario() -> None:
        may_end, ended = asyncio.Event(), asyncio.Event()

        async def work() -> None:
            await may_end.wait()
            ended.set()

        caller = asyncio.ensure_future(run_to_its_end(work()))
        await asyncio.sleep(0)
        caller.cancel()
        with pytest.raises(asyncio.CancelledError):
            await caller
        assert not ended.is_set()
        may_end.set()
        await ended.wait()

    asyncio.run(scenario())


def test_every_registration_is_another_incarnation() -> None:
    first, second = (registration(1, [], epoch=5, rack="r", directories=()) for _ in range(2))
    assert first.incarnation_id != second.incarnation_id
    assert (first.broker_id, first.broker_epoch, first.rack) == (1, 5, "r")
