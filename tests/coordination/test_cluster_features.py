"""Levels of features: which may change to what."""

from __future__ import annotations

import pytest

from millstream.coordination.cluster_features import (
    INITIAL_FEATURES,
    FeatureUpdate,
    decide_updates,
    missing_features,
    why_cannot_join,
)
from millstream.coordination.cluster_records import BrokerFeature, FeatureLevelRecord
from millstream.errors import ApiError, ErrorCode

UPGRADE, SAFE, UNSAFE = 1, 2, 3


def decide(*updates: FeatureUpdate, **finalized: int) -> list[FeatureLevelRecord]:
    levels = INITIAL_FEATURES | {name.replace("_", "."): at for name, at in finalized.items()}
    return decide_updates(levels, updates, controller_id=7)


def test_metadata_version_is_finalized_first() -> None:
    records = missing_features({"group.version": 1})
    assert [it.name for it in records] == [
        "metadata.version",
        "transaction.version",
        "share.version",
    ]


def test_new_feature_waits_until_all_brokers_have_it() -> None:
    levels = {name: at for name, at in INITIAL_FEATURES.items() if name != "share.version"}
    older = [(2, [BrokerFeature("metadata.version", 7, 30)])]
    newer = [(2, [BrokerFeature("share.version", 0, 1)])]
    assert missing_features(levels, older) == []
    assert missing_features(levels, newer) == [FeatureLevelRecord("share.version", 1)]


@pytest.mark.parametrize(
    ("finalized", "why"),
    [
        (INITIAL_FEATURES, None),
        ({"share.version": 0, "no.longer": 0}, None),
        ({"metadata.version": 31}, "metadata.version is 31, but this version supports 7 to 30"),
        ({"metadata.version": 6}, "metadata.version is 6, but this version supports 7 to 30"),
        ({"new.version": 1}, "new.version is 1, but this version does not have that feature"),
    ],
)
def test_older_version_cannot_join(finalized: dict[str, int], why: str | None) -> None:
    assert why_cannot_join(finalized) == why


@pytest.mark.parametrize(
    ("features", "why"),
    [
        ([BrokerFeature("transaction.version", 0, 2)], None),
        ([BrokerFeature("transaction.version", 0, 1)], "Broker 3 only supports versions 0-1"),
        ([], "Broker 3 does not support this feature."),
    ],
)
def test_level_goes_up_only_if_all_brokers_support_it(
    features: list[BrokerFeature], why: str | None
) -> None:
    update = FeatureUpdate("transaction.version", 2, UPGRADE)
    brokers = [(2, [BrokerFeature("transaction.version", 0, 2)]), (3, features)]
    levels = INITIAL_FEATURES | {"transaction.version": 0}
    if why is None:
        assert decide_updates(levels, [update], controller_id=2, brokers=brokers)
        return
    with pytest.raises(ApiError, match=why):
        decide_updates(levels, [update], controller_id=2, brokers=brokers)


def test_feature_that_is_off_is_not_missing() -> None:
    assert missing_features(dict.fromkeys(INITIAL_FEATURES, 0)) == []


@pytest.mark.parametrize("way", [SAFE, UNSAFE])
@pytest.mark.parametrize("level", [0, 1])
def test_level_goes_down_where_a_downgrade_is_asked_for(way: int, level: int) -> None:
    update = FeatureUpdate("transaction.version", level, way)
    assert decide(update) == [FeatureLevelRecord("transaction.version", level)]


def test_level_goes_up() -> None:
    update = FeatureUpdate("transaction.version", 2, UPGRADE)
    assert decide(update, transaction_version=0) == [FeatureLevelRecord("transaction.version", 2)]


@pytest.mark.parametrize(
    ("update", "why"),
    [
        (("transaction.version", 3, UPGRADE), "Local controller 7 only supports versions 0-2"),
        (("transaction.version", -1, SAFE), "A feature version cannot be less than 0."),
        (("transaction.version", 1, UPGRADE), "Can't downgrade the version of this feature"),
        (("transaction.version", 1, 0), "does not support the given upgrade type"),
        (("streams.version", 1, UPGRADE), "Local controller 7 does not support this feature."),
        (("no.such.feature", 0, SAFE), "Feature no.such.feature not found."),
        (("metadata.version", 29, SAFE), "it might delete metadata information"),
        (("metadata.version", 29, UNSAFE), "Unsafe metadata downgrade is not supported"),
    ],
)
def test_level_that_cannot_be_is_refused(update: tuple[str, int, int], why: str) -> None:
    with pytest.raises(ApiError, match=why) as refused:
        decide(FeatureUpdate(*update))
    assert refused.value.code is ErrorCode.INVALID_UPDATE_VERSION


def test_upgrade_by_way_of_a_downgrade_is_refused() -> None:
    with pytest.raises(ApiError, match="Can't downgrade to a newer version"):
        decide(FeatureUpdate("share.version", 1, SAFE), share_version=0)


def test_one_update_that_cannot_be_refuses_all() -> None:
    good = FeatureUpdate("share.version", 0, SAFE)
    with pytest.raises(ApiError, match="Invalid update version 5"):
        decide(good, FeatureUpdate("group.version", 5, UPGRADE))
