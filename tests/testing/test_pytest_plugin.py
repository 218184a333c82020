"""The `millstream` fixture as a user's project sees it."""

from __future__ import annotations

import pytest

from millstream.testing.pytest_plugin import SharedBroker

pytest_plugins = ["pytester"]


def test_names_are_never_the_same(millstream: SharedBroker) -> None:
    names = [millstream.unique_topic() for _ in range(3)] + [millstream.unique_group()]
    assert len(set(names)) == 4
    assert millstream.unique_topic("orders").startswith("orders-")


def test_fixture_takes_its_settings_from_the_project(pytester: pytest.Pytester) -> None:
    pytester.makeini(
        "[pytest]\nmillstream_config =\n    num.partitions=5\n"
        "millstream_security = SASL_SSL\nmillstream_users =\n    alice=secret\n"
    )
    pytester.makepyfile(
        """
        from confluent_kafka.admin import AdminClient

        def test_first(millstream):
            assert millstream.broker.is_running

        def test_shared(millstream):
            admin = AdminClient(millstream.client_settings("alice"))
            topic = millstream.unique_topic()
            assert len(admin.list_topics(topic, timeout=60).topics[topic].partitions) == 5
        """
    )
    pytester.runpytest_subprocess("-p", "no:cacheprovider").assert_outcomes(passed=2)
