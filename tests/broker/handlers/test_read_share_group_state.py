"""ReadShareGroupState: what leaders take up, and what tools may see."""

from __future__ import annotations

from pathlib import Path

from millstream.errors import ErrorCode
from tests.broker.handlers.share_state_calls import AVAILABLE, ShareState, run


def test_uninitialized_state_cannot_be_read(tmp_path: Path) -> None:
    async def scenario(state: ShareState) -> None:
        assert (await state.read()).error_code.value == ErrorCode.INVALID_REQUEST
        await state.initialize()
        state_of_other = await state.call(84, 0, group_id="other", leader_epoch=0)
        assert state_of_other.error_code.value == ErrorCode.INVALID_REQUEST

    run(tmp_path, scenario)


def test_new_leader_fences_the_one_before(tmp_path: Path) -> None:
    async def scenario(state: ShareState) -> None:
        await state.initialize()
        await state.write((0, 0, AVAILABLE, 1), leader_epoch=4)
        assert await state.batches(leader_epoch=5) == [(0, 0, AVAILABLE, 1)]
        assert await state.write(leader_epoch=4) == ErrorCode.FENCED_LEADER_EPOCH

    run(tmp_path, scenario)


def test_tool_reads_without_fencing(tmp_path: Path) -> None:
    async def scenario(state: ShareState) -> None:
        await state.initialize()
        await state.read(leader_epoch=5)
        await state.write((0, 0, AVAILABLE, 1), leader_epoch=5)
        assert await state.batches(leader_epoch=-1) == [(0, 0, AVAILABLE, 1)]
        assert await state.write(leader_epoch=5) == ErrorCode.NONE

    run(tmp_path, scenario)
