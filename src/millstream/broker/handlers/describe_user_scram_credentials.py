"""DescribeUserScramCredentials, v0: which users can authenticate with SCRAM, and how (KIP-554).

Salts and keys are not in the answer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from millstream.broker.handlers._rights import may_cluster
from millstream.broker.services import RequestContext
from millstream.errors import ErrorCode
from millstream.security.acls import Operation

if TYPE_CHECKING:
    from kio.schema.describe_user_scram_credentials.v0.request import (
        DescribeUserScramCredentialsRequest,
    )

    from millstream.protocol.messages import Fields


def describe_user_scram_credentials(
    context: RequestContext, request: DescribeUserScramCredentialsRequest
) -> Fields:
    if not may_cluster(context, Operation.DESCRIBE):
        code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        return {
            "error_code": code,
            "error_message": code.description,
            "results": [
                {"user": it.name, "error_code": code, "credential_infos": ()}
                for it in request.users or ()
            ],
        }
    credentials: dict[str, dict[int, int]] = {}
    for (user, mechanism), it in sorted(context.services.metadata.image.scram.items()):
        credentials.setdefault(user, {})[mechanism] = it.iterations
    # None, or an empty list: all users.
    asked = Counter(it.name for it in request.users or ()) or Counter(list(credentials))
    return {
        "error_code": ErrorCode.NONE,
        "results": [_result(user, count, credentials.get(user)) for user, count in asked.items()],
    }


def _result(user: str, count: int, iterations: Mapping[int, int] | None) -> dict[str, Any]:
    answer: dict[str, Any] = {
        "user": user,
        "error_code": ErrorCode.NONE,
        "error_message": None,
        "credential_infos": (),
    }
    if count > 1:
        return answer | {
            "error_code": ErrorCode.DUPLICATE_RESOURCE,
            "error_message": "Cannot describe SCRAM credentials for the same user twice in a "
            f"single request: {user}",
        }
    if iterations is None:
        return answer | {
            "error_code": ErrorCode.RESOURCE_NOT_FOUND,
            "error_message": f"Attempt to describe a user credential that does not exist: {user}",
        }
    return answer | {
        "credential_infos": [
            {"mechanism": mechanism, "iterations": count} for mechanism, count in iterations.items()
        ]
    }
