"""Levels of features: which may change to what."""

from __future__ import annotations

import pytest

from millstream.coordination.cluster_features import (
    INITIAL_FEATURES,
    FeatureUpdate,
    decide_updates,
    missing_features,
)
from millstream.coordination.cluster_records import FeatureLevelRecord
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
