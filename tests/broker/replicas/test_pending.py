"""Appends that wait can be awaited, and say how they failed."""

from __future__ import annotations

import asyncio

import pytest

from millstream.broker.replicas.pending import PendingAppend
from millstream.errors import ApiError, ErrorCode


def test_awaiting_an_append_that_fails_raises_its_error() -> None:
    async def main() -> None:
        pending = PendingAppend(3, 5)
        error = ApiError(ErrorCode.KAFKA_STORAGE_ERROR, "a bad disk")
        asyncio.get_running_loop().call_soon(pending.fail, error)
        with pytest.raises(ApiError) as failure:
            await pending
        assert failure.value is error
        assert pending.is_done

    asyncio.run(main())


def test_awaiting_an_append_that_is_done_gives_it_back() -> None:
    async def main() -> None:
        pending = PendingAppend(3, 5)
        pending.finish()
        assert await pending is pending
        assert (pending.first_offset, pending.next_offset, pending.error) == (3, 5, None)

    asyncio.run(main())
