"""TLS and authentication.

Each of these may be set for one listener, or for one SASL mechanism of it:

    ssl.client.auth=requested
    listener.name.external.ssl.client.auth=required
    listener.name.external.scram-sha-256.sasl.jaas.config=...

`BrokerConfig.listener_settings` finds what is in force for a listener.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from millstream.config.setting import (
    Mode,
    Setting,
    boolean,
    integer,
    java_class,
    long,
    password,
    settings_of,
    string,
    strings,
)
from millstream.errors import ConfigError

LISTENER_PREFIX = "listener.name."

_PER_BROKER = {"mode": Mode.PER_BROKER}


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class SecuritySettings:
    """TLS and authentication, of the broker or of one listener."""

    ssl_keystore_type: str = string(
        "PEM",
        **_PER_BROKER,
        doc="The format of the keystore. (Kafka's default is JKS, which only Java reads; the error "
        "for one shows how to convert it.)",
    )
    ssl_keystore_location: str | None = string(
        None,
        importance="high",
        **_PER_BROKER,
        doc="A PEM file with the private key and the chain of certificates, the broker's own "
        "first. It is read again when it changes and on SIGHUP; connections stay open.",
    )
    ssl_keystore_key: str | None = password(
        None, importance="high", **_PER_BROKER, doc="The private key in PEM (PKCS #8), itself."
    )
    ssl_keystore_certificate_chain: str | None = password(
        None,
        importance="high",
        **_PER_BROKER,
        doc="The chain of certificates in PEM, itself; goes with ssl.keystore.key.",
    )
    ssl_keystore_password: str | None = password(
        None, importance="high", **_PER_BROKER, doc="Not used: PEM files have ssl.key.password."
    )
    ssl_key_password: str | None = password(
        None,
        importance="high",
        **_PER_BROKER,
        doc="The password of the private key, if it has one.",
    )
    ssl_truststore_type: str = string(
        "PEM",
        **_PER_BROKER,
        doc="The format of the truststore. (Kafka's default is JKS, which only Java reads.)",
    )
    ssl_truststore_location: str | None = string(
        None,
        importance="high",
        **_PER_BROKER,
        doc="A PEM file with the certificates of the authorities that sign clients' certificates, "
        "and those of other brokers. By default, the system's.",
    )
    ssl_truststore_certificates: str | None = password(
        None, importance="high", **_PER_BROKER, doc="The same certificates in PEM, themselves."
    )
    ssl_truststore_password: str | None = password(
        None, importance="high", **_PER_BROKER, doc="Not used: PEM files of certificates have none."
    )
    ssl_client_auth: str = string(
        "none",
        options=("required", "requested", "none"),
        **_PER_BROKER,
        doc="Whether clients show a certificate. For a SASL_SSL listener, only the setting with "
        "its prefix counts, as in Kafka.",
    )
    ssl_enabled_protocols: tuple[str, ...] = strings(
        ("TLSv1.2", "TLSv1.3"),
        options=("TLSv1.2", "TLSv1.3"),
        **_PER_BROKER,
        doc="The versions of TLS that are accepted.",
    )
    ssl_protocol: str = string(
        "TLSv1.3",
        **_PER_BROKER,
        doc="Not used: of ssl.enabled.protocols, the newest that both sides have is taken.",
    )
    ssl_cipher_suites: tuple[str, ...] = strings(
        (),
        importance="low",
        **_PER_BROKER,
        doc="The ciphers of TLS 1.2, by their IANA or OpenSSL names; empty: those with forward "
        "secrecy and authenticated encryption. Those of TLS 1.3 are always on; if only such are "
        "named, TLS 1.2 is off.",
    )
    ssl_endpoint_identification_algorithm: str = string(
        "https",
        options=("https", "none", ""),
        importance="low",
        **_PER_BROKER,
        doc="Whether a broker checks the name in the certificate of another one: https; none or "
        "empty if not.",
    )
    ssl_principal_mapping_rules: str = string(
        "DEFAULT",
        doc="How a name in a client's certificate becomes a principal: a list of "
        "RULE:pattern/replacement/[LU] and DEFAULT, of which the first that matches counts.",
    )
    sasl_enabled_mechanisms: tuple[str, ...] = strings(
        ("SCRAM-SHA-256", "SCRAM-SHA-512"),
        **_PER_BROKER,
        doc="The SASL mechanisms of a listener: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER. "
        "(Kafka's default is GSSAPI, which is not supported.)",
    )
    sasl_jaas_config: str | None = password(
        None,
        **_PER_BROKER,
        doc="The login module and its options, as Kafka has them: the users of PLAIN "
        "(user_<name>), and the user and password with which brokers log in to each other.",
    )
    sasl_mechanism_inter_broker_protocol: str = string(
        "SCRAM-SHA-256",
        **_PER_BROKER,
        doc="The mechanism with which brokers log in to each other. (Kafka's default is GSSAPI, "
        "which is not supported.)",
    )
    sasl_server_callback_handler_class: str | None = java_class(
        None,
        options=(
            "org.apache.kafka.common.security.oauthbearer.OAuthBearerValidatorCallbackHandler",
            "org.apache.kafka.common.security.oauthbearer.secured"
            ".OAuthBearerValidatorCallbackHandler",
        ),
        doc="Accepted so that Kafka's settings for OAUTHBEARER work: what it names is what "
        "Millstream does.",
    )
    sasl_oauthbearer_jwks_endpoint_url: str | None = string(
        None,
        doc="Where the public keys are that sign the tokens of OAUTHBEARER: https://... or "
        "file:///..., a JSON Web Key Set.",
    )
    sasl_oauthbearer_jwks_endpoint_refresh_ms: int = long(
        3_600_000, low=1000, importance="low", doc="How often these keys are loaded again."
    )
    sasl_oauthbearer_jwks_endpoint_retry_backoff_ms: int = long(
        100, low=1, importance="low", doc="How soon they are, after a failure; doubled each time."
    )
    sasl_oauthbearer_jwks_endpoint_retry_backoff_max_ms: int = long(
        10_000, low=1, importance="low", doc="The longest time until then."
    )
    sasl_oauthbearer_clock_skew_seconds: int = integer(
        30,
        low=0,
        importance="low",
        doc="By how much the clocks of the broker and of the issuer of tokens may differ.",
    )
    sasl_oauthbearer_expected_audience: tuple[str, ...] = strings(
        (),
        doc="One of these has to be in the claim aud of a token; empty: any token that is signed.",
    )
    sasl_oauthbearer_expected_issuer: str | None = string(
        None, doc="What the claim iss of a token has to be; by default, anything."
    )
    sasl_oauthbearer_scope_claim_name: str = string(
        "scope", importance="low", doc="The claim with the scopes of a token."
    )
    sasl_oauthbearer_sub_claim_name: str = string(
        "sub", importance="low", doc="The claim with the name of the user."
    )
    millstream_sasl_oauthbearer_unsecured: bool = boolean(
        False,
        ours=True,
        importance="low",
        doc="For tests only: accept tokens without a signature (alg none), which anyone can write.",
    )
    sasl_server_max_receive_size: int = integer(
        524_288, doc="The largest request accepted before a client is authenticated."
    )
    connections_max_reauth_ms: int = long(
        0,
        doc="A client that authenticated with SASL has to do it again within this time, or its "
        "connection is closed (KIP-368); 0: never, unless its token expires.",
    )


SECURITY_SETTINGS: Mapping[str, Setting] = settings_of(SecuritySettings)


class ListenerSetting:
    """The parts of `listener.name.<listener>[.<mechanism>].<setting>`."""

    __slots__ = ("listener", "mechanism", "setting")

    def __init__(self, listener: str, mechanism: str | None, setting: Setting) -> None:
        self.listener = listener  # in capitals, as the mechanism
        self.mechanism = mechanism
        self.setting = setting


def find_listener_setting(
    name: str, known: Mapping[str, Setting] = SECURITY_SETTINGS
) -> ListenerSetting:
    """What a name with a listener's prefix means. Raises `ConfigError`."""
    listener, dot, rest = name.removeprefix(LISTENER_PREFIX).partition(".")
    mechanism: str | None = None
    setting = known.get(rest)
    if setting is None:
        first, _, last = rest.partition(".")
        setting = known.get(last)
        mechanism = first.upper()
    if not (listener and dot) or setting is None:
        raise ConfigError(
            f"Unknown setting {name!r}: write {LISTENER_PREFIX}<listener>.<setting>, or "
            f"{LISTENER_PREFIX}<listener>.<mechanism>.<setting>, with a setting of TLS or SASL"
        )
    return ListenerSetting(listener.upper(), mechanism, setting._replace(name=name))
