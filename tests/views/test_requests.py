"""What addresses and bodies ask for."""

from __future__ import annotations

import json
from http import HTTPStatus

import pytest

from millstream.errors import ViewError
from millstream.views import Views
from millstream.views.requests import BadRequest, Request, host_of, is_address, key_of, range_of
from tests.views.conftest import Shop

JSON = "application/json; charset=utf-8"


def test_address_has_a_path_and_parameters() -> None:
    request = Request.parse("/views/by_user/rows/a%2Fb?at_least=orders:0:41,orders:1:7&timeout=5")
    assert request.path == ["views", "by_user", "rows", "a/b"]
    assert request.at_least() == {("orders", 0): 41, ("orders", 1): 7}
    assert request.timeout(60) == 5
    assert Request.parse("/stamp").timeout(60) == 60


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("/stamp?at_leest=orders:0:1", "no parameter at_leest"),
        ("/views/%ff", "address is wrong"),
        ("/stamp?" + "&".join("timeout=1" for _ in range(40)), "address is wrong"),
    ],
)
def test_wrong_addresses_are_refused(address: str, words: str) -> None:
    with pytest.raises(ViewError, match=words):
        Request.parse(address)


@pytest.mark.parametrize("text", ["soon", "-1", "61", "nan", ""])
def test_wrong_timeouts_are_refused(text: str) -> None:
    with pytest.raises(ViewError, match="timeout="):
        Request.parse(f"/stamp?timeout={text}").timeout(60)


def test_query_is_text_or_json() -> None:
    assert Request.parse("/sql", b"SELECT 1").query() == ("SELECT 1", ())
    body = json.dumps({"sql": "SELECT ?", "values": [1, "a", None]}).encode()
    assert Request.parse("/sql", body, JSON).query() == ("SELECT ?", [1, "a", None])


@pytest.mark.parametrize(
    ("body", "content_type"),
    [
        (b"\xff", ""),
        (b"{", JSON),
        (b"[" * 100_000, JSON),
        (b"[]", JSON),
        (b'{"sql": 1}', JSON),
        (b'{"sql": "SELECT 1", "values": [[]]}', JSON),
        (b'{"sql": "SELECT 1", "limit": 1}', JSON),
    ],
)
def test_wrong_bodies_are_refused(body: bytes, content_type: str) -> None:
    with pytest.raises(ViewError):
        Request.parse("/sql", body, content_type).query()


def test_ranges_and_keys_are_of_the_view(shop: Shop, views: Views) -> None:
    shop.spend(ada=1)
    with views.read() as v:
        users, total = v["by_user"], v["total"]
        request = Request.parse("/?low=a&high=b/c&limit=3&descending=true")
        assert range_of(users, request, 10) == (("a",), ("b/c",), 3, True)
        assert range_of(total, Request.parse("/?low=7"), 10) == ((7,), None, 10, False)
        assert key_of(total, ["7", "more"]) == [7, "more"]
        for bad in ("limit=11", "limit=-1", "limit=1.5", "limit=", "low=x", "descending=2"):
            with pytest.raises(ViewError):
                range_of(total, Request.parse(f"/?{bad}"), 10)


def test_bad_request_has_a_status() -> None:
    assert BadRequest(HTTPStatus.NOT_FOUND, "nothing here").status == 404


def test_host_of_a_request() -> None:
    headers = ["Shop.example:80", "[::1]:1", "10.0.0.1", "", "[x"]
    assert [host_of(it) for it in headers] == ["shop.example", "::1", "10.0.0.1", None, None]
    assert [is_address(it) for it in ("10.0.0.1", "::1", "10.0.0.1.example", "0x7f.1")] == [
        True, True, False, False,
    ]  # fmt: skip
