"""One module per API. Importing this package's `load` brings them all into the registry.

A module registers its function with `millstream.protocol.apis.api`; nothing else has to know it.
"""

from __future__ import annotations

import pkgutil
from importlib import import_module


def load() -> None:
    """Import every handler module, so that each has registered itself."""
    for module in pkgutil.iter_modules(__path__):
        import_module(f"{__name__}.{module.name}")
