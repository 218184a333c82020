"""How long tests wait for what must come. Only a failing test ever waits this long."""

from __future__ import annotations

from typing import Final

# A machine may be busy with everything else that is being tested; half a minute was too short.
PATIENCE_SECONDS: Final = 120.0
