"""TLS of listeners, and of connections to other brokers: contexts from settings and PEM files.

A `TlsListener` keeps the context for the next connection. When a file or a setting has changed, a
new context is made and takes its place: connections that are open keep theirs. If it cannot be
made, because the new key does not fit its certificate, say, the old one stays in use, with one
line in the log, until a later attempt succeeds.
"""

from __future__ import annotations

import contextlib
import logging
import ssl
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from millstream.errors import ConfigError
from millstream.security.names import MappingRules, subject_name
from millstream.security.pem import how_to_convert, private_file
from millstream.security.principal import ANONYMOUS, USER_TYPE, Principal

if TYPE_CHECKING:
    from millstream.config.security import SecuritySettings

logger = logging.getLogger("millstream.security")

# Of TLS 1.2: forward secrecy and authenticated encryption only.
CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20"
NO_HOST_CHECK = ("", "none")

_VERIFY_MODES = {
    "none": ssl.CERT_NONE,
    "requested": ssl.CERT_OPTIONAL,
    "required": ssl.CERT_REQUIRED,
}
_VERSIONS = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
_JAVA_STORES = (b"\xfe\xed\xfe\xed", b"\xce\xce\xce\xce")  # JKS, JCEKS
_DER_SEQUENCE = 0x30  # how PKCS #12 begins

Identify: TypeAlias = Callable[[ssl.SSLObject], Principal]
"""Returns whom the certificate on a TLS connection names. Raises `ValueError`."""

FileState: TypeAlias = tuple[tuple[str, int, int, int], ...]
"""Of each file: path, inode, size and time of its last change."""


class TlsInUse(NamedTuple):
    """What a new connection gets, taken at once: the two belong together."""

    context: ssl.SSLContext
    identify: Identify | None  # for clients that show certificates


class _ServerContext(ssl.SSLContext):
    """Errors of handshakes have the attribute `alert`: what OpenSSL would tell the client. Event
    loops drop it."""

    def wrap_bio(
        self, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO, *args: Any, **options: Any
    ) -> ssl.SSLObject:
        made = super().wrap_bio(incoming, outgoing, *args, **options)
        found = weakref.ref(made)  # a cycle would keep its memory until garbage is collected

        def do_handshake() -> None:
            end = found()
            assert end is not None
            try:
                ssl.SSLObject.do_handshake(end)
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                raise
            except ssl.SSLError as error:
                error.alert = outgoing.read()  # type: ignore[attr-defined]
                raise

        made.do_handshake = do_handshake  # type: ignore[method-assign]
        return made


def server_context(settings: SecuritySettings) -> ssl.SSLContext:
    """For connections that a listener accepts. Raises `ConfigError`."""
    context = _ServerContext(ssl.PROTOCOL_TLS_SERVER)
    _set_versions(context, settings)
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_CIPHER_SERVER_PREFERENCE
    if not _has_keystore(settings):
        raise ConfigError(
            "TLS needs a certificate: set ssl.keystore.location to a PEM file with the private key "
            "and the certificates. `millstream cert dev` makes one for a laptop"
        )
    _load_keystore(context, settings)
    context.verify_mode = _VERIFY_MODES[settings.ssl_client_auth]
    if context.verify_mode is not ssl.CERT_NONE:
        _load_truststore(context, settings)
    return context


def client_context(settings: SecuritySettings) -> ssl.SSLContext:
    """For connections to other brokers. Raises `ConfigError`."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    _set_versions(context, settings)
    context.check_hostname = settings.ssl_endpoint_identification_algorithm not in NO_HOST_CHECK
    if _has_keystore(settings):
        _load_keystore(context, settings)
    _load_truststore(context, settings)
    return context


def file_state(settings: SecuritySettings) -> FileState:
    """Changes when one of the files does."""
    found = []
    for path in (settings.ssl_keystore_location, settings.ssl_truststore_location):
        if path is not None:
            with contextlib.suppress(OSError):
                status = Path(path).stat()
                found.append((path, status.st_ino, status.st_size, status.st_mtime_ns))
    return tuple(found)


class TlsListener:
    """The context in use for one listener's new connections."""

    def __init__(self, listener: str, settings: SecuritySettings) -> None:
        """Raises `ConfigError`."""
        self.listener = listener
        self._files: FileState | None = file_state(settings)  # None: they could not be used
        self._complaint: str | None = None  # the last one, which is logged once
        try:
            self.in_use = _in_use(settings)
        except ConfigError as error:
            raise ConfigError(f"listener {listener}: {error}") from error
        if settings.ssl_client_auth != "none" and not _has_truststore(settings):
            logger.warning(
                "listener %s accepts certificates of every authority that this system trusts: set "
                "ssl.truststore.location to the authority of your clients",
                listener,
            )

    def refresh(self, settings: SecuritySettings, *, is_forced: bool = False) -> None:
        """Use these settings, and what their files contain now, for new connections."""
        files = file_state(settings)
        if files == self._files and not is_forced:
            return
        try:
            self.in_use = _in_use(settings)
        except Exception as error:  # noqa: BLE001  # it may pass: it is tried again
            self._files = None
            complaint = str(error) if isinstance(error, ConfigError) else repr(error)
            if complaint != self._complaint or is_forced:
                logger.error(
                    "listener %s: the new certificate cannot be used, the old one stays: %s",
                    self.listener,
                    complaint,
                )
            self._complaint = complaint
        else:
            self._files, self._complaint = files, None
            logger.info("listener %s: new connections use the new certificate", self.listener)


def _in_use(settings: SecuritySettings) -> TlsInUse:
    context = server_context(settings)
    identify = None if context.verify_mode is ssl.CERT_NONE else _identifier(settings)
    return TlsInUse(context, identify)


