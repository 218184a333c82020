"""ShareGroupDescribe over the wire."""

from __future__ import annotations

from pathlib import Path

from millstream.broker.server import BrokerServer
from millstream.errors import ErrorCode
from tests.broker.handlers.group_calls import run
from tests.broker.handlers.share_group_calls import SHARE_GROUP_DESCRIBE, beat
from tests.broker.serving import WireClient


def test_every_group_asked_for_is_described(tmp_path: Path) -> None:
    async def scenario(server: BrokerServer, client: WireClient) -> None:
        joined = await beat(client, rack_id="rack")
        answer = await client.call(
            SHARE_GROUP_DESCRIBE,
            1,
            group_ids=["g", "absent"],
            include_authorized_operations=True,
        )
        group, absent = answer.groups
        assert (group.group_state, group.assignor_name) == ("Stable", "simple")
        assert group.group_epoch == group.assignment_epoch == joined.member_epoch
        assert group.authorized_operations > 0
        (member,) = group.members
        assert (member.member_id, member.rack_id, member.member_epoch) == (
            "m",
            "rack",
            joined.member_epoch,
        )
        assert member.subscribed_topic_names == ("orders",)
        (assigned,) = member.assignment.topic_partitions
        assert (assigned.topic_name, assigned.partitions) == ("orders", (0, 1, 2))
        assert absent.error_code.value == ErrorCode.GROUP_ID_NOT_FOUND
        assert absent.group_id == "absent"
        assert absent.authorized_operations < 0

    run(tmp_path, scenario)
