"""Producer ids: each is given once; a block is fetched when the last of another is gone."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from millstream.broker.metadata.producer_ids import ProducerIds
from millstream.errors import ApiError, ErrorCode
from tests.broker.serving import serving


def test_ids_are_given_once_over_many_blocks(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as server:
            ids = ProducerIds(server.actions)
            given = [await ids.next() for _ in range(2_500)]
            given += await asyncio.gather(*(ids.next() for _ in range(2_500)))
            assert len(set(given)) == 5_000

    asyncio.run(scenario())


def test_id_can_be_taken_at_once_when_one_is_in_hand(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as server:
            ids = ProducerIds(server.actions)
            with pytest.raises(ApiError) as refused:
                ids.take()
            assert refused.value.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            await ids.ready()
            assert ids.take() != await ids.next()

    asyncio.run(scenario())
