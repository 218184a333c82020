"""The document of a pipeline's versions: what may follow what."""

from __future__ import annotations

from dataclasses import replace

import pytest

from millstream.errors import ConfigError
from millstream.pipelines.versions import registry
from millstream.pipelines.versions.registry import (
    Version,
    Versions,
    check_switch,
    decode,
    encode,
    identity_of,
    physical_table,
    private_topic,
    rollback_target,
)
from tests.pipelines.versions.conftest import version_of


def deployed(*versions: Version) -> Versions:
    document = Versions("revenue")
    for it in versions:
        document = registry.deploy(document, it)
        document = registry.catch_up(document, it.version)
    return document


def test_names_follow_from_name_and_version() -> None:
    assert identity_of("revenue", "1") == "revenue"
    assert identity_of("revenue", "2") == "revenue@2"
    assert physical_table("shop.revenue", "2.1") == "shop.revenue__v2_1"
    assert private_topic("alerts", "2.1") == "alerts.v2.1"


def test_document_survives_json() -> None:
    document = deployed(version_of("1", topics=("alerts",)), version_of("2", topics=("alerts",)))
    document = registry.switch(document, "2", {("orders", 0): 7})
    document = registry.note_operators(document, "2", {"lookup", "enrich"})
    assert decode(encode(document)) == document
    assert document.cut == {"orders": {"0": 7}}
    assert document.get("2").by_arrival == ("enrich", "lookup")


@pytest.mark.parametrize("stored", [1, 2])
def test_document_of_another_format_is_refused(stored: int) -> None:
    text = encode(Versions("revenue")).replace('"format":3', f'"format":{stored}')
    with pytest.raises(ConfigError, match=f"stored in format {stored}"):
        decode(text)


def test_first_version_is_in_force_and_the_second_is_not() -> None:
    assert deployed(version_of("1"), version_of("2")).in_force == "1"


def test_version_deployed_twice_stays_as_it_is() -> None:
    document = deployed(replace(version_of("1"), start_at="latest"))
    again = registry.deploy(document, version_of("1"))
    assert again == document


def test_version_with_other_outputs_is_refused() -> None:
    document = deployed(version_of("1"))
    with pytest.raises(ConfigError, match="deployed with other outputs"):
        registry.deploy(document, version_of("1", topics=("alerts",)))


def test_versions_whose_tables_have_one_name_are_refused() -> None:
    document = deployed(version_of("2.1"))
    with pytest.raises(ConfigError, match="would write the table revenue__v2_1"):
        registry.deploy(document, version_of("2-1"))


def test_switch_is_refused_to_what_cannot_be_in_force() -> None:
    document = deployed(version_of("1"), version_of("2"))
    with pytest.raises(ConfigError, match="version 1 of revenue is in force already"):
        check_switch(document, "1")
    with pytest.raises(ConfigError, match="version 3 of revenue is not deployed"):
        check_switch(document, "3")
    document = registry.deploy(document, version_of("3"))
    with pytest.raises(ConfigError, match="is catching up"):
        check_switch(document, "3")
    document = registry.start_removing(registry.catch_up(document, "3"), "3")
    with pytest.raises(ConfigError, match="is being removed"):
        check_switch(document, "3")


def test_switch_keeps_every_table_and_topic_that_readers_read() -> None:
    document = deployed(version_of("1"), version_of("2", tables=False))
    with pytest.raises(ConfigError, match="does not write table revenue"):
        check_switch(document, "2")
    assert check_switch(document, "2", may_drop_tables=True).version == "2"
    document = deployed(version_of("1"), version_of("2", topics=("alerts",)))
    with pytest.raises(ConfigError, match="can only be moved between versions that both write it"):
        check_switch(document, "2")


def test_rollback_goes_to_the_version_before() -> None:
    document = deployed(version_of("1"), version_of("2"))
    with pytest.raises(ConfigError, match="no version of revenue to go back to"):
        rollback_target(document)
    document = registry.switch(document, "2", {})
    assert rollback_target(document) == "1"
    left = registry.removed(document, "1")
    assert left is not None
    with pytest.raises(ConfigError, match="no version of revenue to go back to"):
        rollback_target(left)


def test_version_in_force_is_removed_only_as_the_last() -> None:
    document = deployed(version_of("1"), version_of("2"))
    with pytest.raises(ConfigError, match="is in force: switch to another one first"):
        registry.start_removing(document, "1")
    document = registry.start_removing(document, "2")
    with pytest.raises(ConfigError, match="is being removed: complete that"):
        registry.deploy(document, version_of("2"))
    left = registry.removed(document, "2")
    assert left is not None
    assert registry.removed(registry.start_removing(left, "1"), "1") is None


def test_switches_are_remembered_with_the_ends_of_topics() -> None:
    document = deployed(version_of("1"), replace(version_of("2"), state_from="1"))
    document = registry.switch(document, "2", {}, {("alerts", 0): 7})
    assert [(it.version, it.begins) for it in document.spans] == [
        ("1", {}),
        ("2", {"alerts": {"0": 7}}),
    ]
    left = registry.removed(registry.start_removing(document, "1"), "1")
    assert left is not None  # a later version of that name has not written this
    assert [it.version for it in left.spans] == ["", "2"]
    assert left.get("2").state_from is None
    for version in ["1", "2"] * registry.SPANS_MAX:
        document = registry.switch(document, version, {})
    assert len(document.spans) == registry.SPANS_MAX


def test_state_of_another_version_is_asked_for_by_the_first_deployment_only() -> None:
    with_state = replace(version_of("2"), state_from="1")
    document = deployed(version_of("1"), with_state)
    assert registry.deploy(document, version_of("2")).get("2").state_from == "1"
    document = deployed(version_of("1"), version_of("2"))
    with pytest.raises(ConfigError, match="is deployed without the state of version 1"):
        registry.deploy(document, with_state)
    with pytest.raises(ConfigError, match="version 7 of revenue is not deployed"):
        registry.deploy(document, replace(version_of("3"), state_from="7"))
