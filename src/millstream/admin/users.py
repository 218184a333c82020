"""Users of SCRAM, which the cluster keeps: list, create, give a new password, delete."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from millstream.admin.errors import InvalidArgument
from millstream.client.cluster import Cluster, check
from millstream.security.scram import BY_CODE, BY_NAME, ITERATIONS_DEFAULT, new_salt, salt_password

DESCRIBE_API = "describe_user_scram_credentials"
ALTER_API = "alter_user_scram_credentials"

Users = dict[str, dict[str, int]]  # iterations by mechanism, by user


def known_users(cluster: Cluster) -> Users:
    """All users of SCRAM. Raises `ApiError`."""
    # Not null, which means the same: Apache Kafka never answers it to users that lack the right.
    answer = cluster.retrying(lambda: cluster.any_connection().call(DESCRIBE_API, {"users": []}))
    check(answer.error_code, answer.error_message or "listing users is refused", DESCRIBE_API)
    return {
        result.user: {
            BY_CODE[int(it.mechanism)].name: int(it.iterations) for it in result.credential_infos
        }
        for result in answer.results
    }


def set_password(
    cluster: Cluster,
    user: str,
    password: str,
    *,
    mechanisms: Iterable[str] = tuple(BY_NAME),
    iterations: int = ITERATIONS_DEFAULT,
    existing: Mapping[str, int] | None = None,
) -> None:
    """Create a user, or give one a new password. `existing` are its mechanisms; those that are not
    among the new ones are removed, since they have the old password."""
    if not user:
        raise InvalidArgument("the name of the user is empty")
    if not password:
        raise InvalidArgument("the password is empty")
    wanted = list(mechanisms)
    upsertions = []
    for name in wanted:
        salt = new_salt()
        salted = salt_password(BY_NAME[name], password, salt, iterations)
        upsertions.append(
            {
                "name": user,
                "mechanism": BY_NAME[name].code,
                "iterations": iterations,
                "salt": salt,
                "salted_password": salted,
            }
        )
    gone = [name for name in existing or {} if name not in wanted]
    _alter(cluster, upsertions, [_deletion(user, name) for name in gone], f"user {user!r}")


def delete_user(cluster: Cluster, user: str, mechanisms: Iterable[str]) -> None:
    _alter(cluster, [], [_deletion(user, name) for name in mechanisms], f"user {user!r}")


def _deletion(user: str, mechanism: str) -> dict[str, Any]:
    return {"name": user, "mechanism": BY_NAME[mechanism].code}


def _alter(cluster: Cluster, upsertions: list[Any], deletions: list[Any], what: str) -> None:
    """One by one: a request has at most one change of a user."""
    broker = cluster.broker_ids()[0]
    requests = [
        *({"upsertions": [it], "deletions": []} for it in upsertions),
        *({"upsertions": [], "deletions": [it]} for it in deletions),
    ]
    for fields in requests:
        answer = cluster.ask_broker(broker, ALTER_API, fields)
        for result in answer.results:
            check(result.error_code, result.error_message or what, ALTER_API)
