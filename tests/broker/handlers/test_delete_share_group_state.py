"""DeleteShareGroupState: what a share group forgets."""

from __future__ import annotations

from pathlib import Path

from millstream.errors import ErrorCode
from tests.broker.handlers.share_state_calls import DELETE, ShareState, run


def test_deleted_state_is_gone(tmp_path: Path) -> None:
    async def scenario(state: ShareState) -> None:
        early = await state.call(DELETE, 0)
        assert early.error_code.value == ErrorCode.NONE  # there was nothing to delete
        await state.initialize(state_epoch=5)
        for _ in range(2):
            assert (await state.call(DELETE, 0)).error_code.value == ErrorCode.NONE
            assert (await state.read()).error_code.value == ErrorCode.INVALID_REQUEST
        assert await state.initialize(state_epoch=1) == ErrorCode.NONE

    run(tmp_path, scenario)
