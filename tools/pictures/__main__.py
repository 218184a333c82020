"""Draw the pictures, or check that they are current; see the package."""

from __future__ import annotations

import sys
from pathlib import Path

from tools.pictures.drawn import pictures
from tools.pictures.results import compute, create_session, load, save

IMAGES = Path(__file__).resolve().parents[2] / "docs" / "images"


def run(arguments: list[str]) -> int:
    if "--compute" in arguments:
        spark = create_session()
        save(compute(spark))
        spark.stop()
    stale = []
    for name, text in pictures(load()).items():
        path = IMAGES / name
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        stale.append(path)
        if "--check" not in arguments:
            path.write_text(text, encoding="utf-8")
            print(f"{path} written")
    if stale and "--check" in arguments:
        print(*(f"{path} is not current: run `make docs`" for path in stale), sep="\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
