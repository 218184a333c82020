"""InitializeShareGroupState: where a share group begins."""

from __future__ import annotations

import uuid
from pathlib import Path

from millstream.errors import ErrorCode
from tests.broker.handlers.share_state_calls import ACKNOWLEDGED, INITIALIZE, ShareState, run


def test_topic_is_made_on_first_use(tmp_path: Path) -> None:
    async def scenario(state: ShareState) -> None:
        assert "__share_group_state" not in state.server.metadata.image.topics
        assert await state.initialize(start_offset=5) == ErrorCode.NONE
        assert len(state.server.metadata.image.topics["__share_group_state"].partitions) == 50
        answer = await state.read()
        assert (answer.error_code.value, answer.start_offset, answer.state_epoch) == (0, 5, 1)

    run(tmp_path, scenario)


def test_group_begins_anew_with_a_higher_epoch(tmp_path: Path) -> None:
    async def scenario(state: ShareState) -> None:
        await state.initialize(state_epoch=1, start_offset=0)
        assert await state.write((3, 4, ACKNOWLEDGED, 1)) == ErrorCode.NONE
        assert await state.initialize(state_epoch=2, start_offset=2) == ErrorCode.NONE
        assert await state.batches() == []
        assert (await state.read()).start_offset == 2
        assert await state.initialize(state_epoch=1) == ErrorCode.FENCED_STATE_EPOCH

    run(tmp_path, scenario)


def test_repeated_request_changes_nothing(tmp_path: Path) -> None:
    async def scenario(state: ShareState) -> None:
        await state.initialize(state_epoch=1, start_offset=0)
        assert await state.write((3, 4, ACKNOWLEDGED, 1)) == ErrorCode.NONE
        assert await state.initialize(state_epoch=1, start_offset=0) == ErrorCode.NONE
        assert await state.batches() == [(3, 4, ACKNOWLEDGED, 1)]

    run(tmp_path, scenario)


def test_nonsense_is_refused(tmp_path: Path) -> None:
    async def scenario(state: ShareState) -> None:
        assert await state.initialize(state_epoch=-1) == ErrorCode.INVALID_REQUEST
        answer = await state.call(INITIALIZE, 0, partition=-1, state_epoch=0, start_offset=0)
        assert answer.error_code.value == ErrorCode.INVALID_REQUEST
        assert answer.error_message
        answer = await state.call(INITIALIZE, 0, partition=3, state_epoch=0, start_offset=0)
        assert answer.error_code.value == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        state.topic_id = uuid.uuid4()
        assert await state.initialize() == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    run(tmp_path, scenario)


def test_empty_group_id_is_answered_with_nothing(tmp_path: Path) -> None:
    async def scenario(state: ShareState) -> None:
        answer = await state.client.call(INITIALIZE, 0, group_id="", topics=[])
        assert answer.results == ()

    run(tmp_path, scenario)
