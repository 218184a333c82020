"""Actions: forms, tokens, confirmations, results."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from starlette.exceptions import HTTPException
from starlette.requests import Request

from millstream.console.actions import (
    DONE_MAX,
    Done,
    Form,
    Outcomes,
    Refused,
    check_token,
    check_typed,
    command_of,
    read_form,
)


def request(body: bytes = b"", *, csrf: str = "t", script: bool = False, **headers: str) -> Request:
    async def receive() -> Any:
        return {"type": "http.request", "body": body, "more_body": False}

    pairs = [(it.replace("_", "-").encode(), value.encode()) for it, value in headers.items()]
    made = Request({"type": "http", "headers": pairs, "method": "POST"}, receive)
    made.state.csrf, made.state.is_script = csrf, script
    return made


def test_forms_and_json_are_read_alike() -> None:
    form = asyncio.run(read_form(request(b"a=1&b=x+y&a=2")))
    json = asyncio.run(
        read_form(request(b'{"a": [1, "2"], "b": "x y"}', content_type="application/json"))
    )
    for read in (form, json):
        assert read.all("a") == ["1", "2"]
        assert read.get("b") == "x y"
        assert read.get("c", "default") == "default"


@pytest.mark.parametrize(
    ("body", "kind", "status"),
    [
        (b"[1]", "application/json", 400),
        (b"{", "application/json", 400),
        (b"[" * 100_000, "application/json", 400),
        (b"\xff", "application/x-www-form-urlencoded", 400),
        (b"&".join([b"a=1"] * 10_001), "application/x-www-form-urlencoded", 400),
        (b"a=1", "text/plain", 415),
        (b"a=1", "multipart/form-data", 415),
    ],
)
def test_other_bodies_are_refused(body: bytes, kind: str, status: int) -> None:
    with pytest.raises(HTTPException) as refused:
        asyncio.run(read_form(request(body, content_type=kind)))
    assert refused.value.status_code == status


def test_token_is_needed_but_for_scripts() -> None:
    check_token(request(), Form([("csrf", "t")]))
    check_token(request(x_csrf_token="t"), Form([]))
    check_token(request(script=True), Form([]))
    for form in (Form([]), Form([("csrf", "T")]), Form([("csrf", "ü")])):
        with pytest.raises(HTTPException):
            check_token(request(), form)


def test_name_is_typed_exactly() -> None:
    check_typed(Form([("confirmation", "orders")]), "orders")
    for typed in ("", "Orders", "orders "):
        with pytest.raises(Refused):
            check_typed(Form([("confirmation", typed)]), "orders")


def test_fields_are_checked() -> None:
    form = Form([("n", " 7 "), ("x", "seven")])
    assert form.integer("n", "Number") == 7
    assert form.integer("none", "Number", 3) == 3
    with pytest.raises(Refused, match="Number must be a whole number, not 'seven'"):
        form.integer("x", "Number")
    with pytest.raises(Refused, match="Name is missing"):
        form.need("none", "Name")


def test_names_that_look_like_options_stand_at_the_end() -> None:
    assert (
        command_of("topic", "delete", "orders", "--yes") == "millstream topic delete orders --yes"
    )
    given = ("consume", "-orders", "--group", "-g", "--keys")
    assert command_of(*given) == "millstream consume --group -g --keys -- -orders"


def test_results_are_kept_for_a_while() -> None:
    outcomes = Outcomes()
    first = outcomes.keep(Done("first"))
    assert outcomes.find({"done": first}) == Done("first")
    assert outcomes.find({"done": "other"}) is None
    for _ in range(DONE_MAX):
        outcomes.keep(Done("later"))
    assert outcomes.find({"done": first}) is None
