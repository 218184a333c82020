"""WriteShareGroupState: what a leader says has changed."""

from __future__ import annotations

from pathlib import Path

import pytest

from millstream.errors import ErrorCode
from tests.broker.handlers.share_state_calls import (
    ACKNOWLEDGED,
    ARCHIVED,
    AVAILABLE,
    READ_SUMMARY,
    WRITE,
    ShareState,
    run,
)


@pytest.mark.parametrize("version", [0, 1])
def test_writes_are_combined(tmp_path: Path, version: int) -> None:
    async def scenario(state: ShareState) -> None:
        await state.initialize()
        assert await state.write((0, 9, AVAILABLE, 1), version=version) == ErrorCode.NONE
        assert await state.write((4, 5, ACKNOWLEDGED, 2), start_offset=2, version=version) == 0
        assert await state.batches() == [
            (2, 3, AVAILABLE, 1),
            (4, 5, ACKNOWLEDGED, 2),
            (6, 9, AVAILABLE, 1),
        ]
        summary = await state.call(READ_SUMMARY, 1, leader_epoch=0)
        assert summary.delivery_complete_count == (0 if version else -1)

    run(tmp_path, scenario)


def test_late_write_changes_nothing_that_is_decided(tmp_path: Path) -> None:
    async def scenario(state: ShareState) -> None:
        await state.initialize()
        await state.write((5, 5, ARCHIVED, 3), start_offset=4, delivery_complete_count=1)
        assert await state.write((3, 6, AVAILABLE, 2), start_offset=3) == ErrorCode.NONE
        assert await state.batches() == [(4, 4, AVAILABLE, 2), (5, 5, ARCHIVED, 3), (6, 6, 0, 2)]
        summary = await state.call(READ_SUMMARY, 1, leader_epoch=0)
        assert (summary.start_offset, summary.delivery_complete_count) == (4, 1)

    run(tmp_path, scenario)


def test_those_who_are_over_are_fenced(tmp_path: Path) -> None:
    async def scenario(state: ShareState) -> None:
        batch = (0, 0, ACKNOWLEDGED, 1)
        assert await state.write(batch) == ErrorCode.INVALID_REQUEST
        await state.initialize(state_epoch=3)
        assert (await state.read(leader_epoch=7)).error_code.value == ErrorCode.NONE
        old_leader = await state.write(batch, state_epoch=3, leader_epoch=6)
        assert old_leader == ErrorCode.FENCED_LEADER_EPOCH
        old_state = await state.write(batch, state_epoch=2, leader_epoch=7)
        assert old_state == ErrorCode.FENCED_STATE_EPOCH
        assert await state.write(batch, state_epoch=3, leader_epoch=7) == ErrorCode.NONE
        old_reader = await state.read(leader_epoch=6)
        assert old_reader.error_code.value == ErrorCode.FENCED_LEADER_EPOCH

    run(tmp_path, scenario)


def test_each_partition_succeeds_or_fails_alone(tmp_path: Path) -> None:
    async def scenario(state: ShareState) -> None:
        await state.initialize()
        fields = {"state_epoch": 1, "leader_epoch": 0, "start_offset": 0}
        good = [{"first_offset": 1, "last_offset": 2, "delivery_state": 2, "delivery_count": 1}]
        bad = [good[0] | {"delivery_state": 9}]
        held = [good[0] | {"delivery_state": 1}]
        backwards = [good[0] | {"last_offset": 0}]
        partitions = [
            {"partition": 0, "state_batches": bad} | fields,
            {"partition": 0, "state_batches": good} | fields,
            {"partition": 0, "state_batches": backwards} | fields,
            {"partition": 0, "state_batches": held} | fields,
            {"partition": 1, "state_batches": good} | fields,  # never initialized
        ]
        answer = await state.client.call(
            WRITE,
            1,
            group_id="g",
            topics=[{"topic_id": state.topic_id, "partitions": partitions}],
        )
        codes = [it.error_code.value for it in answer.results[0].partitions]
        invalid = ErrorCode.INVALID_REQUEST
        assert codes == [invalid, ErrorCode.NONE, invalid, invalid, invalid]
        assert await state.batches() == [(1, 2, ACKNOWLEDGED, 1)]

    run(tmp_path, scenario)
