"""Tokens for OAUTHBEARER: from a file, or from a token endpoint for a client id and its secret.

    sasl.oauthbearer.token.endpoint.url=file:/run/secrets/token      read again for each connection
    sasl.oauthbearer.token.endpoint.url=https://login.example/token  OAuth 2.0 client credentials

A token of an endpoint is kept until four fifths of its life have passed, or a broker refuses it.
"""

from __future__ import annotations

import base64
import binascii
import json
import ssl
import threading
import time
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote, unquote, urlencode, urlsplit

from millstream.errors import ConfigError
from millstream.security.web import is_safe_url, opener

if TYPE_CHECKING:
    from urllib.error import HTTPError
    from urllib.request import Request

URL_NAME = "sasl.oauthbearer.token.endpoint.url"
REQUEST_SECONDS_MAX = 10.0
ANSWER_BYTES_MAX = 1024 * 1024
UNKNOWN_LIFE_SECONDS = 300.0  # of a token that does not say when it expires
KEPT_SHARE = 0.8  # of its life


class Token(NamedTuple):
    text: str
    received_at: float  # seconds since 1970, as is the next
    expires_at: float

    @property
    def is_fresh(self) -> bool:
        return time.time() < self.received_at + KEPT_SHARE * (self.expires_at - self.received_at)


@dataclass(frozen=True)
class TokenSource:
    """Where tokens come from. Its repr contains no secrets."""

    url: str
    client_id: str | None = None
    client_secret: str | None = field(default=None, repr=False)
    scope: str | None = None
    ca_location: str | None = None  # of the endpoint; default: what the system trusts

    def __post_init__(self) -> None:
        is_file = self.url.startswith("file:")
        if not is_file and not self._is_safe():
            raise ConfigError(
                f"{URL_NAME} is {self.url!r}; write https://host/path (http:// would send the "
                "secret unencrypted, and is for this machine only), or file:/path for a file that "
                "contains the token"
            )
        if not is_file and (not self.client_id or self.client_secret is None):
            raise ConfigError(
                f"{URL_NAME} needs sasl.oauthbearer.client.id and sasl.oauthbearer.client.secret"
            )

    def _is_safe(self) -> bool:
        try:
            return is_safe_url(self.url)
        except ValueError:
            return False

    def token(self) -> Token:
        """Raises `OSError` for what may pass, else `ConfigError`. Used by several threads."""
        if self.url.startswith("file:"):
            return self._from_file()
        with _lock:
            kept = _kept.setdefault(self, _Kept())
        with kept.lock:  # others of this source wait for the same answer
            if kept.token is None or not kept.token.is_fresh:
                kept.token = self._from_endpoint()
            return kept.token

    def forget(self) -> None:
        """A broker refused it: the next one is asked for."""
        with _lock:
            _kept.pop(self, None)

    def _from_file(self) -> Token:
        path = Path(unquote(urlsplit(self.url).path))
        try:
            text = path.read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{URL_NAME}: {path} cannot be read: {error}") from None
        now = time.time()
        return Token(text, now, _expiry_in(text) or now + UNKNOWN_LIFE_SECONDS)

    def _from_endpoint(self) -> Token:
        from urllib.request import Request  # 30 ms, which only few clients need

        body = {"grant_type": "client_credentials"}
        if self.scope:
            body["scope"] = self.scope
        # RFC 6749, section 2.3.1: both are encoded as in a form before they are joined.
        pair = f"{quote(self.client_id or '', safe='')}:{quote(self.client_secret or '', safe='')}"
        request = Request(
            self.url,
            urlencode(body).encode(),
            {
                "Authorization": f"Basic {base64.b64encode(pair.encode()).decode()}",
                "Accept": "application/json",
            },
        )
        answer = self._ask(request)
        now = time.time()
        text = answer.get("access_token")
        if not isinstance(text, str) or not text:
            raise ConfigError(f"{self.url} answers without access_token")
        life = answer.get("expires_in")
        if isinstance(life, int | float) and life > 0:
            return Token(text, now, now + life)
        return Token(text, now, _expiry_in(text) or now + UNKNOWN_LIFE_SECONDS)

    def _ask(self, request: Request) -> dict[str, Any]:
        from http.client import HTTPException
        from urllib.error import HTTPError, URLError

        context = self._context()
        try:
            with opener(context).open(request, timeout=REQUEST_SECONDS_MAX) as response:
                answer = json.loads(response.read(ANSWER_BYTES_MAX))
        except HTTPError as error:
            if error.code >= HTTPStatus.INTERNAL_SERVER_ERROR:
                raise ConnectionError(f"{self.url}: {error.code} {error.reason}") from None
            raise ConfigError(
                f"{self.url} gives no token to client {self.client_id}: {error.code} "
                f"{_reason_in(error)}"
            ) from None
        except URLError as error:
            if isinstance(error.reason, ssl.SSLCertVerificationError):
                raise ConfigError(
                    f"{self.url} is not trusted: {error.reason.verify_message}; set "
                    "https.ca.location to the certificates that you trust"
                ) from None
            raise ConnectionError(f"{self.url}: {error.reason}") from None
        except HTTPException as error:
            raise ConnectionError(f"{self.url} answers with broken HTTP: {error!r}") from None
        except ValueError:
            raise ConfigError(f"{self.url} answers something else than JSON") from None
        return answer if isinstance(answer, dict) else {}

    def _context(self) -> ssl.SSLContext | None:
        if not self.url.startswith("https:"):
            return None
        try:
            return ssl.create_default_context(cafile=self.ca_location)
        except OSError as error:
            raise ConfigError(f"https.ca.location {self.ca_location}: {error}") from error


@dataclass
class _Kept:
    lock: threading.Lock = field(default_factory=threading.Lock)
    token: Token | None = None


_lock = threading.Lock()  # of the next; never held while an endpoint is asked
_kept: dict[TokenSource, _Kept] = {}


def _expiry_in(token: str) -> float | None:
    """The claim `exp` of a JWT; brokers check it, so no signature is needed here."""
    parts = token.split(".")
    if len(parts) != 3:
        return None
    try:
        claims = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
    except (ValueError, binascii.Error):
        return None
    expiry = claims.get("exp") if isinstance(claims, dict) else None
    return float(expiry) if isinstance(expiry, int | float) else None


def _reason_in(error: HTTPError) -> str:
    """The endpoint's own words (RFC 6749, section 5.2)."""
    try:
        answer = json.loads(error.read(ANSWER_BYTES_MAX))
        words = [answer.get("error"), answer.get("error_description")]
    except (ValueError, AttributeError, OSError):
        words = []
    return ": ".join(str(it) for it in words if it) or str(error.reason)
