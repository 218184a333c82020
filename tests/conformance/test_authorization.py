"""Every API, every user: the same answers from Millstream as from Apache Kafka.

`answers.txt` holds Apache Kafka's, so that Millstream is compared with them without a JVM; that
they are Apache Kafka's is tested too. `python -m tests.conformance.answers` writes the table when
a call was added.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from millstream.protocol.apis import APIS, OWN_API_KEY_MIN
from tests.conformance.answers import TABLE, read_answers, write_answers
from tests.conformance.calls import CALLS, answers_of
from tests.conformance.differences import DIFFERENCES
from tests.conformance.rights import SETTINGS, TOPICS, USERS, World, create_world, victims
from tests.peers.secured import (
    ADMIN,
    Certificates,
    Secured,
    TokenIssuer,
    secured_settings,
    start_secured,
)
from tests.peers.servers import start_workers

# Before a user is known there are no rights: tested in test_authentication.
_WITHOUT_RIGHTS = {"sasl_handshake", "sasl_authenticate"}
# Any client may push its metrics, as in Kafka; tested in broker/handlers/test_push_telemetry.
_WITHOUT_RIGHTS |= {"get_telemetry_subscriptions", "push_telemetry"}


# In the order of USERS.
SOME_USERS = (
    *("nobody", "all", "topic-write", "no-topic-read", "no-topic-describe", "group-describe"),
    *(
        "no-group-read",
        "cluster-describe",
        "no-cluster-alter",
        "no-txn-write",
        "reader",
        "elsewhere",
    ),
)


@contextmanager
def running_world(kind: str, directory: Path, users: Sequence[str]) -> Iterator[World]:
    broker = start_secured(kind, directory, USERS, SETTINGS)
    try:
        yield create_world(broker, users)
    finally:
        broker.stop()


def test_every_api_is_called() -> None:
    needed = {it.name for it in APIS.values() if it.key < OWN_API_KEY_MIN} - _WITHOUT_RIGHTS
    assert needed <= {call.api for call in CALLS}
    assert len({call.name for call in CALLS}) == len(CALLS)


def test_some_users_get_apache_kafkas_answers(tmp_path: Path) -> None:
    check("millstream", tmp_path, SOME_USERS)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "kind", ["millstream", pytest.param("apache-kafka", marks=pytest.mark.java)]
)
def test_every_user_gets_apache_kafkas_answers(kind: str, tmp_path: Path) -> None:
    check(kind, tmp_path, USERS)


def check(kind: str, directory: Path, users: Sequence[str]) -> None:
    expected = read_answers()
    if kind == "millstream":
        expected = {user: _declared(them) for user, them in expected.items()}
    with running_world(kind, directory, users) as world:
        found = {user: answers_of(world, user) for user in users}
    assert _differences(expected, found) == ""


def test_every_door_of_workers_refuses_the_same(tmp_path: Path) -> None:
    """The address that they share, and the own one of each."""
    certificates, issuer = Certificates(tmp_path / "certificates"), TokenIssuer(tmp_path)
    settings = SETTINGS | secured_settings(certificates, issuer, [ADMIN, "nobody"])
    settings = {it: value for it, value in settings.items() if "ssl." not in it}
    settings["listeners"] = "SASL_PLAINTEXT://127.0.0.1:0"
    settings["listener.security.protocol.map"] = "SASL_PLAINTEXT:SASL_PLAINTEXT"
    server = start_workers(tmp_path / "data", 2, settings)
    try:
        broker = Secured(server, {"SASL_PLAINTEXT": server.port}, certificates, issuer)
        with broker.wire(ADMIN) as admin:
            topics = [
                {"name": name, "num_partitions": 4, "replication_factor": 1}
                for name in (*TOPICS, *victims("nobody"))
            ]
            admin.call("create_topics", 7, topics=topics, timeout=60_000)
            found = admin.call("metadata", 12, topics=None)
        ids = {topic.name: topic.topic_id for topic in found.topics}
        names = {topic_id: name for name, topic_id in ids.items()}
        doors = {server.port, *(it.port for it in found.brokers)}
        assert len(doors) == 3
        expected = {"nobody": _declared(read_answers()["nobody"])}
        for port in doors:
            door = Secured(server, {"SASL_PLAINTEXT": port}, certificates, issuer)
            answers = answers_of(World(door, ids, names), "nobody")
            assert _differences(expected, {"nobody": answers}) == ""
    finally:
        server.stop()


def _declared(answers: Mapping[str, str]) -> dict[str, str]:
    """With the differences that are declared."""
    difference = DIFFERENCES["id of a topic in AlterShareGroupOffsets"]
    hidden = re.compile(rf"{difference.kafka}\S+ (partitions\[29\])")
    return {
        call: hidden.sub(rf"{difference.millstream}\1", answer)
        if call.startswith("alter_share_group_offsets")
        else answer
        for call, answer in answers.items()
    }


def _differences(
    expected: Mapping[str, Mapping[str, str]], found: Mapping[str, Mapping[str, str]]
) -> str:
    """For each call and pair of answers, the users who get one instead of the other."""
    users: dict[tuple[str, str, str], list[str]] = {}
    for user, answers in found.items():
        for call, answer in answers.items():
            wanted = expected[user].get(call, "(not in the table)")
            if wanted != answer:
                users.setdefault((call, wanted, answer), []).append(user)
    return "\n".join(
        f"{call}: {' '.join(them)}\n  expected {wanted}\n  found    {answer}"
        for (call, wanted, answer), them in users.items()
    )


def test_table_is_written_as_it_is_read(tmp_path: Path) -> None:
    write_answers(read_answers(), tmp_path / "answers.txt")
    assert (tmp_path / "answers.txt").read_text() == TABLE.read_text()
