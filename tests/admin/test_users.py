"""Users of SCRAM."""

from __future__ import annotations

import pytest

from millstream import Broker
from millstream.admin.errors import InvalidArgument
from millstream.admin.users import delete_user, known_users, set_password
from millstream.client.cluster import Cluster
from millstream.errors import ApiError


def test_users_are_created_changed_and_deleted() -> None:
    with Broker.start() as broker, Cluster(broker.bootstrap_servers) as cluster:
        set_password(cluster, "alice", "x")
        assert known_users(cluster) == {"alice": {"SCRAM-SHA-256": 4096, "SCRAM-SHA-512": 4096}}
        set_password(
            cluster,
            "alice",
            "y",
            mechanisms=["SCRAM-SHA-512"],
            iterations=8192,
            existing=known_users(cluster)["alice"],
        )
        assert known_users(cluster) == {"alice": {"SCRAM-SHA-512": 8192}}
        delete_user(cluster, "alice", ["SCRAM-SHA-512"])
        assert known_users(cluster) == {}
        with pytest.raises(ApiError):
            delete_user(cluster, "alice", ["SCRAM-SHA-512"])
        for user, password in (("", "x"), ("x", "")):
            with pytest.raises(InvalidArgument):
                set_password(cluster, user, password)


def test_created_user_logs_in() -> None:
    with Broker.start(security="SASL_PLAINTEXT", users={"admin": "secret"}) as broker:
        settings = broker.client_settings("admin")
        servers = settings.pop("bootstrap.servers")
        with Cluster(servers, security=settings) as cluster:
            set_password(cluster, "alice", "pass word")
        for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
            given = settings | {
                "sasl.mechanism": mechanism,
                "sasl.username": "alice",
                "sasl.password": "pass word",
            }
            with Cluster(servers, security=given) as cluster:
                assert cluster.broker_ids()
