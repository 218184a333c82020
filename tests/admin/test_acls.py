"""Access control entries; against brokers in tests/cli/test_acl.py and in the console's pages."""

from __future__ import annotations

import pytest

from millstream import Broker
from millstream.admin.acls import find_entries, is_host, parse_operation, principal_of, row_of
from millstream.admin.errors import InvalidArgument, OperationFailed
from millstream.client.cluster import Cluster
from millstream.security.acls import AclEntry, AclFilter, Operation


def test_names_of_operations_are_read_in_any_spelling() -> None:
    for name in ("describe-configs", "DescribeConfigs", "DESCRIBE_CONFIGS"):
        assert parse_operation(name) is Operation.DESCRIBE_CONFIGS
    assert parse_operation("any") is None
    assert parse_operation("") is None


def test_hosts_are_addresses() -> None:
    assert is_host("*")
    assert is_host("::1")
    assert not is_host("example.com")
    assert not is_host("10.0.0.0/8")


def test_users_have_their_type() -> None:
    assert principal_of("alice") == principal_of("User:alice") == "User:alice"
    with pytest.raises(InvalidArgument):
        principal_of(" ")


def test_entries_of_later_versions_are_shown_as_numbers() -> None:
    row = row_of(AclEntry(99, "x", 3, "User:a", "*", 99, 3))
    assert (row["type"], row["operation"], row["permission"]) == ("99", "99", "allow")


def test_broker_without_an_authorizer_is_explained() -> None:
    with Broker.start() as broker, Cluster(broker.bootstrap_servers) as cluster:  # noqa: SIM117
        with pytest.raises(OperationFailed, match="no authorizer"):
            find_entries(cluster, [AclFilter()])
