"""Answers: HTML, JSON, and errors in both."""

from __future__ import annotations

import enum
import json
from dataclasses import dataclass
from typing import NamedTuple
from uuid import UUID

import pytest
from starlette.exceptions import HTTPException

from millstream.console.answers import explain, json_answer, plain
from millstream.errors import ApiError, ConfigError, ErrorCode
from tests.console.conftest import Console, start_console


class Colour(enum.Enum):
    LIGHT_RED = 1


class Pair(NamedTuple):
    left: int
    right: bytes


@dataclass
class Thing:
    pair: Pair
    names: tuple[str, ...]
    colour: Colour
    number: float
    id: UUID


def test_models_become_json() -> None:
    thing = Thing(Pair(1, b"\xff"), ("a",), Colour.LIGHT_RED, float("nan"), UUID(int=1))
    assert plain(thing) == {
        "pair": {"left": 1, "right": "/w=="},
        "names": ["a"],
        "colour": "light_red",
        "number": None,
        "id": "00000000-0000-0000-0000-000000000001",
    }


def test_names_that_are_no_text_are_no_error() -> None:
    assert json.loads(bytes(json_answer({"name": "\udcff"}).body)) == {"name": "?"}


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (HTTPException(404, "no"), 404),
        (ApiError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "no"), 403),
        (ApiError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "no"), 403),
        (ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "no"), 404),
        (ApiError(ErrorCode.SASL_AUTHENTICATION_FAILED, "no"), 401),
        (ApiError(ErrorCode.UNSUPPORTED_VERSION, "no"), 501),
        (ApiError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "no"), 503),
        (ApiError(ErrorCode.INVALID_CONFIG, "no"), 400),
        (ConnectionError("no"), 503),
        (ConfigError("no"), 502),
        (ValueError("secret"), 500),
    ],
)
def test_errors_have_a_status(error: Exception, status: int) -> None:
    found = explain(error)
    assert found.status == status
    assert "secret" not in found.message


def test_page_is_html_or_json(console: Console) -> None:
    assert console.get("/", Accept="text/html,*/*")[1]["content-type"].startswith("text/html")
    for path, accept in (("/?format=json", "text/html"), ("/", "application/json")):
        status, headers, body = console.get(path, Accept=accept)
        assert status == 200
        assert headers["content-type"] == "application/json"
        assert json.loads(body)
    status, _, body = console.get("/no-such-page?format=json")
    assert status == 404
    assert json.loads(body)["status"] == 404


def test_cluster_that_cannot_be_reached_is_an_error_page() -> None:
    unreachable = start_console("127.0.0.1:1")
    try:
        status, _, body = unreachable.get("/")
        assert status == 503
        assert "The cluster cannot be reached" in body
        assert "127.0.0.1:1" in body
    finally:
        unreachable.server.stop()
