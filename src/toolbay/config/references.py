"""References: `${VAR}`, `${env:VAR}`, `${VAR:-default}` (nested in defaults), `${keyring:SERVICE/USER}`; `$${` is a plain `${`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from toolbay.config import keyrings
from toolbay.errors import ConfigError

KEYRING = "keyring:"
_BODY = re.compile(r"(?:env:)?([A-Za-z_][A-Za-z0-9_]*)(?::-(.*))?", re.DOTALL)


class BadReference(ConfigError):
    """A reference that cannot be resolved. Its text is a clause that finishes "the key `x` ..."."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Resolved:
    """A text without references, and the variables whose values are in it."""

    text: str
    used: tuple[tuple[str, str], ...] = ()


def resolve(text: str, environ: Mapping[str, str]) -> Resolved:
    """Replace every reference in `text`. Values are taken as they are: a `${` in a value is no reference.

    As in a POSIX shell, `:-` takes the default where the variable is unset or empty.

    Raises:
        BadReference: a variable is not set and has no default, or a reference is of another kind.
    """
    pieces: list[str] = []
    used: list[tuple[str, str]] = []
    done = 0
    while (start := text.find("${", done)) >= 0:
        if start > done and text[start - 1] == "$":
            pieces.append(text[done : start - 1] + "${")
            done = start + 2
            continue
        end = _closing(text, start)
        part = _value(text[start + 2 : end], environ)
        pieces += [text[done:start], part.text]
        used += part.used
        done = end + 1
    return Resolved(text="".join(pieces) + text[done:], used=tuple(used))


def _closing(text: str, start: int) -> int:
    depth, at = 0, start
    while at < len(text):
        if text.startswith("${", at):
            depth += 1
            at += 2
            continue
        if text[at] == "}":
            depth -= 1
            if depth == 0:
                return at
        at += 1
    raise BadReference("has a `${` without its `}`: close it, or write `$${` for the characters themselves")


def _value(body: str, environ: Mapping[str, str]) -> Resolved:
    if body.startswith(KEYRING):
        try:
            secret = keyrings.lookup(body.removeprefix(KEYRING))
        except keyrings.NoSecret as reason:
            raise BadReference(str(reason)) from None
        return Resolved(text=secret, used=((body, secret),))
    match = _BODY.fullmatch(body)
    if match is None:
        word = re.match(r"[A-Za-z]+(?=:)", body)
        shown = f"${{{word[0]}:...}}" if word else "a `${...}` that is no variable's name"
        raise BadReference(f"uses {shown}, which is not known here: put the value into an environment variable and write ${{NAME}}")
    name, default = match[1], match[2]
    value = environ.get(name)
    if value or (value is not None and default is None):
        return Resolved(text=value, used=((name, value),))
    if default is None:
        raise BadReference(f"needs the environment variable {name}, which is not set: set it, or write ${{{name}:-default}}")
    return resolve(default, environ)
