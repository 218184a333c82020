"""The SASL mechanisms of each listener: which are enabled, and a new exchange for a client.

Credentials are looked up when a client authenticates, so a change is effective for the next one.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable
from functools import partial

from millstream.broker.metadata.store import MetadataLog
from millstream.broker.security.jwks import SigningKeys, Timing
from millstream.clock import Clock
from millstream.config.broker import BrokerConfig
from millstream.config.sasl import JWKS_URL, jaas_of
from millstream.config.security import SecuritySettings
from millstream.coordination.cluster_security import ScramKey
from millstream.errors import ConfigError
from millstream.security.exchange import OAUTHBEARER, PLAIN, AuthenticationFailed, SaslExchange
from millstream.security.oauthbearer import (
    BearerToken,
    OauthBearerExchange,
    TokenCheck,
)
from millstream.security.plain import PlainExchange
from millstream.security.scram import BY_NAME, ScramCredential, ScramExchange, ScramMechanism
from millstream.security.tokens import TokenRules, check_unsecured

logger = logging.getLogger("millstream.security")

Begin = Callable[[], SaslExchange]


class Mechanisms:
    """The mechanisms of one broker."""

    def __init__(
        self, config: BrokerConfig, metadata: MetadataLog, clock: Clock, *, cluster_id: str
    ) -> None:
        """Raises `ConfigError` for a file of keys that cannot be loaded."""
        self._metadata = metadata
        self._clock = clock
        self._cluster_id = cluster_id
        self._keys: dict[tuple[str, Timing], SigningKeys] = {}
        self._listeners: dict[str, dict[str, Begin]] = {}
        self._configure(config)

    def configure(self, config: BrokerConfig) -> None:
        """Take over settings that have changed. Keys that cannot be loaded leave all as it was."""
        try:
            self._configure(config)
        except ConfigError as error:
            logger.error("changed settings of SASL are not in force: %s", error)

    def _configure(self, config: BrokerConfig) -> None:
        unused = self._keys
        self._keys = {}
        listeners: dict[str, dict[str, Begin]] = {}
        try:
            for listener in _sasl_listeners(config):
                enabled = config.listener_settings(listener).sasl_enabled_mechanisms
                listeners[listener] = {
                    name: self._prepare(
                        listener, name, config.listener_settings(listener, name), unused
                    )
                    for name in enabled
                }
        except BaseException:
            self._keys = unused | self._keys
            raise
        self._listeners = listeners
        for keys in unused.values():
            keys.close()

    def enabled(self, listener: str) -> tuple[str, ...]:
        """The names of a listener's mechanisms, as SaslHandshake lists them."""
        return tuple(self._listeners.get(listener, ()))

    def begin(self, listener: str, mechanism: str) -> SaslExchange:
        """An exchange with a client. Raises `AuthenticationFailed` for a mechanism that the
        listener has not enabled."""
        begin = self._listeners.get(listener, {}).get(mechanism)
        if begin is None:
            raise AuthenticationFailed(f"SASL mechanism {mechanism} is not enabled")
        return begin()

    def wait_for_keys(self, seconds: float) -> None:
        """Wait until the keys of tokens have been loaded, or go on without them."""
        until_ms = self._clock.monotonic_ms() + int(seconds * 1000)
        for (url, _), keys in self._keys.items():
            if not keys.wait(max(0, until_ms - self._clock.monotonic_ms()) / 1000):
                logger.error("nobody can log in with OAUTHBEARER until %s gives keys", url)

    def close(self) -> None:
        for keys in self._keys.values():
            keys.close()

    def _prepare(
        self,
        listener: str,
        mechanism: str,
        settings: SecuritySettings,
        known_keys: dict[tuple[str, Timing], SigningKeys],
    ) -> Begin:
        if mechanism == PLAIN:
            jaas = jaas_of(PLAIN, settings)
            return partial(PlainExchange, {} if jaas is None else jaas.users)
        if mechanism == OAUTHBEARER:
            return partial(OauthBearerExchange, self._token_check(listener, settings, known_keys))
        return partial(self._begin_scram, BY_NAME[mechanism], self._secret(mechanism, settings))

    def _begin_scram(self, mechanism: ScramMechanism, secret: bytes) -> SaslExchange:
        return ScramExchange(mechanism, self._metadata.image.scram, secret)

    def _secret(self, mechanism: str, settings: SecuritySettings) -> bytes:
        """For the salts of unknown users: the same on all brokers, and after a restart. The
        cluster's id is unknown to clients that are not authenticated; the brokers' own password,
        if they have one, is unknown to all others too."""
        jaas = jaas_of(mechanism, settings)
        password = "" if jaas is None or jaas.login is None else jaas.login[1]
        return hashlib.sha256(f"{self._cluster_id} {password}".encode()).digest()

    def _token_check(
        self,
        listener: str,
        settings: SecuritySettings,
        known_keys: dict[tuple[str, Timing], SigningKeys],
    ) -> TokenCheck:
        rules = _token_rules(settings)
        url = settings.sasl_oauthbearer_jwks_endpoint_url
        if url is None:
            if not settings.millstream_sasl_oauthbearer_unsecured:
                raise ConfigError(f"OAUTHBEARER of listener {listener} has no keys: set {JWKS_URL}")
            logger.warning(
                "listener %s accepts tokens without a signature, which anyone can write: "
                "millstream.sasl.oauthbearer.unsecured is set",
                listener,
            )
            return partial(self._check_unsecured, rules=rules)
        if not rules.audiences or rules.issuer is None:
            logger.warning(
                "listener %s accepts tokens that were issued for other services: set "
                "sasl.oauthbearer.expected.audience and sasl.oauthbearer.expected.issuer",
                listener,
            )
        timing = Timing(
            settings.sasl_oauthbearer_jwks_endpoint_refresh_ms,
            settings.sasl_oauthbearer_jwks_endpoint_retry_backoff_ms,
            settings.sasl_oauthbearer_jwks_endpoint_retry_backoff_max_ms,
        )
        place = url, timing
        if place not in self._keys:
            known = known_keys.pop(place, None)
            self._keys[place] = known or SigningKeys(url, timing, self._clock)
        return partial(self._keys[place].check, rules=rules)

    def _check_unsecured(self, token: str, rules: TokenRules) -> BearerToken:
        return check_unsecured(token, rules, self._clock.now_ms())


