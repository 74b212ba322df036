"""Where things lie: the configuration file, the user's folders."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

APP = "toolbay"
FILE_NAMES = ("toolbay.yaml", "toolbay.yml", "toolbay.json", "toolbay.jsonc", "toolbay.toml")
"""In the order in which they are looked for."""


def digest(data: bytes) -> str:
    """What stands for a file's content where only its change matters; a file that is not there has an empty one."""
    return hashlib.sha256(data).hexdigest()


def user_home(environ: Mapping[str, str]) -> Path:
    """What `~` stands for."""
    named = environ.get("HOME") or environ.get("USERPROFILE")
    return Path(named) if named else Path.home()


def home(environ: Mapping[str, str]) -> Path:
    """The folder of the user's configuration: TOOLBAY_HOME, else the system's usual place."""
    named = environ.get("TOOLBAY_HOME")
    if named:
        return expanded(named, environ)
    import platformdirs  # noqa: PLC0415  # only where nobody named a folder

    return Path(platformdirs.user_config_dir(APP, appauthor=False))


def data_home(environ: Mapping[str, str]) -> Path:
    """The folder of the user's data (files, sessions): TOOLBAY_HOME/data, else the system's usual place."""
    named = environ.get("TOOLBAY_HOME")
    if named:
        return expanded(named, environ) / "data"
    import platformdirs  # noqa: PLC0415  # as above

    return Path(platformdirs.user_data_dir(APP, appauthor=False))


def others_write(folder: Path) -> bool:
    """Whether somebody else may have put something into a folder of ours. False where it is not there."""
    try:
        found = folder.stat()
    except OSError:
        return False
    return hasattr(os, "getuid") and (found.st_uid != os.getuid() or bool(found.st_mode & 0o022))


def find(cwd: Path, environ: Mapping[str, str]) -> Path | None:
    """The configuration file of this working directory, else the user's, else None (CFG-1)."""
    return next((path for path in searched(cwd, environ) if path.is_file()), None)


def searched(cwd: Path, environ: Mapping[str, str]) -> list[Path]:
    """Where a configuration file is looked for, in this order."""
    return [folder / name for folder in (cwd, home(environ)) for name in FILE_NAMES]


def eclipsed(path: Path) -> list[Path]:
    """The configuration files beside `path` that would be read if it were not there."""
    return [other for name in FILE_NAMES if name != path.name and (other := path.parent / name).is_file()]


def expanded(text: str, environ: Mapping[str, str]) -> Path:
    """`text` as a path, with a leading `~` replaced."""
    return Path(tilde(text, environ))


def tilde(text: str, environ: Mapping[str, str]) -> str:
    """`~`, `~/x` and `~\\x` with the user's home folder; anything else as it is, `~name/x` too."""
    if text == "~" or text.startswith(("~/", "~\\")):
        return f"{user_home(environ)}{text[1:]}"
    return text