def _identifier(settings: SecuritySettings) -> Identify:
    """Finds the principal of a connection's client. Raises `ConfigError`."""
    try:
        rules = MappingRules.parse(settings.ssl_principal_mapping_rules)
    except ValueError as error:
        raise ConfigError(f"ssl.principal.mapping.rules: {error}") from error

    def identify(connection: ssl.SSLObject) -> Principal:
        certificate = connection.getpeercert(binary_form=True)
        if certificate is None:  # it was requested, but not required
            return ANONYMOUS
        name = subject_name(certificate)
        mapped = rules.apply(name)
        if not mapped:
            raise ValueError(f"no rule of ssl.principal.mapping.rules matches {name!a}")
        return Principal(USER_TYPE, mapped)

    return identify


def _set_versions(context: ssl.SSLContext, settings: SecuritySettings) -> None:
    versions = [_VERSIONS[name] for name in settings.ssl_enabled_protocols]
    if not versions:
        raise ConfigError("ssl.enabled.protocols is empty: name TLSv1.2, TLSv1.3 or both")
    wanted = [_openssl_name(name) for name in settings.ssl_cipher_suites if name]
    # Those of TLS 1.3 have other names, and OpenSSL always offers them.
    older = [name for name in wanted if not name.startswith("TLS_")]
    if wanted and not older:
        versions = [it for it in versions if it is ssl.TLSVersion.TLSv1_3]
        if not versions:
            raise ConfigError(
                "ssl.cipher.suites names ciphers of TLS 1.3 only, but ssl.enabled.protocols is "
                "without TLSv1.3"
            )
    context.minimum_version, context.maximum_version = min(versions), max(versions)
    try:
        context.set_ciphers(":".join(older) if older else CIPHERS)
    except ssl.SSLError as error:
        raise ConfigError(
            f"ssl.cipher.suites: OpenSSL knows none of {', '.join(settings.ssl_cipher_suites)}"
        ) from error


def _openssl_name(name: str) -> str:
    """TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256 is ECDHE-RSA-AES128-GCM-SHA256."""
    if "_WITH_" not in name:
        return name
    exchange, cipher = name.removeprefix("TLS_").split("_WITH_", 1)
    cipher = cipher.replace("AES_", "AES").replace("CHACHA20_POLY1305_SHA256", "CHACHA20_POLY1305")
    return f"{exchange}_{cipher}".replace("_", "-")


def _has_keystore(settings: SecuritySettings) -> bool:
    return settings.ssl_keystore_location is not None or settings.ssl_keystore_key is not None


def _has_truststore(settings: SecuritySettings) -> bool:
    location, inline = settings.ssl_truststore_location, settings.ssl_truststore_certificates
    return location is not None or inline is not None


def _load_keystore(context: ssl.SSLContext, settings: SecuritySettings) -> None:
    location = settings.ssl_keystore_location
    password = settings.ssl_key_password or ""
    if location is not None:
        _check_is_pem("ssl.keystore", settings.ssl_keystore_type, location)
        _load_chain(context, location, password, f"ssl.keystore.location {location}")
        return
    key, chain = settings.ssl_keystore_key, settings.ssl_keystore_certificate_chain
    if key is None or chain is None:
        raise ConfigError("ssl.keystore.key needs ssl.keystore.certificate.chain, and vice versa")
    with private_file(f"{key}\n{chain}\n") as path:
        _load_chain(context, path, password, "ssl.keystore.key")


def _load_chain(context: ssl.SSLContext, path: str, password: str, name: str) -> None:
    def tell_password() -> str:  # OpenSSL would ask on the terminal without it
        return password

    try:
        context.load_cert_chain(path, password=tell_password)
    except ssl.SSLError as error:
        reason = (error.reason or "not PEM").replace("_", " ").lower()
        raise ConfigError(
            f"{name}: the private key and its certificates cannot be read ({reason}); it needs "
            "both, in PEM, and ssl.key.password if the key is encrypted"
        ) from None
    except ValueError:
        raise ConfigError(f"{name}: the private key needs ssl.key.password") from None
    except OSError as error:
        raise ConfigError(f"{name}: {error.strerror or error}") from None


def _load_truststore(context: ssl.SSLContext, settings: SecuritySettings) -> None:
    location = settings.ssl_truststore_location
    try:
        if location is not None:
            _check_is_pem("ssl.truststore", settings.ssl_truststore_type, location)
            context.load_verify_locations(cafile=location)
        elif settings.ssl_truststore_certificates is not None:
            context.load_verify_locations(cadata=settings.ssl_truststore_certificates)
        else:
            context.load_default_certs()
    except (ssl.SSLError, ValueError, TypeError):  # the last two: it is empty, or not ASCII
        where = location or "ssl.truststore.certificates"
        raise ConfigError(f"{where}: there is no certificate in PEM") from None
    except OSError as error:
        raise ConfigError(
            f"ssl.truststore.location {location}: {error.strerror or error}"
        ) from None


def _check_is_pem(store: str, kind: str, location: str) -> None:
    try:
        with Path(location).open("rb") as file:
            start = file.read(4)
    except OSError as error:
        raise ConfigError(f"{store}.location {location}: {error.strerror or error}") from None
    is_java = start in _JAVA_STORES or start[:1] == bytes([_DER_SEQUENCE])
    if kind.upper() != "PEM" or is_java:
        shown = kind if kind.upper() != "PEM" else "Java's"
        raise ConfigError(
            f"{store}.location {location}: {shown} stores are read by Java only; "
            f"{how_to_convert(location)}, and set {store}.type=PEM"
        )
