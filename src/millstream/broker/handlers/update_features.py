"""UpdateFeatures, v0-2: change a feature's level (KIP-584).

* v1: downgrades by type, validate only (KIP-778)
* v2: one answer for all

A single broker runs every feature at its highest level, so only that level is accepted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.broker.context import RequestContext
from millstream.broker.metadata import SUPPORTED_FEATURES
from millstream.errors import ErrorCode

if TYPE_CHECKING:
    from kio.schema.update_features.v2.request import FeatureUpdateKey, UpdateFeaturesRequest

    from millstream.coordination.cluster import ClusterImage
    from millstream.protocol.messages import Fields


def update_features(context: RequestContext, request: UpdateFeaturesRequest) -> Fields:
    image = context.broker.metadata.image
    problems = {it.feature: _problem(image, it) for it in request.feature_updates}
    first = next((problem for problem in problems.values() if problem is not None), None)
    return {
        "error_code": ErrorCode.NONE if first is None else ErrorCode.INVALID_UPDATE_VERSION,
        "error_message": first,
        "results": [
            {
                "feature": feature,
                "error_code": ErrorCode.NONE
                if problem is None
                else ErrorCode.INVALID_UPDATE_VERSION,
                "error_message": problem,
            }
            for feature, problem in problems.items()
        ],
    }


def _problem(image: ClusterImage, update: FeatureUpdateKey) -> str | None:
    level = update.max_version_level
    if update.feature not in {feature.name for feature in SUPPORTED_FEATURES}:
        return (
            f"Invalid update version {level} for feature {update.feature}. Local controller "
            f"{_only(image)} does not support this feature."
        )
    current = image.features.get(update.feature, 0)
    if level != current:
        return (
            f"Invalid update version {level} for feature {update.feature}. A single broker runs it "
            f"at level {current} only."
        )
    return None


def _only(image: ClusterImage) -> int:
    return next(iter(image.brokers), -1)
