"""A schema registry with Confluent's REST API: Confluent's own, Karapace, Apicurio's ccompat.

Schemas never change once they have an id, so what was asked once is kept for the life of the
process. A registry that is away, or overloaded, is asked again for a while; what it refuses is an
error that names the address, the subject or the id, and what to do.
"""

from __future__ import annotations

import base64
import json
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from http import HTTPStatus
from typing import Any, NamedTuple
from urllib.error import HTTPError, URLError
from urllib.parse import quote, urlsplit

from millstream.client.security import Security
from millstream.errors import ConfigError, MillstreamError

CONTENT_TYPE = "application/vnd.schemaregistry.v1+json"
REQUEST_SECONDS_MAX = 10.0
FIRST_PAUSE_SECONDS = 0.05
PAUSE_SECONDS_MAX = 2.0
# The registry's own codes for what is not there.
_NO_SUBJECT, _NO_VERSION, _NO_SCHEMA = 40401, 40402, 40403
_INCOMPATIBLE = 409


def registry_settings(settings: Mapping[str, str]) -> dict[str, str]:
    """Those of a client's settings that are about a schema registry."""
    names = ("basic.auth.user.info", "bearer.auth.token")
    return {
        name: value
        for name, value in settings.items()
        if name.startswith("schema.registry.") or name in names
    }


class RegistryError(MillstreamError):
    """The registry did not do what it was asked to."""


class UnknownSchema(RegistryError):
    """It has no such schema."""


class RegisteredSchema(NamedTuple):
    """A schema, and those that it refers to, each after what it needs itself."""

    text: str
    references: tuple[str, ...] = ()


@dataclass(frozen=True)
class RegistrySettings:
    """Where it is, and who asks. What it prints as has no secrets in it."""

    urls: tuple[str, ...]
    user_info: str | None = field(default=None, repr=False)  # user:password
    token: str | None = field(default=None, repr=False)
    ca_location: str | None = None
    certificate_location: str | None = None
    key_location: str | None = None
    key_password: str | None = field(default=None, repr=False)
    patience_ms: int = 30_000  # for a registry that is away

    @classmethod
    def named(
        cls, get: Callable[[str], str | None], patience_ms: int | None = None
    ) -> RegistrySettings | None:
        """By Confluent's names, if there is a `schema.registry.url`. Raises `ConfigError`."""
        url = get("schema.registry.url")
        if url is None:
            return None
        user_info = get("basic.auth.user.info") or get("schema.registry.basic.auth.user.info")
        token = get("bearer.auth.token") or get("schema.registry.bearer.auth.token")
        if user_info is not None and ":" not in user_info:
            raise ConfigError("basic.auth.user.info must be user:password")
        if user_info is not None and token is not None:
            raise ConfigError("choose one of basic.auth.user.info and bearer.auth.token")
        return cls(
            urls=parse_urls(url),
            user_info=user_info,
            token=token,
            ca_location=get("schema.registry.ssl.ca.location"),
            certificate_location=get("schema.registry.ssl.certificate.location"),
            key_location=get("schema.registry.ssl.key.location"),
            key_password=get("schema.registry.ssl.key.password"),
            patience_ms=patience_ms or cls.patience_ms,
        )

    def tls_context(self) -> ssl.SSLContext:
        return Security(
            protocol="SSL",
            ca_location=self.ca_location,
            certificate_location=self.certificate_location,
            key_location=self.key_location,
            key_password=self.key_password,
        ).tls_context()


@cache
def registry_for(settings: RegistrySettings) -> Registry:
    """The one of this process."""
    return Registry(settings)


