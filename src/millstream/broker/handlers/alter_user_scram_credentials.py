"""AlterUserScramCredentials, v0: create, change and delete users of SCRAM (KIP-554).

The client salts the password; the broker keeps two keys derived from it, in the metadata. A change
is durable when it is answered, and in force for the next client that authenticates.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from millstream.broker.handlers._rights import may_cluster
from millstream.broker.services import RequestContext
from millstream.errors import ApiError, ErrorCode
from millstream.security.acls import Operation
from millstream.security.scram import BY_CODE, ITERATIONS_MAX, ITERATIONS_MIN, ScramCredential

if TYPE_CHECKING:
    from kio.schema.alter_user_scram_credentials.v0.request import (
        AlterUserScramCredentialsRequest,
        ScramCredentialDeletion,
        ScramCredentialUpsertion,
    )

    from millstream.protocol.messages import Fields


async def alter_user_scram_credentials(
    context: RequestContext, request: AlterUserScramCredentialsRequest
) -> Fields:
    counts = Counter([it.name for it in request.deletions])
    counts.update(it.name for it in request.upsertions)
    if not may_cluster(context, Operation.ALTER):
        refusal = ApiError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        return {"results": [_result(user, refusal) for user in counts]}
    outcome: dict[str, ApiError | None] = {}
    changes: dict[tuple[str, int], ScramCredential | None] = {}
    for deletion in request.deletions:
        outcome[deletion.name] = error = _why_not(deletion, counts)
        if error is None:
            changes[deletion.name, deletion.mechanism] = None
    for upsertion in request.upsertions:
        error = _why_not(upsertion, counts) or _why_not_set(upsertion)
        outcome[upsertion.name] = error
        if error is None:
            changes[upsertion.name, upsertion.mechanism] = _credential(upsertion)
    if changes:
        outcome |= await context.services.actions.alter_scram(changes)
    return {"results": [_result(user, error) for user, error in outcome.items()]}


def _result(user: str, error: ApiError | None) -> dict[str, Any]:
    if error is None:
        return {"user": user, "error_code": ErrorCode.NONE, "error_message": None}
    return {"user": user, "error_code": error.code, "error_message": error.message}


def _why_not(
    wanted: ScramCredentialDeletion | ScramCredentialUpsertion, counts: Mapping[str, int]
) -> ApiError | None:
    if counts[wanted.name] > 1:
        return ApiError(
            ErrorCode.DUPLICATE_RESOURCE,
            "A user credential cannot be altered twice in the same request",
        )
    if not wanted.name:
        return ApiError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Username must not be empty")
    if wanted.mechanism not in BY_CODE:
        return ApiError(ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism")
    return None


def _why_not_set(wanted: ScramCredentialUpsertion) -> ApiError | None:
    if wanted.iterations < ITERATIONS_MIN:
        return ApiError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too few iterations")
    if wanted.iterations > ITERATIONS_MAX:
        return ApiError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too many iterations")
    if not wanted.salt or not wanted.salted_password:
        return ApiError(
            ErrorCode.UNACCEPTABLE_CREDENTIAL, "Salt and salted password must not be empty"
        )
    return None


def _credential(wanted: ScramCredentialUpsertion) -> ScramCredential:
    return ScramCredential.of_salted_password(
        BY_CODE[wanted.mechanism], wanted.salted_password, wanted.salt, wanted.iterations
    )
