"""ListConfigResources: who has settings."""

from __future__ import annotations

from pathlib import Path

from millstream.broker.metadata.configs import Change, Operation
from millstream.broker.metadata.topics import NewTopic
from millstream.broker.server import BrokerServer
from millstream.coordination.cluster import Resource, ResourceType
from millstream.errors import ErrorCode
from tests.broker.handlers.administering import converse
from tests.broker.serving import WireClient

KEY = 74


def test_resources_are_listed_by_type(tmp_path: Path) -> None:
    async def conversation(server: BrokerServer, client: WireClient) -> None:
        await server.topics.create([NewTopic("t", 1)])
        change = Change("consumer.session.timeout.ms", Operation.SET, "50000")
        group = Resource(ResourceType.GROUP, "g")
        await server.configs.alter({group: [change]}, validate_only=False)
        every = {("t", 2), ("1", 4), ("1", 8), ("g", 32)}
        for wanted, expected in (
            ([], every),
            ([2, 32], {("t", 2), ("g", 32)}),
            ([16], set()),
        ):
            answer = await client.call(KEY, 1, resource_types=wanted)
            listed = {(it.resource_name, it.resource_type) for it in answer.config_resources}
            assert listed == expected

    converse(tmp_path, conversation)


def test_first_version_knows_client_metrics_only(tmp_path: Path) -> None:
    async def conversation(server: BrokerServer, client: WireClient) -> None:
        answer = await client.call(KEY, 0)
        assert (answer.error_code, answer.config_resources) == (ErrorCode.NONE, ())
        change = Change("metrics", Operation.SET, "*")
        resource = Resource(ResourceType.CLIENT_METRICS, "m")
        await server.configs.alter({resource: [change]}, validate_only=False)
        answer = await client.call(KEY, 0)
        assert [it.resource_name for it in answer.config_resources] == ["m"]

    converse(tmp_path, conversation)


def test_unknown_type_is_refused(tmp_path: Path) -> None:
    async def conversation(server: BrokerServer, client: WireClient) -> None:
        answer = await client.call(KEY, 1, resource_types=[77])
        assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION

    converse(tmp_path, conversation)
