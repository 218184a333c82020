"""What the SASL mechanisms of a listener need in settings; checked before they are in force."""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import urlsplit

from millstream.config.security import SecuritySettings
from millstream.errors import ConfigError
from millstream.security.jaas import (
    OAUTHBEARER_MODULE,
    PLAIN_MODULE,
    SCRAM_MODULE,
    JaasConfig,
    parse_jaas,
)
from millstream.security.web import is_safe_url

MODULES = {
    "PLAIN": PLAIN_MODULE,
    "SCRAM-SHA-256": SCRAM_MODULE,
    "SCRAM-SHA-512": SCRAM_MODULE,
    "OAUTHBEARER": OAUTHBEARER_MODULE,
}
JWKS_URL = "sasl.oauthbearer.jwks.endpoint.url"


def jaas_of(mechanism: str, settings: SecuritySettings) -> JaasConfig | None:
    """The login module of a mechanism. One of another mechanism, which was set for the whole
    listener or broker, does not count. Raises `ConfigError`."""
    if settings.sasl_jaas_config is None:
        return None
    config = parse_jaas(settings.sasl_jaas_config)
    return config if config.module == MODULES[mechanism] else None


def check_sasl(listener: str, settings_of: Callable[[str | None], SecuritySettings]) -> None:
    """`settings_of` returns the settings of a mechanism, or of the listener. Raises
    `ConfigError`."""
    mechanisms = settings_of(None).sasl_enabled_mechanisms
    if not mechanisms:
        raise ConfigError(f"sasl.enabled.mechanisms of listener {listener} is empty")
    for mechanism in mechanisms:
        if mechanism not in MODULES:
            raise ConfigError(
                f"sasl.enabled.mechanisms of listener {listener} has {mechanism}, which is not "
                f"supported; choose from {', '.join(MODULES)}"
            )
        settings = settings_of(mechanism)
        jaas = jaas_of(mechanism, settings)
        if mechanism == "PLAIN" and (jaas is None or not jaas.users):
            raise ConfigError(
                f"PLAIN of listener {listener} has no users: set listener.name."
                f"{listener.lower()}.plain.sasl.jaas.config=org.apache.kafka.common.security.plain."
                f'{PLAIN_MODULE} required user_<name>="<password>";'
            )
        if mechanism == "OAUTHBEARER":
            _check_tokens(listener, settings)


def _check_tokens(listener: str, settings: SecuritySettings) -> None:
    if settings.sasl_oauthbearer_jwks_endpoint_url is not None:
        check_jwks_url(settings.sasl_oauthbearer_jwks_endpoint_url)
    elif not settings.millstream_sasl_oauthbearer_unsecured:
        raise ConfigError(
            f"OAUTHBEARER of listener {listener} needs the keys that sign tokens: set {JWKS_URL}"
        )


def check_jwks_url(url: str) -> str:
    """Raises `ConfigError`. Over plain HTTP anyone on the way could replace the keys."""
    try:
        parts = urlsplit(url)
        has_login = bool(parts.username or parts.password)
    except ValueError as error:
        raise ConfigError(f"{JWKS_URL} is not a URL: {error}") from None
    if has_login:
        raise ConfigError(f"{JWKS_URL} contains a user or password, which is not supported")
    if parts.scheme != "file" and not is_safe_url(url):
        raise ConfigError(
            f"{JWKS_URL} is {url}: it must begin with https:// or file:///, or with http:// and an "
            "address of this machine"
        )
    return url
