"""ReadShareGroupStateSummary: how far a share group is."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.broker.handlers.share_state_calls import READ_SUMMARY, ShareState, run


@pytest.mark.parametrize("version", [0, 1])
def test_summary_is_that_of_the_state(tmp_path: Path, version: int) -> None:
    async def scenario(state: ShareState) -> None:
        nothing = await state.call(READ_SUMMARY, version, leader_epoch=0)
        assert (nothing.error_code.value, nothing.start_offset, nothing.state_epoch) == (0, -1, 0)
        await state.initialize(state_epoch=1, start_offset=3)
        await state.read(leader_epoch=2)
        await state.write(leader_epoch=2, start_offset=8, delivery_complete_count=4)
        summary = await state.call(READ_SUMMARY, version, leader_epoch=0)
        assert (summary.start_offset, summary.state_epoch, summary.leader_epoch) == (8, 1, 2)
        if version:
            assert summary.delivery_complete_count == 4

    run(tmp_path, scenario)
