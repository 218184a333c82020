"""The mechanisms of listeners, and the users of each."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import jwt
import pytest

from millstream.broker.metadata.store import MetadataLog
from millstream.broker.security.mechanisms import Mechanisms, first_users
from millstream.config.broker import BrokerConfig
from millstream.config.security import SecuritySettings
from millstream.errors import ConfigError
from millstream.security.exchange import AuthenticationFailed
from millstream.security.login import make_login
from millstream.security.principal import Principal
from millstream.security.scram import SCRAM_SHA_256, ScramCredential, ScramCredentials
from millstream.testing.clock import ManualClock
from tests.security.test_tokens import CLAIMS, NOW, jwk, sign

LISTENERS = {
    "listeners": "ONE://127.0.0.1:1,TWO://127.0.0.1:2,OPEN://127.0.0.1:3",
    "listener.security.protocol.map": "ONE:SASL_PLAINTEXT,TWO:SASL_PLAINTEXT,OPEN:PLAINTEXT",
}
PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"


def config(settings: Mapping[str, str]) -> BrokerConfig:
    return BrokerConfig.from_values(LISTENERS | dict(settings))


def mechanisms(
    settings: Mapping[str, str], users: ScramCredentials | None = None, cluster: str = "c"
) -> Mechanisms:
    image = SimpleNamespace(scram={} if users is None else users)
    metadata = cast(MetadataLog, SimpleNamespace(image=image))
    clock = ManualClock(NOW * 1000)
    return Mechanisms(config(settings), metadata, clock, cluster_id=cluster)


def log_in(
    made: Mechanisms, listener: str, mechanism: str, user: str, password: str
) -> Principal | None:
    exchange = made.begin(listener, mechanism)
    login = make_login(mechanism, username=user, password=password)
    token = login.begin()
    while True:
        answer = exchange.respond(token)
        if exchange.is_complete:
            return exchange.principal
        following = login.respond(answer)
        assert following is not None
        token = following


def test_each_listener_has_its_own_mechanisms_and_users() -> None:
    made = mechanisms(
        {
            "sasl.enabled.mechanisms": "PLAIN",
            "listener.name.one.plain.sasl.jaas.config": f'{PLAIN} required user_alice="one";',
            "listener.name.two.plain.sasl.jaas.config": f'{PLAIN} required user_alice="two";',
            "listener.name.two.sasl.enabled.mechanisms": "SCRAM-SHA-512,PLAIN",
        }
    )
    assert made.enabled("ONE") == ("PLAIN",)
    assert made.enabled("TWO") == ("SCRAM-SHA-512", "PLAIN")
    assert made.enabled("OPEN") == ()
    assert log_in(made, "ONE", "PLAIN", "alice", "one") == Principal("User", "alice")
    assert log_in(made, "TWO", "PLAIN", "alice", "two") == Principal("User", "alice")
    with pytest.raises(AuthenticationFailed):
        log_in(made, "ONE", "PLAIN", "alice", "two")
    for listener, mechanism in (("ONE", "SCRAM-SHA-512"), ("TWO", "GSSAPI"), ("OPEN", "PLAIN")):
        with pytest.raises(AuthenticationFailed, match="is not enabled"):
            made.begin(listener, mechanism)


def test_users_of_scram_are_those_of_the_metadata_now() -> None:
    users: dict[tuple[str, int], ScramCredential] = {}
    made = mechanisms({}, users)
    with pytest.raises(AuthenticationFailed):
        log_in(made, "ONE", "SCRAM-SHA-256", "alice", "wonderland")
    users["alice", 1] = ScramCredential.of_password(SCRAM_SHA_256, "wonderland")
    assert log_in(made, "ONE", "SCRAM-SHA-256", "alice", "wonderland") is not None
    users.clear()
    with pytest.raises(AuthenticationFailed):
        log_in(made, "ONE", "SCRAM-SHA-256", "alice", "wonderland")


def test_salts_of_unknown_users_differ_between_clusters_only() -> None:
    def salt(settings: Mapping[str, str], cluster: str = "c") -> bytes:
        exchange = mechanisms(settings, cluster=cluster).begin("ONE", "SCRAM-SHA-256")
        return exchange.respond(b"n,,n=nobody,r=x").split(b",s=")[1]

    own = {"sasl.jaas.config": f'{SCRAM} required username="b" password="p";'}
    assert salt({}) == salt({})
    assert len({salt({}), salt({}, "d"), salt(own)}) == 3


def bearer(token: str) -> bytes:
    return f"n,,\x01auth=Bearer {token}\x01\x01".encode()


def test_tokens_of_the_configured_keys(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    path.write_text(json.dumps({"keys": [jwk("rsa")]}))
    made = mechanisms(
        {
            "sasl.enabled.mechanisms": "OAUTHBEARER",
            "sasl.oauthbearer.jwks.endpoint.url": path.as_uri(),
            "sasl.oauthbearer.expected.audience": "events,orders",
            "sasl.oauthbearer.expected.issuer": "https://id.example",
            "sasl.oauthbearer.sub.claim.name": "client_id",
        }
    )
    claims = CLAIMS | {"aud": "orders", "iss": "https://id.example", "client_id": "svc"}
    try:
        exchange = made.begin("ONE", "OAUTHBEARER")
        assert exchange.respond(bearer(sign(claims))) == b""
        assert exchange.principal == Principal("User", "svc")
        assert exchange.expires_at_ms == (NOW + 100) * 1000
        for wrong in (claims | {"aud": "x"}, claims | {"iss": "x"}, CLAIMS):
            refused = made.begin("TWO", "OAUTHBEARER")
            assert refused.respond(bearer(sign(wrong))) == b'{"status":"invalid_token"}'
        unsigned = made.begin("ONE", "OAUTHBEARER")
        assert b"invalid_token" in unsigned.respond(bearer(jwt.encode(claims, "", "none")))
    finally:
        made.close()


def test_keys_that_are_not_there_are_a_wrong_setting(tmp_path: Path) -> None:
    settings = {
        "sasl.enabled.mechanisms": "OAUTHBEARER",
        "sasl.oauthbearer.jwks.endpoint.url": (tmp_path / "missing.json").as_uri(),
    }
    with pytest.raises(ConfigError, match=r"missing\.json"):
        mechanisms(settings)


def test_tokens_without_a_signature_have_to_be_allowed(caplog: pytest.LogCaptureFixture) -> None:
    made = mechanisms(
        {
            "sasl.enabled.mechanisms": "OAUTHBEARER",
            "millstream.sasl.oauthbearer.unsecured": "true",
        }
    )
    exchange = made.begin("ONE", "OAUTHBEARER")
    assert exchange.respond(bearer(jwt.encode(CLAIMS, "", "none"))) == b""
    assert exchange.principal == Principal("User", "alice")
    assert "tokens without a signature" in caplog.text


def test_settings_change() -> None:
    def plain(password: str) -> dict[str, str]:
        return {
            "sasl.enabled.mechanisms": "PLAIN",
            "sasl.jaas.config": f'{PLAIN} required user_alice="{password}";',
        }

    made = mechanisms(plain("old"))
    made.configure(config(plain("new")))
    assert log_in(made, "ONE", "PLAIN", "alice", "new") is not None
    with pytest.raises(AuthenticationFailed):
        log_in(made, "ONE", "PLAIN", "alice", "old")


def test_keys_are_loaded_once_for_all_listeners_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    path.write_text(json.dumps({"keys": [jwk("rsa")]}))
    settings = {
        "sasl.enabled.mechanisms": "OAUTHBEARER",
        "sasl.oauthbearer.jwks.endpoint.url": path.as_uri(),
    }
    made = mechanisms(settings)
    try:
        path.unlink()
        made.configure(config(settings))
        assert made.begin("TWO", "OAUTHBEARER").respond(bearer(sign(CLAIMS))) == b""
    finally:
        made.close()


def test_first_users_are_those_that_brokers_log_in_as() -> None:
    made = config(
        {
            "sasl.jaas.config": f'{SCRAM} required username="admin" password="first";',
            "listener.name.two.sasl.enabled.mechanisms": "SCRAM-SHA-512,PLAIN",
            "listener.name.two.plain.sasl.jaas.config": f'{PLAIN} required user_x="y" '
            'username="x" password="y";',
        }
    )
    users = first_users(made)
    assert set(users) == {("admin", 1), ("admin", 2)}
    assert log_in(mechanisms({}, users), "ONE", "SCRAM-SHA-256", "admin", "first") is not None
    assert first_users(config({})) == {}


def test_tokens_without_a_signature_need_their_setting() -> None:
    with pytest.raises(ConfigError, match=r"has no keys: set sasl\.oauthbearer\.jwks"):
        mechanisms({})._token_check("ONE", SecuritySettings(), {})
