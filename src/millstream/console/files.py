"""Static files of the console. Their address changes with their content (`version`), so that
browsers need not ask for them again."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

STATIC = Path(__file__).parent / "static"
SECONDS = 365 * 86_400
TYPES = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".woff2": "font/woff2",
}


@cache
def known() -> dict[str, Path]:
    """All files, by their names in addresses: nothing else on the disk has one."""
    return {it.relative_to(STATIC).as_posix(): it for it in STATIC.rglob("*") if it.is_file()}


def version() -> str:
    """Changes with the files, so that browsers may keep them."""
    digest = hashlib.sha256()
    for name, path in sorted(known().items()):
        digest.update(name.encode() + path.read_bytes())
    return digest.hexdigest()[:12]


async def show(request: Request) -> Response:
    path = known().get(request.path_params["file"])
    if path is None:
        raise HTTPException(404, "there is no such file")
    media_type = TYPES.get(path.suffix, "text/plain; charset=utf-8")
    headers = {"Cache-Control": f"public, max-age={SECONDS}, immutable"}
    return Response(path.read_bytes(), media_type=media_type, headers=headers)


ROUTES = [Route("/static/{file:path}", show)]
