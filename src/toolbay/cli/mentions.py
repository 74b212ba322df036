"""What people write in chat for what servers offer: `@server:uri` for resources, `/server:prompt words` for prompts. Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from toolbay._text import data_block
from toolbay.errors import BadCall

_MENTION: Final = re.compile(r"""(?<![^\s("'\[])@([^\s:@]+):(\S+)""")
_AFTER: Final = ".,;:!?)]}'\""


class Resource(Protocol):
    @property
    def server(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def uri(self) -> str: ...


@dataclass(frozen=True)
class Mention:
    """A resource that a message speaks of."""

    server: str
    uri: str

    def __str__(self) -> str:
        return f"@{self.server}:{self.uri}"


def mentions(text: str, servers: Collection[str], resources: Iterable[Resource]) -> list[Mention]:
    """The resources that `text` mentions, in their order, each once.

    The longest known URI (or name) that stands there is meant; what is not known is taken as a URI, without the
    punctuation of the sentence around it. An @ before something that is no server is left alone.
    """
    known = list(resources)
    found: dict[Mention, None] = {}
    for match in _MENTION.finditer(text):
        server, rest = match.groups()
        if server not in servers:
            continue
        fits = [(len(word), one.uri) for one in known if one.server == server for word in (one.uri, one.name) if _stands(word, rest)]
        found[Mention(server, max(fits)[1] if fits else rest.rstrip(_AFTER))] = None
    return list(found)


def _stands(word: str, rest: str) -> bool:
    return bool(word) and rest.startswith(word) and not rest[len(word) :].strip(_AFTER)


def with_contents(text: str, contents: Sequence[tuple[Mention, str]]) -> str:
    """`text` followed by what it mentions, fenced so that no content can end its own block."""
    parts = [text]
    parts += [data_block(str(mention), content) for mention, content in contents]
    return "\n\n".join(parts)


def prompt_arguments(name: str, words: str, declared: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """The arguments of a prompt from what was written after its name: `key=value` words, and others in the declared order.

    Where a prompt takes one argument, or the last is reached, it takes all that is left.

    Raises:
        BadCall: a required argument is missing, or there are words for which there is no argument.
    """
    names = [str(one["name"]) for one in declared]
    found: dict[str, str] = {}
    loose: list[str] = []
    for word in _split(words):
        key, separator, value = word.partition("=")
        if separator and key in names:
            found[key] = value
        else:
            loose.append(word)
    free = [one for one in names if one not in found]
    if loose and not free:
        raise BadCall(f'/{name} has no argument for "{loose[0]}".')
    for place, key in enumerate(free):
        if not loose:
            break
        found[key] = " ".join(loose) if place == len(free) - 1 else loose.pop(0)
    missing = [str(one["name"]) for one in declared if one.get("required") and str(one["name"]) not in found]
    if missing:
        raise BadCall(f"/{name} needs {', '.join(missing)}: write /{name} {' '.join(f'{key}=...' for key in missing)}.")
    return found


def _split(words: str) -> list[str]:
    try:
        return shlex.split(words)
    except ValueError:  # a lone apostrophe is no quoting
        return words.split()
