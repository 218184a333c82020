"""Clients of a secured broker: their settings, and the rights that an administrator gives them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from millstream.client.security import Security
from tests.peers.patience import PATIENCE_SECONDS
from tests.peers.secured import ADMIN, Secured, password_of

# A JVM for one module is too slow for every run of the tests.
KINDS = [
    "millstream",
    pytest.param("apache-kafka", marks=[pytest.mark.java, pytest.mark.slow]),
]


class Right(NamedTuple):
    """As `WRITE topic orders`; a name that ends in `*` is a prefix, unless it is `*` alone."""

    operation: str
    resource: str
    name: str

    @classmethod
    def parse(cls, text: str) -> Right:
        operation, resource, name = text.split()
        return cls(operation, resource, name)


def settings_of(
    secured: Secured, user: str, mechanism: str = "PLAIN", listener: str = "SASL_SSL"
) -> dict[str, str]:
    """The security settings of a user with a password."""
    return {
        "security.protocol": listener,
        "ssl.ca.location": str(secured.certificates.authority),
        "sasl.mechanism": mechanism,
        "sasl.username": user,
        "sasl.password": password_of(user),
    }


def properties_of(secured: Secured, user: str, directory: Path) -> Path:
    """The settings file of a user."""
    file = directory / f"{user}.properties"
    given = {"bootstrap.servers": secured.address("SASL_SSL")} | settings_of(secured, user)
    file.write_text("".join(f"{name}={value}\n" for name, value in given.items()))
    return file


def admin_of(secured: Secured) -> AdminClient:
    security = Security.from_settings(settings_of(secured, ADMIN))
    return AdminClient(
        security.librdkafka() | {"bootstrap.servers": secured.address("SASL_SSL"), "log_level": 0}
    )


def allow(secured: Secured, user: str, rights: Iterable[str]) -> None:
    """Give a user rights, which a broker may take some time to learn."""
    bindings = []
    for right in map(Right.parse, rights):
        is_prefix = right.name.endswith("*") and right.name != "*"
        bindings.append(
            AclBinding(
                ResourceType[right.resource.upper()],
                right.name.removesuffix("*") if is_prefix else right.name,
                ResourcePatternType.PREFIXED if is_prefix else ResourcePatternType.LITERAL,
                f"User:{user}",
                "*",
                AclOperation[right.operation],
                AclPermissionType.ALLOW,
            )
        )
    if not bindings:
        return
    admin = admin_of(secured)
    for future in admin.create_acls(bindings).values():
        future.result(PATIENCE_SECONDS)
