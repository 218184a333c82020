"""Authorization settings: whether requests are checked against access control lists, and by whom
they are not."""

from __future__ import annotations

import re
from dataclasses import dataclass

from millstream.config.setting import boolean, string
from millstream.errors import ConfigError
from millstream.security.principal import Principal

STANDARD_AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
_NAMES = (STANDARD_AUTHORIZER, "StandardAuthorizer")
AUDIT_FILE = "file:"
AUDIT_TOPIC = "topic:"
_TOPIC_NAME = re.compile(r"(?!__|\.{1,2}$)[a-zA-Z0-9._-]{1,249}")


@dataclass(frozen=True, init=False, repr=False, eq=False)
class AuthorizationSettings:
    """The authorizer and its audit."""

    authorizer_class_name: str = string(
        "",
        importance="low",
        doc=f"{STANDARD_AUTHORIZER}, or StandardAuthorizer for short: requests are checked against "
        "the access control lists in the metadata. Empty: everyone may do everything.",
    )
    super_users: str = string(
        "",
        doc="Principals that may do everything, separated by semicolons: User:admin;User:broker. "
        "The brokers' own principal must be one of them.",
    )
    allow_everyone_if_no_acl_found: bool = boolean(
        False,
        doc="Whether everyone may do everything with a resource that no access control entry "
        "matches.",
    )
    millstream_audit_log: str = string(
        "",
        ours=True,
        doc="Where decisions of the authorizer and failed authentications are recorded, as JSON: "
        "file:PATH or topic:NAME. Empty: only in the log, under kafka.authorizer.logger.",
    )
    millstream_audit_allowed: bool = boolean(
        False, ours=True, doc="Whether the audit also records what was allowed."
    )

    @property
    def has_authorizer(self) -> bool:
        return bool(self.authorizer_class_name)


def super_users(text: str) -> frozenset[str]:
    """The principals in `super.users`. Raises `ConfigError`."""
    principals = [part.strip() for part in text.split(";") if part.strip()]
    try:
        return frozenset(str(Principal.parse(principal)) for principal in principals)
    except ValueError as error:
        raise ConfigError(f"Invalid value {text} for configuration super.users: {error}") from None


def check_authorization(config: AuthorizationSettings) -> None:
    """Refuse unknown authorizers, principals and places. Raises `ConfigError`."""
    name = config.authorizer_class_name
    if name and name not in _NAMES:
        raise ConfigError(
            f"Invalid value {name} for configuration authorizer.class.name: authorizers are Java "
            f"classes, of which only {STANDARD_AUTHORIZER} is built in; ignoring another would let "
            "through what it forbids"
        )
    super_users(config.super_users)
    audit = config.millstream_audit_log
    if audit and not any(
        audit.startswith(kind) and len(audit) > len(kind) for kind in (AUDIT_FILE, AUDIT_TOPIC)
    ):
        raise ConfigError(
            f"Invalid value {audit} for configuration millstream.audit.log: write file:PATH or "
            "topic:NAME"
        )
    topic = audit.removeprefix(AUDIT_TOPIC)
    if topic != audit and not _TOPIC_NAME.fullmatch(topic):
        raise ConfigError(
            f"Invalid value {audit} for configuration millstream.audit.log: {topic} is not the "
            "name of a topic for the audit. It has up to 249 letters, digits, dots, hyphens and "
            "underscores, and does not begin with __, as the brokers' own topics do"
        )
