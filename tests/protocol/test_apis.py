"""The list of APIs, and the handlers that it promises."""

from __future__ import annotations

import pkgutil

from kio.schema.index import api_key_map

from millstream.broker import handlers
from millstream.protocol.apis import APIS, OWN_API_KEY_MIN
from tests.peers.wire import entity_class


def test_apis_agree_with_the_schemas_on_names_and_flexible_versions() -> None:
    for key, entry in APIS.items():
        if key < OWN_API_KEY_MIN:
            assert api_key_map[key] == entry.name
        for version in range(entry.min_version, entry.max_version + 1):
            flexible = entity_class(entry.name, version, "request").__flexible__
            assert flexible is (version >= entry.first_flexible), (entry.name, version)


def test_apis_are_those_that_have_a_handler() -> None:
    names = {module.name for module in pkgutil.iter_modules(handlers.__path__)}
    modules = {name for name in names if not name.startswith("_")}  # the others are their helpers
    assert {entry.name for entry in APIS.values()} == modules
    for entry in APIS.values():
        assert handlers.find(entry).__name__ == entry.name


def test_apis_are_in_order_and_each_listed_once() -> None:
    assert list(APIS) == sorted(APIS)
    assert len({entry.name for entry in APIS.values()}) == len(APIS)
