"""The client of schema registries: what it asks, what it keeps, and what it says."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from millstream.client.schema_registry import (
    Registry,
    RegistryError,
    RegistrySettings,
    UnknownSchema,
    parse_urls,
    registry_for,
    registry_settings,
)
from millstream.errors import ConfigError
from tests.peers.apicurio import Apicurio, program, start_apicurio
from tests.peers.cache import PeerMissing
from tests.peers.schema_registry import SchemaRegistry, running_registry
from tests.peers.secured import Certificates
from tests.peers.servers import free_port

ORDER = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}
BUSY = (503, b"busy")


@pytest.fixture
def server() -> Iterator[SchemaRegistry]:
    with running_registry() as registry:
        yield registry


def client(server: SchemaRegistry, **settings: Any) -> Registry:
    return Registry(RegistrySettings((server.url,), patience_ms=60_000, **settings))


def test_schema_is_asked_for_once(server: SchemaRegistry) -> None:
    number = server.add("orders-value", ORDER)
    registry = client(server)
    for _ in range(3):
        assert json.loads(registry.schema(number).text) == ORDER
    assert server.requests == [f"GET /schemas/ids/{number}"]


def test_registry_is_shared_for_equal_settings() -> None:
    settings = [RegistrySettings(("http://a:1",), user_info=it) for it in ("a:b", "a:b", "a:c")]
    assert registry_for(settings[0]) is registry_for(settings[1])
    assert registry_for(settings[0]) is not registry_for(settings[2])


def test_settings_do_not_print_secrets() -> None:
    text = repr(RegistrySettings(("http://a:1",), user_info="ann:secret", token="hidden"))
    assert "secret" not in text
    assert "hidden" not in text


def test_references_come_before_the_schemas_that_need_them(server: SchemaRegistry) -> None:
    def reference(name: str) -> list[dict[str, Any]]:
        return [{"name": name, "subject": name, "version": 1}]

    server.add("a", '"a"')
    server.add("b", '"b"', references=reference("a"))
    number = server.add("c", '"c"', references=[*reference("b"), *reference("a")])
    assert client(server).schema(number) == ('"c"', ('"a"', '"b"'))


def test_schema_is_registered_and_found_again(server: SchemaRegistry) -> None:
    registry = client(server)
    number = registry.register("orders/value", '"int"')
    assert registry.register("orders/value", '"int"') == number
    assert server.requests == ["POST /subjects/orders%2Fvalue/versions"]
    assert registry.latest("orders/value") == (number, ('"int"', ()))
    assert client(server).lookup("orders/value", '"int"') == number
    with pytest.raises(UnknownSchema, match="no subject orders/value"):
        registry.lookup("orders/value", '"long"')


@pytest.mark.parametrize(
    ("settings", "header"),
    [
        ({"user_info": "ann:secret"}, "Basic " + base64.b64encode(b"ann:secret").decode()),
        ({"token": "t0ken"}, "Bearer t0ken"),
    ],
)
def test_client_authenticates(server: SchemaRegistry, settings: Any, header: str) -> None:
    number = server.add("orders-value", ORDER)
    server.authorization = header
    assert client(server, **settings).schema(number)
    with pytest.raises(ConfigError, match=r"refuses schema 1: 401 Unauthorized; set basic\.auth"):
        client(server).schema(number)


def test_registry_that_is_busy_is_asked_again(server: SchemaRegistry) -> None:
    number = server.add("orders-value", ORDER)
    server.broken_answers = [BUSY, (429, b"slow down"), BUSY]
    assert client(server).schema(number)
    assert len(server.requests) == 4


def test_other_address_is_asked_where_one_is_away(server: SchemaRegistry) -> None:
    number = server.add("orders-value", ORDER)
    away = f"http://127.0.0.1:{free_port()}"
    assert Registry(RegistrySettings((away, server.url))).schema(number)


def test_registry_that_stays_away_is_named(server: SchemaRegistry) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    with pytest.raises(RegistryError, match=rf"about schema 7 within 200 ms \({url}: .*refused"):
        Registry(RegistrySettings((url,), patience_ms=200)).schema(7)


def test_schema_that_is_not_there_is_named(server: SchemaRegistry) -> None:
    with pytest.raises(UnknownSchema, match=f"at {server.url} has no schema 7: Schema not found"):
        client(server).schema(7)
    with pytest.raises(UnknownSchema, match="has no subject orders-value"):
        client(server).latest("orders-value")


def test_other_answers_are_reported(server: SchemaRegistry) -> None:
    server.broken_answers = [
        (200, b"<html>"),
        (404, b"<html>"),
        (409, b'{"error_code": 409, "message": "x was removed"}'),
    ]
    with pytest.raises(RegistryError, match="something else than JSON"):
        client(server).schema(1)
    with pytest.raises(RegistryError, match=r"is schema\.registry\.url the root"):
        client(server).schema(1)
    with pytest.raises(RegistryError, match="not compatible with the one before: x was removed"):
        client(server).register("orders-value", '"int"')


def test_schema_of_another_kind_is_refused(server: SchemaRegistry) -> None:
    number = server.add("orders-value", "message M {}", schemaType="PROTOBUF")
    with pytest.raises(UnknownSchema, match="is of type PROTOBUF, not AVRO"):
        client(server).schema(number)


def test_registry_may_speak_tls(tmp_path: Path) -> None:
    certificates = Certificates(tmp_path)
    authority = certificates.authority
    with running_registry(certificates.sign("registry")) as server:
        number = server.add("orders-value", ORDER)
        assert client(server, ca_location=str(authority)).schema(number)
        with pytest.raises(ConfigError, match=r"not trusted.*schema\.registry\.ssl\.ca\.location"):
            client(server).schema(number)


@pytest.mark.parametrize("text", ["", "host:8081", "ftp://host", "http://ann:secret@host"])
def test_address_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"schema\.registry\.url"):
        parse_urls(text)


def test_addresses_are_several() -> None:
    assert parse_urls("http://a:1/, https://b/api") == ("http://a:1", "https://b/api")


# Beside a registry that others wrote


@pytest.fixture(scope="module")
def apicurio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Apicurio]:
    try:
        program()
    except PeerMissing as missing:
        pytest.skip(str(missing))
    running = start_apicurio(tmp_path_factory.mktemp("apicurio"))
    yield running
    running.stop()


@pytest.mark.java
@pytest.mark.slow
def test_apicurio_registers_and_finds_schemas(apicurio: Apicurio) -> None:
    settings = RegistrySettings((apicurio.url,))
    text = json.dumps(ORDER)
    number = Registry(settings).register("orders-value", text)
    registry = Registry(settings)
    assert json.loads(registry.schema(number).text) == ORDER
    assert registry.latest("orders-value")[0] == number
    assert registry.lookup("orders-value", text) == number
    with pytest.raises(UnknownSchema, match="has no schema 4711"):
        registry.schema(4711)
    with pytest.raises(UnknownSchema, match="has no subject nothing-value"):
        registry.latest("nothing-value")


def test_registry_settings_are_taken_from_those_of_a_client() -> None:
    given = {
        "bootstrap.servers": "b:9092",
        "schema.registry.url": "http://r:8081",
        "basic.auth.user.info": "u:p",
        "sasl.username": "ada",
    }
    assert registry_settings(given) == {
        "schema.registry.url": "http://r:8081",
        "basic.auth.user.info": "u:p",
    }
    named = RegistrySettings.named(given.get, 5)
    assert named is not None
    assert (named.urls, named.user_info, named.patience_ms) == (("http://r:8081",), "u:p", 5)
    assert RegistrySettings.named({}.get) is None
