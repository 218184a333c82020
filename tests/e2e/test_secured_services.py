"""Calls and bridges on a secured cluster, with the rights that they need and no others.

They log in as a user, and there is no way around that user's rights: the table of
docs/guides/security.md.
"""

from __future__ import annotations

import http.client
import re
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import NewTopic

from millstream.bridges.config import parse_config
from millstream.bridges.running import Bridge
from millstream.errors import MillstreamError
from millstream.rpc import CallFailed, Client, Request, Server
from tests.bridges.conftest import request
from tests.peers.patience import PATIENCE_SECONDS
from tests.peers.secured import ADMIN, Secured, start_secured
from tests.peers.secured_clients import KINDS, admin_of, allow, properties_of, settings_of

pytestmark = pytest.mark.slow

SILENT = "silent"  # may write nothing
UNANSWERED_SECONDS = 6.0  # after which a call is given up
V2 = {"content-type": "application/vnd.kafka.json.v2+json"}


class Refused(Exception):
    """The service could not do it."""


class World(NamedTuple):
    secured: Secured
    directory: Path

    @property
    def address(self) -> str:
        return self.secured.address("SASL_SSL")


def answer_calls(world: World, user: str, group: str) -> Server:
    settings = settings_of(world.secured, user)

    def answer(request: Request) -> bytes:
        return b"re: " + (request.value or b"")

    return Server(world.address, "calls", answer, group=group, settings=settings)


def call(world: World, user: str, group: str) -> None:
    settings = settings_of(world.secured, user)
    with Client(world.address, "calls", group=group, settings=settings) as client:
        deadline = time.monotonic() + UNANSWERED_SECONDS
        while True:
            try:
                assert client.call(b"x", timeout=UNANSWERED_SECONDS / 3) == b"re: x"
                return
            except MillstreamError:  # the server may be about to join
                if time.monotonic() > deadline:
                    raise


def be_called(world: World, user: str) -> None:
    for _ in range(2):  # the second server reads what the first one has answered
        with answer_calls(world, user, f"servers-{user}"):
            call(world, ADMIN, f"servers-{user}")


def call_others(world: World, user: str) -> None:
    with answer_calls(world, ADMIN, "servers"):
        call(world, user, "servers")


def bridge(world: World, user: str, **http_settings: Any) -> Bridge:
    properties = properties_of(world.secured, user, world.directory)
    table = {"listen": "127.0.0.1:0", **http_settings}
    return Bridge(parse_config({"client_config": str(properties), "http": table}))


def post(world: World, user: str) -> None:
    with bridge(world, user, produce=["t"]) as running:
        assert running.http is not None
        body = {"records": [{"value": 1}]}
        status, answer = request(running.http.address, "POST", "/topics/t", body, V2)
        if status != 200 or "error_code" in answer["offsets"][0]:
            raise Refused(f"{status}: {answer}")


def stream(world: World, user: str) -> None:
    with bridge(world, user, read=["t"]) as running:
        assert running.http is not None
        connection = http.client.HTTPConnection(running.http.address, timeout=UNANSWERED_SECONDS)
        try:
            connection.request("GET", "/topics/t/events?from=earliest")
            response = connection.getresponse()
            if response.status != 200:
                raise Refused(str(response.status))
            while not (line := response.readline()).startswith(b"data: "):
                if not line:
                    raise Refused("the stream ended")
            if b'"offset"' not in line:
                raise Refused(line.decode())
        except TimeoutError:
            raise Refused("nothing came") from None
        finally:
            connection.close()


class Case(NamedTuple):
    act: Callable[[World, str], None]
    rights: list[str]


CASES: Mapping[str, Case] = {
    "caller": Case(
        call_others,
        ["WRITE topic calls", "READ topic calls-replies", "DESCRIBE group servers"],
    ),
    "answerer": Case(
        be_called,
        [
            "READ topic calls",
            "READ group servers-answerer*",
            "WRITE topic calls-replies",
            "READ topic servers-answerer*",
            "WRITE topic servers-answerer*",
            "CREATE topic servers-answerer*",
            "WRITE transactional_id servers-answerer*",
        ],
    ),
    "poster": Case(post, ["WRITE topic t"]),
    "streamer": Case(stream, ["READ topic t"]),
}


@pytest.fixture(scope="module", params=KINDS)
def world(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[World]:
    directory = tmp_path_factory.mktemp("secured")
    users = [f"{user}-{number}" for user in CASES for number in range(len(CASES[user].rights))]
    settings = {"group.initial.rebalance.delay.ms": "0"}
    running = start_secured(request.param, directory, [*CASES, *users, SILENT], settings)
    try:
        topics = [NewTopic(name, 1) for name in ("calls", "calls-replies", "t")]
        admin = admin_of(running)
        for future in admin.create_topics(topics).values():
            future.result(PATIENCE_SECONDS)
        world = World(running, directory)
        post(world, ADMIN)
        yield world
    finally:
        running.stop()


@pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("user", CASES)
def test_service_needs_its_rights_and_no_others(world: World, user: str) -> None:
    act, rights = CASES[user]
    for number, left_out in enumerate(rights):
        poor = f"{user}-{number}"
        allow(world.secured, poor, [it for it in rights if it != left_out])
        with pytest.raises((Refused, KafkaException, MillstreamError)):
            act(world, poor)
    allow(world.secured, user, rights)
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:  # brokers learn of rights a moment later
        try:
            act(world, user)
            return
        except (Refused, KafkaException, MillstreamError):
            if time.monotonic() > deadline:
                raise


def test_call_without_the_right_to_write_fails_at_once(world: World) -> None:
    allow(world.secured, SILENT, ["DESCRIBE topic calls", "READ topic calls-replies"])
    settings = settings_of(world.secured, SILENT)
    with (
        Client(world.address, "calls", settings=settings) as client,
        pytest.raises(CallFailed, match=r"cannot be sent: .*[Aa]uthorization failed"),
    ):
        client.call(b"x", timeout=PATIENCE_SECONDS)


def test_bridge_without_the_right_to_write_is_not_ready(world: World) -> None:
    allow(world.secured, SILENT, ["DESCRIBE topic t"])
    with bridge(world, SILENT, produce=["t"]) as running:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not running.problems():
            assert time.monotonic() < deadline
            time.sleep(0.05)
        (problem,) = running.problems()
        assert re.match(
            r"no record can be written until the bridge is restarted: .*[Aa]uthorization", problem
        )
