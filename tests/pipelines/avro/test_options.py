"""Options of Avro: Confluent's names, and what does not go together."""

from __future__ import annotations

import pytest

from millstream.errors import ConfigError
from millstream.pipelines.avro.options import AvroOptions, parse_avro_options
from millstream.pipelines.options import GivenOptions
from millstream.pipelines.reading.options import parse_read_options
from millstream.pipelines.writing.options import parse_write_options

URL = {"schema.registry.url": "http://a:8081"}
READ = {"kafka.bootstrap.servers": "a:1", "subscribe": "t", "valueFormat": "avro"}


def parse(**options: str) -> AvroOptions:
    return parse_avro_options(GivenOptions(options), "avro")


def test_registry_has_confluents_names() -> None:
    registry = parse(
        **URL, **{"basic.auth.user.info": "ann:secret", "schema.registry.ssl.ca.location": "ca.pem"}
    ).registry
    assert registry is not None
    assert (registry.urls, registry.user_info) == (("http://a:8081",), "ann:secret")
    assert registry.ca_location == "ca.pem"
    longer = parse(**URL, **{"schema.registry.basic.auth.user.info": "ann:secret"}).registry
    assert longer is not None
    assert longer.user_info == "ann:secret"


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"bearer.auth.token": "x"}, r"no sense without schema\.registry\.url"),
        ({"avroSubject": "x"}, r"no sense without schema\.registry\.url"),
        ({**URL, "basic.auth.user.info": "ann"}, "must be user:password"),
        ({**URL, "basic.auth.user.info": "a:b", "bearer.auth.token": "x"}, "choose one of"),
        ({**URL, "avroWriterSchema": '"int"'}, "makes no sense with a schema registry"),
        ({**URL, "auto.register.schemas": "maybe"}, "must be true or false"),
        (
            {**URL, "schema.registry.request.timeout.ms": "soon"},
            "must be a whole number of at least 1",
        ),
    ],
)
def test_options_that_do_not_fit_are_refused(options: dict[str, str], expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        parse(**options)


def test_options_need_the_format() -> None:
    with pytest.raises(ConfigError, match="avroSchema makes no sense without valueFormat=avro"):
        parse_avro_options(GivenOptions({"avroSchema": '"int"'}), "json")


def test_readers_and_writers_accept_them() -> None:
    read = parse_read_options(READ | URL | {"avroSchema": '"int"'}, streaming=False)
    assert read.avro.schema == '"int"'
    write = parse_write_options(
        {"kafka.bootstrap.servers": "a:1", "topic": "t", "valueFormat": "avro", "avroSubject": "s"}
        | URL
        | {"auto.register.schemas": "false"},
        streaming=False,
    )
    assert write.avro.subject == "s"
    assert not write.avro.registers
    with pytest.raises(ConfigError, match=r"did you mean schema\.registry\.url"):
        parse_read_options(READ | {"schemaRegistryUrl": "http://a"}, streaming=False)
