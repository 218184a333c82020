"""Settings of Kafka's that Millstream does not have."""

from __future__ import annotations

import pytest

from millstream.config.foreign import check_foreign
from millstream.errors import ConfigError


@pytest.mark.parametrize(
    "name",
    [
        "zookeeper.connect",
        "zookeeper.clientCnxnSocket",
        "num.io.threads",
        "controller.quorum.voters",
    ],
)
def test_harmless_setting_is_a_warning_with_its_reason(name: str) -> None:
    warning = check_foreign(name)
    assert warning is not None
    assert warning.startswith(f"{name} has no effect here: ")


@pytest.mark.parametrize(
    "name",
    [
        "ssl.engine.factory.class",
        "sasl.server.callback.handler.class",
        "security.providers",
        "create.topic.policy.class.name",
        "zookeeper.ssl.crl.enable",
    ],
)
def test_dangerous_setting_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} is not supported"):
        check_foreign(name)


def test_name_that_nobody_knows_is_not_foreign() -> None:
    assert check_foreign("no.such.thing") is None
