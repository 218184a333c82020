"""Features: what the cluster may do, at which level, and how that is changed (KIP-584, KIP-778).

    metadata.version      how the metadata log is written; 30 is Kafka's 4.3-IV0
    group.version         1: consumer groups of KIP-848
    transaction.version   1: flexible records in `__transaction_state`; 2: a new epoch with every
                          transaction, and partitions that add themselves (KIP-890)
    share.version         1: share groups (KIP-932)

A level that the cluster has agreed on is *finalized*: it is in the metadata log and so in the
image. One that was switched off stays there with level 0, which Kafka reads as "not finalized". So
a feature that is new to this log can be distinguished from one that was disabled.
The answers are those of Kafka's controller, to the letter.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from typing import NamedTuple, TypeAlias

from millstream.coordination.cluster_records import BrokerFeature, FeatureLevelRecord
from millstream.errors import ApiError, ErrorCode

METADATA_VERSION = "metadata.version"
TRANSACTION_VERSION = "transaction.version"
SHARE_VERSION = "share.version"

# The lowest and highest level this version of Millstream works at. The metadata version is first,
# here and in the log: it says how to read the rest.
SUPPORTED_FEATURES = (
    BrokerFeature(METADATA_VERSION, 7, 30),
    BrokerFeature("group.version", 0, 1),
    BrokerFeature(TRANSACTION_VERSION, 0, 2),
    BrokerFeature(SHARE_VERSION, 0, 1),
)
# Levels of a new cluster, and of new features in an older one.
INITIAL_FEATURES = {feature.name: feature.max_supported_version for feature in SUPPORTED_FEATURES}


FeaturesOfBroker: TypeAlias = tuple[int, Sequence[BrokerFeature]]
"""The id of a broker, and what it supports."""


class UpgradeType(IntEnum):
    """Allowed direction of a change, with the protocol's numbers."""

    UPGRADE = 1
    SAFE_DOWNGRADE = 2
    UNSAFE_DOWNGRADE = 3


class FeatureUpdate(NamedTuple):
    feature: str
    level: int
    upgrade_type: int  # an `UpgradeType`, or an unknown number


def missing_features(
    finalized: Mapping[str, int], brokers: Iterable[FeaturesOfBroker] = ()
) -> list[FeatureLevelRecord]:
    """Records that finalize missing features, as far as all these brokers support them: during an
    upgrade, the last broker of the older version that is restarted finalizes them."""
    others = tuple(brokers)
    return [
        FeatureLevelRecord(name, level)
        for name, level in INITIAL_FEATURES.items()
        if name not in finalized and _why_unsupported_by(others, name, level) is None
    ]


def why_cannot_join(finalized: Mapping[str, int]) -> str | None:
    """Why this version of Millstream cannot be part of a cluster with these levels, if it cannot:
    it is older than the brokers that finalized them."""
    known = {feature.name: feature for feature in SUPPORTED_FEATURES}
    for name, level in finalized.items():
        if name in known and level and not _contains(known[name], level):
            _, lowest, highest = known[name]
            return f"{name} is {level}, but this version supports {lowest} to {highest}"
        if name not in known and level:
            return f"{name} is {level}, but this version does not have that feature"
    return None


def decide_updates(
    finalized: Mapping[str, int],
    updates: Iterable[FeatureUpdate],
    *,
    controller_id: int,
    brokers: Iterable[FeaturesOfBroker] = (),
) -> list[FeatureLevelRecord]:
    """The records that change the levels, all or none of them. `brokers` have to support them.

    Raises `ApiError(INVALID_UPDATE_VERSION)` for the first invalid one.
    """
    newest = {update.feature: update for update in updates}  # of several, the last counts
    others = tuple(brokers)
    records = []
    for update in newest.values():
        problem = _problem(finalized.get(update.feature, 0), update, controller_id, others)
        if problem is not None:
            raise ApiError(ErrorCode.INVALID_UPDATE_VERSION, problem)
        records.append(FeatureLevelRecord(update.feature, update.level))
    return records


def _problem(
    current: int,
    update: FeatureUpdate,
    controller_id: int,
    brokers: Sequence[FeaturesOfBroker],
) -> str | None:
    feature, level, upgrade_type = update
    prefix = f"Invalid update version {level} for feature {feature}. "
    if upgrade_type not in UpgradeType._value2member_map_:
        return prefix + "The controller does not support the given upgrade type."
    if level < 0:
        return prefix + "A feature version cannot be less than 0."
    unsupported = _why_unsupported(feature, level, controller_id) or _why_unsupported_by(
        brokers, feature, level
    )
    if unsupported is not None:
        return prefix + unsupported
    if level < current:
        if upgrade_type == UpgradeType.UPGRADE:
            return (
                f"{prefix}Can't downgrade the version of this feature without setting the upgrade "
                "type to either safe or unsafe downgrade."
            )
        if feature == METADATA_VERSION:
            return _why_no_metadata_downgrade(current, update)
    if level > current and upgrade_type != UpgradeType.UPGRADE:
        return prefix + "Can't downgrade to a newer version."
    return None


def _why_unsupported(feature: str, level: int, controller_id: int) -> str | None:
    for name, lowest, highest in SUPPORTED_FEATURES:
        if name == feature:
            if lowest <= level <= highest:
                return None
            return f"Local controller {controller_id} only supports versions {lowest}-{highest}"
    if level == 0:
        return f"Feature {feature} not found."
    return f"Local controller {controller_id} does not support this feature."


def _why_unsupported_by(
    brokers: Iterable[FeaturesOfBroker], feature: str, level: int
) -> str | None:
    for broker_id, features in brokers:
        found = next((it for it in features if it.name == feature), None)
        if found is None or not found.max_supported_version:
            if level:
                return f"Broker {broker_id} does not support this feature."
        elif not _contains(found, level):
            _, lowest, highest = found
            return f"Broker {broker_id} only supports versions {lowest}-{highest}"
    return None


def _contains(feature: BrokerFeature, level: int) -> bool:
    return feature.min_supported_version <= level <= feature.max_supported_version


def _why_no_metadata_downgrade(current: int, update: FeatureUpdate) -> str:
    """Every lower version lacks something that the records of this one say."""
    reason = (
        "Unsafe metadata downgrade is not supported in this version."
        if update.upgrade_type == UpgradeType.UNSAFE_DOWNGRADE
        else "Refusing to perform the requested downgrade because it might delete metadata "
        "information."
    )
    return f"Unsupported metadata.version downgrade from {current} to {update.level}. {reason}"
