"""One module per API: `handlers/heartbeat.py` has the function `heartbeat`, and so on.

`millstream.protocol.apis` lists the APIs. A module is imported with the first request for its API,
with everything that only this API needs: a broker without groups never loads the group coordinator
(docs/decisions/0008-start-up.md).
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from millstream.protocol.apis import Api


def find(api: Api) -> Callable[..., Any]:
    """The function that answers requests of this API."""
    handler: Callable[..., Any] = getattr(import_module(f"{__name__}.{api.name}"), api.name)
    return handler
