"""UpdateFeatures, v0-2: change the levels of features, all of them or none (KIP-584).

* v0: `allow_downgrade`, which Kafka 4 does not look at either: a level can only be raised
* v1: downgrades by type, validate only (KIP-778)
* v2: one answer for all

A finalized level is in force with the next request that asks for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.broker.handlers._rights import require_cluster
from millstream.broker.services import RequestContext
from millstream.coordination.cluster_features import FeatureUpdate
from millstream.errors import ApiError, ErrorCode
from millstream.security.acls import Operation

if TYPE_CHECKING:
    from kio.schema.update_features.v2.request import UpdateFeaturesRequest

    from millstream.protocol.messages import Fields


async def update_features(context: RequestContext, request: UpdateFeaturesRequest) -> Fields:
    require_cluster(context, Operation.ALTER)
    updates = [
        FeatureUpdate(update.feature, update.max_version_level, update.upgrade_type)
        for update in request.feature_updates
    ]
    try:
        await context.services.actions.update_features(updates, validate_only=request.validate_only)
    except ApiError as error:
        return {
            "error_code": error.code,
            "error_message": "The update failed for all features since the following feature had "
            f"an error: {error.message}",
        }
    return {
        "error_code": ErrorCode.NONE,
        "results": [
            {"feature": update.feature, "error_code": ErrorCode.NONE}
            for update in request.feature_updates
        ],
    }
