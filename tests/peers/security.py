"""How a client comes in, told once, and in the settings of each client.

    {"protocol": "SASL_SSL", "authority": file, "mechanism": "PLAIN", "user": ..., "password": ...}

"token" goes with OAUTHBEARER, "store" is a file with a key and its certificate. The programs of
clients take it as `config={"security": ...}`.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tests.peers.secured import OAUTH_MODULE, PLAIN_MODULE, SCRAM_MODULE

Security = Mapping[str, str]

_TOKEN_SECONDS = 3600
_LOGIN_HANDLER = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler"


def _renamed(security: Security, names: Mapping[str, str]) -> dict[str, Any]:
    return {name: security[key] for key, name in names.items() if key in security}


def confluent(security: Security) -> dict[str, Any]:
    names = {
        "protocol": "security.protocol",
        "mechanism": "sasl.mechanism",
        "user": "sasl.username",
        "password": "sasl.password",
        "authority": "ssl.ca.location",
        "store": "ssl.certificate.location",
    }
    settings = _renamed(security, names)
    if "store" in security:
        settings["ssl.key.location"] = security["store"]
    if "token" in security:
        token = (security["token"], time.time() + _TOKEN_SECONDS)
        settings["oauth_cb"] = lambda _: token
    return settings


def kafka_python(security: Security) -> dict[str, Any]:
    from kafka.net.sasl.oauth import AbstractTokenProvider

    class Token(AbstractTokenProvider):  # type: ignore[misc]
        def token(self) -> str:
            return security["token"]

    settings = _kafka_python_names(security)
    names = {"authority": "ssl_cafile", "store": "ssl_certfile"}
    settings |= _renamed(security, names)
    if "store" in security:
        settings["ssl_keyfile"] = security["store"]
    if "token" in security:
        settings["sasl_oauth_token_provider"] = Token()
    return settings


def aiokafka(security: Security) -> dict[str, Any]:
    from aiokafka.abc import AbstractTokenProvider

    class Token(AbstractTokenProvider):  # type: ignore[misc]
        async def token(self) -> str:
            return security["token"]

    settings = _kafka_python_names(security)
    if "authority" in security:
        context = ssl.create_default_context(cafile=security["authority"])
        if "store" in security:
            context.load_cert_chain(security["store"])
        settings["ssl_context"] = context
    if "token" in security:
        settings["sasl_oauth_token_provider"] = Token()
    return settings


def _kafka_python_names(security: Security) -> dict[str, Any]:
    names = {
        "protocol": "security_protocol",
        "mechanism": "sasl_mechanism",
        "user": "sasl_plain_username",
        "password": "sasl_plain_password",
    }
    return _renamed(security, names)


def java(security: Security, directory: Path) -> dict[str, str]:
    """Of the Java client; a token goes to a file in that directory."""
    settings = {"security.protocol": security["protocol"]}
    if "authority" in security:
        settings |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": security["authority"]}
    if "store" in security:
        settings |= {"ssl.keystore.type": "PEM", "ssl.keystore.location": security["store"]}
    if "mechanism" in security:
        settings["sasl.mechanism"] = security["mechanism"]
        settings["sasl.jaas.config"] = _jaas(security)
    if "token" in security:
        file = directory / "token.jwt"
        file.write_text(security["token"])
        settings["sasl.oauthbearer.token.endpoint.url"] = file.as_uri()
        settings["sasl.login.callback.handler.class"] = _LOGIN_HANDLER
    return settings


def _jaas(security: Security) -> str:
    if security["mechanism"] == "OAUTHBEARER":
        return f"{OAUTH_MODULE} required;"
    module = PLAIN_MODULE if security["mechanism"] == "PLAIN" else SCRAM_MODULE
    user, password = (security[key].replace('"', '\\"') for key in ("user", "password"))
    return f'{module} required username="{user}" password="{password}";'


TRANSLATIONS: dict[str, Callable[[Security], dict[str, Any]]] = {
    "confluent_program": confluent,
    "kafka_python_program": kafka_python,
    "aiokafka_program": aiokafka,
}
