"""Files of bridges: what is accepted, and what is said about mistakes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from millstream.bridges.config import CurveConfig, load_config, parse_config
from millstream.errors import ConfigError

SECRET = "whsec_" + "c2VjcmV0" * 5


def test_file_becomes_a_bridge_and_shows_no_secret(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("TOKEN_OF_TEST", "top secret")
    (tmp_path / "key").write_text(f"{SECRET}\n")
    path = tmp_path / "edge.toml"
    path.write_text(
        'name = "edge"\nbroker = "one:9092"\nmetrics = "127.0.0.1:0"\n'
        '[http]\nlisten = "127.0.0.1:8082"\nproduce = ["a-*"]\ntoken = { env = "TOKEN_OF_TEST" }\n'
        '[hooks.github]\ntopic = "pushes"\nsignature = "github"\nsecrets = ["hush hush"]\n'
        '[webhooks.billing]\ntopics = ["a"]\nurl = "https://b.example/x"\n'
        'secrets = [{ file = "key" }]\n'
        '[statsd.app]\nlisten = "127.0.0.1:8125"\ntopic = "metrics"\ninterval_seconds = 0\n'
        '[zeromq.in.jobs]\ntype = "pull"\nbind = ["tcp://127.0.0.1:*"]\ntopic = "jobs"\n'
        '[zeromq.out.jobs]\ntype = "pub"\nconnect = ["ipc://x"]\ntopic = "jobs"\n'
    )
    config = load_config(path, "two:9092")
    assert config.client_settings == {"bootstrap.servers": "two:9092"}
    assert config.http is not None
    assert config.http.token == "top secret"
    assert config.http.hooks["github"].keys == (b"hush hush",)
    assert config.webhooks[0].group == "webhooks.billing"
    assert config.webhooks[0].keys == (b"secret" * 5,)
    assert config.statsd[0].interval_seconds == 0
    assert (config.zeromq_in[0].bind, config.zeromq_in[0].connect) == (("tcp://127.0.0.1:*",), ())
    assert config.zeromq_out[0].group == "zeromq.jobs"
    assert "secret" not in repr(config)
    assert "hush" not in repr(config)


HTTP = {"listen": "127.0.0.1:0"}
HOOK = {"topic": "t", "secrets": [SECRET]}
PULL = {"type": "pull", "topic": "t", "bind": ["tcp://127.0.0.1:*"]}
KEY = "Yne@$w-vo<fVvi]a<NY6T1ed:M$fCG*[IaLV{hID"
CURVE = PULL | {"curve_secret": KEY}
OUT = {"topics": ["t"], "url": "https://a.example/", "secrets": [SECRET]}


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({}, "nothing to do"),
        ({"http": HTTP, "broker": 1}, "broker must be given"),
        ({"htpp": HTTP}, "unknown name 'htpp'; did you mean 'http'"),
        ({"http": HTTP | {"produced": []}}, r"\[http\]: unknown name 'produced'"),
        ({"http": {"listen": "8082"}}, "HOST:PORT"),
        ({"http": {"listen": "0.0.0.0:1", "produce": ["a"]}}, "from outside; give a token"),
        ({"http": HTTP | {"produce": "a"}}, "must be a list of strings"),
        ({"http": HTTP | {"token": {"env": "NOT_THERE_AT_ALL"}}}, "NOT_THERE_AT_ALL is not set"),
        ({"http": HTTP | {"token": {"file": "nowhere"}}}, "nowhere: No such file"),
        ({"http": HTTP | {"token": 7}}, "give a string"),
        ({"http": HTTP | {"streams_max": -1}}, "at least 0"),
        ({"hooks": {"a": HOOK}}, "hooks need"),
        ({"http": HTTP, "hooks": {"a/b": HOOK}}, "in names"),
        ({"http": HTTP, "hooks": {"a": HOOK | {"signature": "md5"}}}, "must be one of standard"),
        ({"http": HTTP, "hooks": {"a": {"topic": "t"}}}, "at least one secret"),
        ({"http": HTTP, "hooks": {"a": HOOK | {"topic": "t t"}}}, "topic is 't t'"),
        ({"http": HTTP, "hooks": {"a": HOOK | {"secrets": ["x"]}}}, "whsec_ and base64"),
        ({"webhooks": {"a": OUT | {"url": "ftp://a"}}}, "must be https://"),
        ({"webhooks": {"a": OUT | {"url": "http://a.example/"}}}, "use https"),
        ({"webhooks": {"a": OUT | {"url": "https://me:pw@a.example/"}}}, "without a user"),
        ({"webhooks": {"a": OUT | {"allow": ["10.0.0.1/8"]}}}, "has host bits set"),
        ({"webhooks": {"a": OUT | {"topics": []}}}, "at least one topic"),
        ({"webhooks": {"a": OUT | {"attempts": 11}}}, "2 to 10"),
        ({"statsd": {"a": {"listen": "127.0.0.1:0"}}}, "topic must be a string"),
        ({"statsd": {"a": 1}}, "must be a table"),
        ({"mold": {"inn": {}}}, r"\[mold\]: unknown name 'inn'"),
        ({"mold": {"in": {"a": {"listen": "group:1", "topic": "t"}}}}, "give an IPv4 address"),
        ({"mold": {"out": {"a": {"to": "239.1.1.1:1", "topic": "t", "ttl": 256}}}}, "0 to 255"),
        (
            {"mold": {"in": {"a": {"listen": "239.1.1.1:1", "topic": "t", "interface": "eth0"}}}},
            "interface must be",
        ),
        ({"zeromq": {"inn": {}}}, r"\[zeromq\]: unknown name 'inn'"),
        ({"zeromq": {"in": {"a": PULL | {"type": "push"}}}}, "must be one of sub, pull"),
        ({"zeromq": {"in": {"a": {"type": "pull", "topic": "t"}}}}, "give bind or connect"),
        ({"zeromq": {"in": {"a": PULL | {"bind": ["inproc://a"]}}}}, "no tcp://HOST:PORT and no"),
        ({"zeromq": {"in": {"a": PULL | {"subscribe": ["x"]}}}}, 'subscribe is for type = "sub"'),
        ({"zeromq": {"in": {"a": PULL | {"type": "sub", "shared": True}}}}, "shared is for"),
        ({"zeromq": {"in": {"a": PULL | {"shared": 1}}}}, "shared must be true or false"),
        ({"zeromq": {"in": {"a": PULL | {"hwm": 0}}}}, "hwm must be a number, 1 to"),
        ({"zeromq": {"out": {"a": PULL}}}, "must be one of pub, push"),
        ({"zeromq": {"in": {"a": PULL | {"curve_server": KEY}}}}, "curve_secret must be given"),
        ({"zeromq": {"in": {"a": PULL | {"curve_secret": "short"}}}}, "40 characters of Z85"),
        ({"zeromq": {"in": {"a": PULL | {"curve_secret": KEY}}}}, "give curve_server"),
        (
            {"zeromq": {"in": {"a": CURVE | {"curve_server": KEY, "curve_clients": [KEY]}}}},
            "give curve_server, the public key of the other end, or curve_clients",
        ),
        ({"zeromq": {"in": {"a": CURVE | {"curve_clients": ["x"]}}}}, "curve_clients: a key is"),
    ],
)
def test_mistake_is_named(given: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        parse_config({"broker": "127.0.0.1:9092", **given})


def test_keys_of_curve_are_those_of_a_server_or_of_a_client() -> None:
    other = KEY.replace("Y", "Z")
    given = {
        "server": CURVE | {"curve_clients": [other]},
        "open": CURVE | {"curve_clients": ["*"]},
        "client": CURVE | {"curve_server": other},
        "none": PULL,
    }
    config = parse_config({"broker": "127.0.0.1:9092", "zeromq": {"in": given}})
    found = [it.curve for it in config.zeromq_in]
    own, their = KEY.encode(), other.encode()
    assert found == [
        CurveConfig(own, None, (their,)), CurveConfig(own), CurveConfig(own, their), None,
    ]  # fmt: skip
    assert KEY not in repr(config)


def test_file_that_is_not_toml_is_named(tmp_path: Path) -> None:
    (tmp_path / "x.toml").write_text("a = = 1")
    with pytest.raises(ConfigError, match=r"x\.toml: "):
        load_config(tmp_path / "x.toml")
