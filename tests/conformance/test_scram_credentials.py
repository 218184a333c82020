"""Users of SCRAM: Describe- and AlterUserScramCredentials, and confluent-kafka's calls of them."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)

from tests.conformance.brokers import BrokerUnderTest, unique
from tests.peers.patience import wait_until
from tests.peers.wire import Wire

NO_ERROR, UNSUPPORTED_SASL_MECHANISM = 0, 33
RESOURCE_NOT_FOUND, DUPLICATE_RESOURCE, UNACCEPTABLE_CREDENTIAL = 91, 92, 93
SHA_256, SHA_512 = 1, 2


def upsertion(user: str, mechanism: int = SHA_256, iterations: int = 4096) -> dict[str, Any]:
    return {
        "name": user,
        "mechanism": mechanism,
        "iterations": iterations,
        "salt": b"salt",
        "salted_password": bytes(32),
    }


def deletion(user: str, mechanism: int = SHA_256) -> dict[str, Any]:
    return {"name": user, "mechanism": mechanism}


def alter(
    wire: Wire, deletions: list[dict[str, Any]] | None = None, *upsertions: dict[str, Any]
) -> dict[str, tuple[int, str | None]]:
    answer = wire.call(
        "alter_user_scram_credentials", 0, deletions=deletions or [], upsertions=upsertions
    )
    return {it.user: (it.error_code, it.error_message) for it in answer.results}


def describe(wire: Wire, *users: str) -> dict[str, Any]:
    """By user: the iterations of each mechanism, or the error's code and message."""
    wanted = [{"name": user} for user in users]
    answer = wire.call("describe_user_scram_credentials", 0, users=wanted)
    assert answer.error_code == NO_ERROR
    return {
        it.user: (it.error_code, it.error_message)
        if it.error_code
        else {info.mechanism: info.iterations for info in it.credential_infos}
        for it in answer.results
    }


def test_user_is_created_changed_and_deleted(broker: BrokerUnderTest) -> None:
    user = unique("alice")
    with Wire(broker.bootstrap) as wire:
        assert alter(wire, [], upsertion(user)) == {user: (NO_ERROR, None)}
        wait_until(lambda: describe(wire, user) == {user: {SHA_256: 4096}})
        alter(wire, [], upsertion(user, SHA_512, 16384))
        alter(wire, [], upsertion(user, SHA_256, 8192))
        wait_until(lambda: describe(wire, user) == {user: {SHA_256: 8192, SHA_512: 16384}})
        assert alter(wire, [deletion(user)]) == {user: (NO_ERROR, None)}
        wait_until(lambda: describe(wire, user) == {user: {SHA_512: 16384}})
        alter(wire, [deletion(user, SHA_512)])
        wait_until(lambda: next(iter(describe(wire, user)[user])) == RESOURCE_NOT_FOUND)
        alter(wire, [], upsertion(user, SHA_512))  # and created again
        wait_until(lambda: describe(wire, user) == {user: {SHA_512: 4096}})


@pytest.mark.parametrize("users", [[], None])
def test_all_users_are_described(broker: BrokerUnderTest, users: list[str] | None) -> None:
    first, second = unique("first"), unique("second")
    with Wire(broker.bootstrap) as wire:
        alter(wire, [], upsertion(first), upsertion(second, SHA_512))
        answer = wire.call("describe_user_scram_credentials", 0, users=users)
        assert answer.error_code == NO_ERROR
        found = {
            it.user: [(i.mechanism, i.iterations) for i in it.credential_infos]
            for it in answer.results
        }
    assert (found[first], found[second]) == ([(SHA_256, 4096)], [(SHA_512, 4096)])


def test_users_that_cannot_be_described(broker: BrokerUnderTest) -> None:
    known, unknown = unique("known"), unique("unknown")
    with Wire(broker.bootstrap) as wire:
        alter(wire, [], upsertion(known))
        assert describe(wire, unknown, known) == {
            unknown: (
                RESOURCE_NOT_FOUND,
                f"Attempt to describe a user credential that does not exist: {unknown}",
            ),
            known: {SHA_256: 4096},
        }
        assert describe(wire, known, known) == {
            known: (
                DUPLICATE_RESOURCE,
                "Cannot describe SCRAM credentials for the same user twice in a single request: "
                f"{known}",
            )
        }


def test_each_user_fails_alone(broker: BrokerUnderTest) -> None:
    good, few, many, strange, twice, both = map(unique, ("good", "few", "many", "x", "twice", "b"))
    missing = unique("missing")
    with Wire(broker.bootstrap) as wire:
        alter(wire, [], upsertion(both))
        outcome = alter(
            wire,
            [deletion(missing), deletion(both)],
            upsertion(good),
            upsertion(few, iterations=4095),
            upsertion(many, iterations=16385),
            upsertion(strange, mechanism=3),
            upsertion(twice),
            upsertion(twice, SHA_512),
            upsertion(both),
            upsertion(""),
        )
        assert outcome == {
            good: (NO_ERROR, None),
            few: (UNACCEPTABLE_CREDENTIAL, "Too few iterations"),
            many: (UNACCEPTABLE_CREDENTIAL, "Too many iterations"),
            strange: (UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism"),
            twice: (
                DUPLICATE_RESOURCE,
                "A user credential cannot be altered twice in the same request",
            ),
            both: (
                DUPLICATE_RESOURCE,
                "A user credential cannot be altered twice in the same request",
            ),
            missing: (
                RESOURCE_NOT_FOUND,
                "Attempt to delete a user credential that does not exist",
            ),
            "": (UNACCEPTABLE_CREDENTIAL, "Username must not be empty"),
        }
        found = describe(wire, good, few, twice)
        assert found[good] == {SHA_256: 4096}
        assert (found[few][0], found[twice][0]) == (RESOURCE_NOT_FOUND, RESOURCE_NOT_FOUND)


def test_nothing_asked_is_nothing_done(broker: BrokerUnderTest) -> None:
    with Wire(broker.bootstrap) as wire:
        assert alter(wire, []) == {}


def test_confluent_kafka_manages_users(broker: BrokerUnderTest) -> None:
    user = unique("confluent")
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 10000)
    upserted = UserScramCredentialUpsertion(user, info, b"secret")
    admin.alter_user_scram_credentials([upserted])[user].result(60)
    described = admin.describe_user_scram_credentials([user])[user].result(60)
    (credential,) = described.scram_credential_infos
    assert (credential.mechanism, credential.iterations) == (ScramMechanism.SCRAM_SHA_512, 10000)
    gone = UserScramCredentialDeletion(user, ScramMechanism.SCRAM_SHA_512)
    admin.alter_user_scram_credentials([gone])[user].result(60)
    with pytest.raises(KafkaException, match="does not exist"):
        admin.describe_user_scram_credentials([user])[user].result(60)
