"""ApiVersions: the registry, and the features of the cluster."""

from __future__ import annotations

import pytest

from millstream.protocol.apis import APIS, TELEMETRY_APIS
from millstream.testing.pytest_plugin import SharedBroker
from tests.peers.wire import Wire


@pytest.mark.parametrize("version", range(5))
def test_versions_are_those_of_the_registered_handlers(
    millstream: SharedBroker, version: int
) -> None:
    software = {"client_software_name": "test", "client_software_version": "1.0"}
    with Wire(millstream.bootstrap_servers) as wire:
        answer = wire.call("api_versions", version, **(software if version >= 3 else {}))
    assert answer.error_code == 0
    ranges = {it.api_key: (it.min_version, it.max_version) for it in answer.api_keys}
    assert ranges.keys() == APIS.keys() - TELEMETRY_APIS
    assert ranges[0] == (0, 13)  # advertised from 0 on, for the sake of older librdkafkas
    assert ranges[1] == (4, 18)


@pytest.mark.parametrize(("version", "supports_group_version"), [(3, False), (4, True)])
def test_features_are_finalized_as_in_kafka(
    millstream: SharedBroker, version: int, supports_group_version: bool
) -> None:
    software = {"client_software_name": "test", "client_software_version": "1.0"}
    with Wire(millstream.bootstrap_servers) as wire:
        answer = wire.call("api_versions", version, **software)
    finalized = {
        it.name: (it.min_version_level, it.max_version_level) for it in answer.finalized_features
    }
    assert finalized["group.version"] == (1, 1)
    assert "metadata.version" in finalized
    assert answer.finalized_features_epoch >= 0
    # A supported feature whose minimum is 0 can be told from v4 on only.
    supported = {it.name for it in answer.supported_features}
    assert ("group.version" in supported) is supports_group_version


def test_software_name_that_is_none_is_refused(millstream: SharedBroker) -> None:
    with Wire(millstream.bootstrap_servers) as wire:
        answer = wire.call(
            "api_versions", 3, client_software_name="-bad-", client_software_version="1"
        )
    assert answer.error_code == 42
