"""DescribeCluster: the broker itself."""

from __future__ import annotations

from typing import Any

import pytest

from millstream.errors import ErrorCode
from millstream.testing.pytest_plugin import SharedBroker
from tests.peers.wire import Wire


@pytest.mark.parametrize("version", [0, 1, 2])
def test_cluster_has_this_broker_as_its_controller(millstream: SharedBroker, version: int) -> None:
    with Wire(millstream.bootstrap_servers) as wire:
        answer = wire.call("describe_cluster", version)
        cluster_id = wire.call("metadata", 9, topics=()).cluster_id
    (broker,) = answer.brokers
    assert f"{broker.host}:{broker.port}" == millstream.bootstrap_servers
    assert (answer.controller_id, answer.cluster_id) == (broker.broker_id, cluster_id)
    assert answer.cluster_authorized_operations == -(2**31)


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"endpoint_type": 2}, ErrorCode.MISMATCHED_ENDPOINT_TYPE),
        ({"endpoint_type": 9}, ErrorCode.UNSUPPORTED_ENDPOINT_TYPE),
    ],
)
def test_endpoints_of_another_kind_are_refused(
    millstream: SharedBroker, fields: dict[str, Any], code: ErrorCode
) -> None:
    with Wire(millstream.bootstrap_servers) as wire:
        assert wire.call("describe_cluster", 1, **fields).error_code == code


def test_authorized_operations_are_told_when_asked(millstream: SharedBroker) -> None:
    with Wire(millstream.bootstrap_servers) as wire:
        answer = wire.call("describe_cluster", 2, include_cluster_authorized_operations=True)
    assert answer.cluster_authorized_operations > 0
