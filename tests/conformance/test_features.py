"""Features: Apache's FeatureCommand describes and changes levels, with the same words on both."""

from __future__ import annotations

import pytest

from tests.conformance.brokers import BrokerUnderTest
from tests.peers.java_runtime import ToolResult, ToolRunner

ALSO_ON_A_WORKER = True

pytestmark = [pytest.mark.java, pytest.mark.xdist_group("apache-tools")]

OWN_SETTINGS: dict[str, str] = {}
LEVELS = {
    "group.version": ("0", "1", "1"),
    "transaction.version": ("0", "2", "2"),
    "share.version": ("0", "1", "1"),
}


def levels(broker: BrokerUnderTest, tools: ToolRunner) -> dict[str, tuple[str, ...]]:
    """Lowest, highest and finalized level of every feature."""
    result = tools.check("FeatureCommand", "--bootstrap-server", broker.bootstrap, "describe")
    words = [line.split() for line in result.lines if line.startswith("Feature:")]
    return {line[1]: (line[3], line[5], line[7]) for line in words}


def command(broker: BrokerUnderTest, tools: ToolRunner, *arguments: str) -> ToolResult:
    return tools.run("FeatureCommand", "--bootstrap-server", broker.bootstrap, *arguments)


def test_feature_command_describes_levels(own_broker: BrokerUnderTest, tools: ToolRunner) -> None:
    assert LEVELS.items() <= levels(own_broker, tools).items()


def test_feature_command_changes_levels(own_broker: BrokerUnderTest, tools: ToolRunner) -> None:
    for arguments, finalized in (
        (("downgrade", "--feature", "transaction.version=1", "--dry-run"), "2"),
        (("downgrade", "--feature", "transaction.version=1"), "1"),
        (("disable", "--feature", "transaction.version"), "0"),
        (("upgrade", "--feature", "transaction.version=2"), "2"),
    ):
        result = command(own_broker, tools, *arguments)
        assert result.exit_code == 0, result
        assert levels(own_broker, tools)["transaction.version"][2] == finalized


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ("upgrade", "--feature", "transaction.version=3"),
            "Invalid update version 3 for feature transaction.version. Local controller 1 only "
            "supports versions 0-2",
        ),
        (
            ("upgrade", "--feature", "transaction.version=1"),
            "Can't downgrade the version of this feature without setting the upgrade type to "
            "either safe or unsafe downgrade.",
        ),
        (
            ("downgrade", "--feature", "no.such.feature=1"),
            "Invalid update version 1 for feature no.such.feature. Local controller 1 does not "
            "support this feature.",
        ),
        (
            ("downgrade", "--metadata", "4.2-IV1"),
            "Refusing to perform the requested downgrade because it might delete metadata "
            "information.",
        ),
    ],
)
def test_feature_command_is_refused_in_kafkas_words(
    own_broker: BrokerUnderTest, tools: ToolRunner, arguments: tuple[str, ...], words: str
) -> None:
    result = command(own_broker, tools, *arguments)
    assert result.exit_code == 1
    said = words.replace("controller 1", f"controller {own_broker.node_id}")
    assert said in result.stdout + result.stderr