class Registry:
    """A client of one registry, at one or several addresses."""

    def __init__(self, settings: RegistrySettings) -> None:
        self._settings = settings
        self._schemas: dict[int, RegisteredSchema] = {}
        self._ids: dict[tuple[str, str], int] = {}

    def schema(self, schema_id: int) -> RegisteredSchema:
        """The Avro schema of that id. Raises `UnknownSchema` if there is none."""
        found = self._schemas.get(schema_id)
        if found is None:
            answer = self._ask("GET", f"/schemas/ids/{schema_id}", f"schema {schema_id}")
            found = self._schemas[schema_id] = self._registered(answer, f"schema {schema_id}")
        return found

    def has(self, schema_id: int) -> bool:
        """Whether it is known without asking."""
        return schema_id in self._schemas

    def latest(self, subject: str) -> tuple[int, RegisteredSchema]:
        """The newest schema of a subject, with its id."""
        path = f"/subjects/{quote(subject, safe='')}/versions/latest"
        answer = self._ask("GET", path, f"subject {subject}")
        return int(answer["id"]), self._registered(answer, f"subject {subject}")

    def register(self, subject: str, text: str) -> int:
        """The id of this schema under the subject, of which it becomes the newest if it is new."""
        return self._id_of(subject, text, "/versions")

    def lookup(self, subject: str, text: str) -> int:
        """The id of this schema under the subject. Raises `UnknownSchema` if it has not got it."""
        return self._id_of(subject, text, "")

    def _id_of(self, subject: str, text: str, action: str) -> int:
        key = (subject, text)
        if key not in self._ids:
            path = f"/subjects/{quote(subject, safe='')}{action}"
            answer = self._ask("POST", path, f"subject {subject}", {"schema": text})
            self._ids[key] = int(answer["id"])
        return self._ids[key]

    def _registered(self, answer: Any, what: str) -> RegisteredSchema:
        kind = answer.get("schemaType", "AVRO")
        if kind != "AVRO":
            raise UnknownSchema(f"{what} at {self._where} is of type {kind}, not AVRO")
        texts: dict[tuple[str, int], str] = {}
        self._gather(answer, texts)
        return RegisteredSchema(answer["schema"], tuple(texts.values()))

    def _gather(self, answer: Any, texts: dict[tuple[str, int], str]) -> None:
        """What a schema refers to, and what that refers to before it."""
        for it in answer.get("references") or ():
            subject, version = it["subject"], int(it["version"])
            if (subject, version) not in texts:
                path = f"/subjects/{quote(subject, safe='')}/versions/{version}"
                found = self._ask("GET", path, f"version {version} of subject {subject}")
                self._gather(found, texts)
                texts[subject, version] = found["schema"]

    # Requests

    @property
    def _where(self) -> str:
        return ", ".join(self._settings.urls)

    def _ask(self, method: str, path: str, what: str, body: Any = None) -> Any:
        """The answer, from whichever address gives one, within the patience of the settings."""
        deadline = time.monotonic() + self._settings.patience_ms / 1000
        pause = FIRST_PAUSE_SECONDS
        while True:
            for url in self._settings.urls:
                try:
                    return self._ask_one(url, method, path, what, body)
                except (URLError, OSError) as error:
                    last = f"{url}: {_told(error)}"
            if time.monotonic() + pause > deadline:
                raise RegistryError(
                    f"the schema registry did not answer about {what} within "
                    f"{self._settings.patience_ms} ms ({last}); is schema.registry.url right, and "
                    "does it run?"
                )
            time.sleep(pause)
            pause = min(2 * pause, PAUSE_SECONDS_MAX)

    def _ask_one(self, url: str, method: str, path: str, what: str, body: Any) -> Any:
        """Raises `URLError` or `OSError` for what may pass."""
        from urllib.request import Request, urlopen  # 1 MB, which only few clients need

        request = Request(
            url + path,
            None if body is None else json.dumps(body).encode(),
            {"Accept": f"{CONTENT_TYPE}, application/json", "Content-Type": CONTENT_TYPE},
            method=method,
        )
        if self._authorization is not None:
            request.add_header("Authorization", self._authorization)
        patience = min(self._settings.patience_ms / 1000, REQUEST_SECONDS_MAX)
        context = self._context if url.startswith("https:") else None
        try:
            with urlopen(request, timeout=patience, context=context) as response:
                text = response.read()
        except HTTPError as error:
            if error.code >= HTTPStatus.INTERNAL_SERVER_ERROR or error.code in (
                HTTPStatus.TOO_MANY_REQUESTS,
                HTTPStatus.REQUEST_TIMEOUT,
            ):
                raise
            raise _refusal(url, error, what) from None
        except URLError as error:
            if isinstance(error.reason, ssl.SSLCertVerificationError):
                raise ConfigError(
                    f"{url} is not trusted: {error.reason.verify_message}; name the CA's "
                    "certificate with schema.registry.ssl.ca.location"
                ) from None
            raise
        try:
            return json.loads(text)
        except ValueError:
            raise RegistryError(
                f"{url}{path} answers something else than JSON; is schema.registry.url the root of "
                "a schema registry's API?"
            ) from None

    @cached_property
    def _context(self) -> ssl.SSLContext:
        return self._settings.tls_context()

    @cached_property
    def _authorization(self) -> str | None:
        if self._settings.token is not None:
            return f"Bearer {self._settings.token}"
        if self._settings.user_info is not None:
            return f"Basic {base64.b64encode(self._settings.user_info.encode()).decode()}"
        return None


def _told(error: Exception) -> str:
    if isinstance(error, HTTPError):
        return f"{error.code} {error.reason}"
    return str(getattr(error, "reason", None) or error)


def _refusal(url: str, error: HTTPError, what: str) -> MillstreamError:
    """What an answer means that will be the same next time."""
    try:
        answer = json.loads(error.read())
        code, message = int(answer["error_code"]), str(answer["message"])
    except (ValueError, KeyError, TypeError):
        code, message = error.code, str(error.reason)
    if error.code in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
        return ConfigError(
            f"the schema registry at {url} refuses {what}: {error.code} {message}; set "
            "basic.auth.user.info (user:password) or bearer.auth.token"
        )
    if code in (_NO_SUBJECT, _NO_VERSION, _NO_SCHEMA):
        return UnknownSchema(f"the schema registry at {url} has no {what}: {message}")
    if error.code == _INCOMPATIBLE:
        return RegistryError(
            f"the schema registry at {url} refuses the schema for {what}, which is not compatible "
            f"with the one before: {message}"
        )
    hint = ""
    if error.code == HTTPStatus.NOT_FOUND:
        hint = "; is schema.registry.url the root of a schema registry's API?"
    return RegistryError(f"the schema registry at {url} refuses {what}: {code} {message}{hint}")


def parse_urls(text: str) -> tuple[str, ...]:
    """Addresses as `schema.registry.url` has them. Raises `ConfigError`."""
    urls = tuple(it.strip().rstrip("/") for it in text.split(",") if it.strip())
    for url in urls:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(f"schema.registry.url is {url!r}; write http://host:8081")
        if parts.username or parts.password:
            raise ConfigError(
                "schema.registry.url has a user in it; set basic.auth.user.info (user:password)"
            )
    if not urls:
        raise ConfigError("schema.registry.url is empty; write http://host:8081")
    return urls