def _sasl_listeners(config: BrokerConfig) -> list[str]:
    protocols = config.listener_protocols
    return [it.listener for it in config.endpoints if protocols[it.listener].uses_sasl]


def _token_rules(settings: SecuritySettings) -> TokenRules:
    return TokenRules(
        audiences=settings.sasl_oauthbearer_expected_audience,
        issuer=settings.sasl_oauthbearer_expected_issuer,
        skew_seconds=settings.sasl_oauthbearer_clock_skew_seconds,
        user_claim=settings.sasl_oauthbearer_sub_claim_name,
        scope_claim=settings.sasl_oauthbearer_scope_claim_name,
    )


def first_users(config: BrokerConfig) -> dict[ScramKey, ScramCredential]:
    """The users with which a cluster begins: those that the brokers log in as themselves, with
    SCRAM. See docs/decisions/0036-first-user.md."""
    users: dict[ScramKey, ScramCredential] = {}
    for listener in _sasl_listeners(config):
        for name in config.listener_settings(listener).sasl_enabled_mechanisms:
            mechanism = BY_NAME.get(name)
            jaas = jaas_of(name, config.listener_settings(listener, name))
            if mechanism is not None and jaas is not None and jaas.login is not None:
                user, password = jaas.login
                users[user, mechanism.code] = ScramCredential.of_password(mechanism, password)
    return users
