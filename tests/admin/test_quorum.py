"""The metadata quorum and features of real brokers, and of brokers and users without them."""

from __future__ import annotations

from millstream.admin.quorum import quorum
from millstream.broker.embedded import Broker
from millstream.client.cluster import Cluster


def test_controller_leads_the_quorum_and_features_have_levels(cluster: Cluster) -> None:
    found = quorum(cluster)
    assert found.problem == ""
    voters = [it.id for it in found.followers if it.is_voter]
    assert found.leader in voters
    assert found.epoch >= 0
    assert {it.name: it.level for it in found.features}["metadata.version"] > 0
    assert found.fenced == []


def test_user_without_the_right_gets_the_reason() -> None:
    authorizer = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
    with Broker.start(
        security="SASL_PLAINTEXT",
        users={"alice": "secret"},
        config={"authorizer.class.name": authorizer},
    ) as broker:
        settings = broker.client_settings("alice")
        bootstrap = settings.pop("bootstrap.servers")
        with Cluster(bootstrap, security=settings) as cluster:
            found = quorum(cluster)
    assert "CLUSTER_AUTHORIZATION_FAILED" in found.problem
    assert found.features
