"""The registry of APIs, as the handlers fill it."""

from __future__ import annotations

import pytest
from kio.schema.index import api_key_map

from millstream.broker import handlers
from millstream.protocol.apis import APIS, api
from tests.peers.wire import entity_class


@pytest.fixture(autouse=True)
def loaded_handlers() -> None:
    handlers.load()


def test_registry_agrees_with_the_schemas_on_names_and_flexible_versions() -> None:
    for key, entry in APIS.items():
        assert api_key_map[key] == entry.name
        for version in range(entry.min_version, entry.max_version + 1):
            flexible = entity_class(entry.name, version, "request").__flexible__
            assert flexible is (version >= entry.first_flexible), (entry.name, version)


def test_registry_refuses_two_handlers_for_one_api() -> None:
    with pytest.raises(ValueError, match="registered twice"):
        api(18, "api_versions", versions=(0, 4), first_flexible=3)(lambda: None)
