"""Every API, every user: the same answers from Millstream as from Apache Kafka.

`answers.txt` holds Apache Kafka's, so that Millstream is compared with them without a JVM; that
they are Apache Kafka's is tested too. `python -m tests.conformance.answers` writes the table when
a call was added.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from millstream.protocol.apis import APIS
from tests.conformance.answers import TABLE, read_answers, write_answers
from tests.conformance.calls import CALLS, answers_of
from tests.conformance.rights import SETTINGS, USERS, World, create_world
from tests.peers.secured import start_secured

# Before a user is known there are no rights: tested in test_authentication.
_WITHOUT_RIGHTS = {"sasl_handshake", "sasl_authenticate"}
# Any client may push its metrics, as in Kafka; tested in broker/handlers/test_push_telemetry.
_WITHOUT_RIGHTS |= {"get_telemetry_subscriptions", "push_telemetry"}


@pytest.fixture(scope="module")
def world(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[World]:
    kind: str = request.param
    broker = start_secured(kind, tmp_path_factory.mktemp(kind), USERS, SETTINGS)
    try:
        yield create_world(broker)
    finally:
        broker.stop()


def test_every_api_is_called() -> None:
    assert {api.name for api in APIS.values()} - _WITHOUT_RIGHTS <= {call.api for call in CALLS}
    assert len({call.name for call in CALLS}) == len(CALLS)


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "world",
    [
        pytest.param("millstream", marks=pytest.mark.slow),
        pytest.param("apache-kafka", marks=[pytest.mark.java, pytest.mark.slow]),
    ],
    indirect=True,
)
def test_every_user_gets_apache_kafkas_answers(world: World) -> None:
    answers = {user: answers_of(world, user) for user in USERS}
    assert _differences(read_answers(), answers) == ""


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
