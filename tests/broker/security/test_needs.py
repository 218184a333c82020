"""What each API needs: every API has an entry, and the reference lists them."""

from __future__ import annotations

from millstream.broker.security.needs import NEEDS, NOTHING, Need, OneOf
from millstream.protocol.apis import APIS
from millstream.security.acls import OPERATIONS_OF

OPEN = {
    "api_versions",
    "describe_cluster",
    "sasl_handshake",
    "sasl_authenticate",
    "get_telemetry_subscriptions",
    "push_telemetry",
}


def test_no_api_is_without_an_entry() -> None:
    missing = [api.name for api in APIS.values() if api.name not in NEEDS]
    assert missing == [], "say in broker/security/needs.py what these need, and check it"


def test_only_these_apis_need_nothing() -> None:
    assert {name for name, needs in NEEDS.items() if needs is NOTHING} == OPEN


def test_every_need_can_be_granted() -> None:
    for name, needs in NEEDS.items():
        for need in needs:
            for each in need.needs if isinstance(need, OneOf) else (need,):
                assert isinstance(each, Need)
                # Kafka asks for DELETE on the cluster too, which only ALL grants.
                if name != "delete_topics":
                    assert each.operation in OPERATIONS_OF[each.resource_type], name
