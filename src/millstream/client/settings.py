"""A client's settings file: Java's properties format, with librdkafka's names or Java's.

    bootstrap.servers=broker:9093
    security.protocol=SASL_SSL
    ssl.ca.location=ca.pem

A backslash escapes the next character, or continues a line at its end. Errors show names only,
since values may be secrets.
"""

from __future__ import annotations

from pathlib import Path

from millstream.config.properties import parse_properties
from millstream.errors import ConfigError

BOOTSTRAP_SERVERS = "bootstrap.servers"
_FILE_NAMES = (
    "ssl.ca.location",
    "ssl.certificate.location",
    "ssl.key.location",
    "ssl.truststore.location",
    "ssl.keystore.location",
    "https.ca.location",
)


def read_client_settings(path: Path) -> dict[str, str]:
    """The settings, with absolute names of files. Raises `ConfigError`."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot read the settings in {path}: {error.strerror}") from error
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not UTF-8 text") from None
    try:
        settings = parse_properties(text)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
    for name in _FILE_NAMES:
        if settings.get(name):  # Spark's workers run elsewhere
            settings[name] = str(Path(settings[name]).absolute())
    return settings
