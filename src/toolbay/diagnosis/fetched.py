"""Which versions of a package a launcher has fetched to this machine before: the one that just ran is among them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Final

from toolbay._lenient import as_object, as_text
from toolbay.config import reading
from toolbay.config.launchers import bare_name, launcher_of
from toolbay.config.models import ServerConfig
from toolbay.config.places import user_home

PACKAGE_BYTES: Final = 1_000_000
MOST: Final = 20_000
"""Folders of a cache that are looked through."""
_NAME = re.compile(r"(?:@[\w.-]+/)?[\w-][\w.-]*")


def version(config: ServerConfig, package: str, claimed: str, environ: Mapping[str, str]) -> str:
    """The version of `package` that the launcher of `config` runs; empty where that is not certain.

    What a server claims of itself is taken where it is one of the versions that were fetched: many claim that of a library.
    """
    name = bare_name(package)
    if not _NAME.fullmatch(name):
        return ""
    try:
        fetched = set(_by_uv(name, environ) if launcher_of(config) == "uvx" else _by_npx(name, environ))
    except OSError:
        return ""
    return claimed if claimed in fetched else next(iter(fetched)) if len(fetched) == 1 else ""


def _by_npx(name: str, environ: Mapping[str, str]) -> Iterator[str]:
    for root in islice((user_home(environ) / ".npm" / "_npx").glob("*"), MOST):
        try:
            package = as_object(json.loads(reading.read(root / "node_modules" / name / "package.json", PACKAGE_BYTES)))
        except (OSError, ValueError, RecursionError):
            continue
        if found := as_text(package.get("version")):
            yield found


def _by_uv(name: str, environ: Mapping[str, str]) -> Iterator[str]:
    cache = environ.get("UV_CACHE_DIR") or Path(environ.get("XDG_CACHE_HOME") or user_home(environ) / ".cache") / "uv"
    stem = re.sub(r"[-_.]+", "_", name).lower()
    # Each wheel lies unpacked in a folder of its own.
    for folder in islice(Path(cache).glob(f"archive-v*/*/{stem}-*.dist-info"), MOST):
        yield folder.name.removesuffix(".dist-info").rpartition("-")[2]
