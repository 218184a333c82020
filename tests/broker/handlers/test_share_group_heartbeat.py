"""ShareGroupHeartbeat over the wire."""

from __future__ import annotations

from pathlib import Path

from millstream.broker.server import BrokerServer
from millstream.errors import ErrorCode
from tests.broker.handlers.group_calls import run
from tests.broker.handlers.share_group_calls import beat
from tests.broker.serving import WireClient


def test_heartbeat_answers_epoch_interval_and_assignment(tmp_path: Path) -> None:
    async def scenario(server: BrokerServer, client: WireClient) -> None:
        answer = await beat(client)
        assert (answer.error_code.value, answer.member_id) == (0, "m")
        assert answer.heartbeat_interval.total_seconds() == 5
        (assigned,) = answer.assignment.topic_partitions
        assert assigned.topic_id == server.metadata.image.topics["orders"].id
        assert assigned.partitions == (0, 1, 2)
        again = await beat(client, answer.member_epoch)
        assert (again.member_epoch, again.assignment) == (answer.member_epoch, None)
        left = await beat(client, -1)
        assert (left.error_code.value, left.member_epoch, left.assignment) == (0, -1, None)

    run(tmp_path, scenario)


def test_heartbeat_answers_an_error_with_its_message(tmp_path: Path) -> None:
    async def scenario(server: BrokerServer, client: WireClient) -> None:
        answer = await beat(client, 3)
        assert answer.error_code.value == ErrorCode.GROUP_ID_NOT_FOUND
        assert answer.error_message == "Group g not found."
        answer = await beat(client, member_id="")
        assert answer.error_code.value == ErrorCode.INVALID_REQUEST

    run(tmp_path, scenario)
