"""Which of a server's capabilities are offered, by what its configuration lists."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from toolbay._nearest import nearest
from toolbay._text import line
from toolbay.config.models import ServerConfig
from toolbay.types import Kind
from toolbay.upstream.naming import Key, wrapped

_SHOWN = 10
_FIELDS = {Kind.TOOL: "enabledTools", Kind.RESOURCE: "enabledResources", Kind.PROMPT: "enabledPrompts"}


@dataclass(frozen=True)
class Unmatched:
    """An entry of `field` that names nothing the server has; `text` is a sentence that says what there is."""

    entry: str
    field: str
    text: str


@dataclass(frozen=True)
class Selection:
    """What is offered, and the entries that name nothing, each once."""

    allowed: frozenset[Key]
    unmatched: tuple[Unmatched, ...]


def select(config: ServerConfig, keys: Sequence[Key], names: Mapping[Key, str]) -> Selection:
    """Apply the lists of one server's `config` to its `keys` (ALW-1, ALW-2, ALW-3).

    An entry is a server's own name, a wrapped name (`names`, or the one it would have had without a clash), a URI, a
    glob pattern on any of them (case-sensitive), or `"*"`. `disabledTools` wins; besides tools it takes resources and
    prompts away by their wrapped names, which is how a person sees them.
    """
    offer = _Offer(keys, names)
    everything = "*" in config.enabled_tools
    lists = {Kind.TOOL: config.enabled_tools, Kind.RESOURCE: config.enabled_resources, Kind.PROMPT: config.enabled_prompts}
    allowed: set[Key] = set()
    unmatched: list[Unmatched] = []
    for kind, entries in lists.items():
        if entries is None:
            allowed |= {key for key in keys if key.kind is kind and everything}
            continue
        for entry in dict.fromkeys(entries):
            found = offer.matching(entry, kind)
            allowed |= found
            if not found and entry != "*":
                unmatched.append(offer.unmatched(entry, kind, _FIELDS[kind]))
    for entry in dict.fromkeys(config.disabled_tools):
        found = offer.matching(entry, Kind.TOOL)
        if entry != "*":
            found |= {key for key in keys if key.kind is not Kind.TOOL and _names(entry, offer.wrapped(key))}
            if not found:
                unmatched.append(offer.unmatched(entry, Kind.TOOL, "disabledTools"))
        allowed -= found
    unmatched += [
        offer.unmatched(entry, Kind.TOOL, field)
        for field, policy, kinds in (("retry", config.retry, (Kind.TOOL,)), ("approval", config.approval, tuple(Kind)))
        for entry in (() if isinstance(policy, str) else policy)
        if not any(offer.matching(entry, kind) for kind in kinds)
    ]
    return Selection(frozenset(allowed), tuple(unmatched))


def _names(entry: str, known: Sequence[str]) -> bool:
    return entry == "*" or entry in known or any(fnmatchcase(name, entry) for name in known)


class _Offer:
    """What a server has, under every name that an entry may use."""

    def __init__(self, keys: Sequence[Key], names: Mapping[Key, str]) -> None:
        self._keys = keys
        self._names = names

    def wrapped(self, key: Key) -> tuple[str, ...]:
        return (self._names.get(key, wrapped(key)), wrapped(key))

    def matching(self, entry: str, kind: Kind) -> set[Key]:
        return {key for key in self._keys if key.kind is kind and _names(entry, self._known(key))}

    def unmatched(self, entry: str, kind: Kind, field: str) -> Unmatched:
        mine = [key for key in self._keys if key.kind is kind]
        text = f'{field}: "{_shown(entry)}" matches no {kind.value} of this server'
        other = next((key for key in self._keys if key.kind is not kind and _names(entry, self._known(key))), None)
        if other is not None:
            text += f"; it is a {other.kind.value}, so list it in {_FIELDS[other.kind]}"
        known = [name for key in mine for name in self._known(key)]
        near = nearest(entry, known, likeness=0.4)
        if near:
            text += f'; did you mean "{_shown(near)}"?'
        if not mine:
            return Unmatched(entry, field, f"{text}. It has no {kind.value}s.")
        listed = [f"{_shown(key.name)} ({self.wrapped(key)[0]})" for key in mine[:_SHOWN]]
        rest = len(mine) - len(listed)
        tail = f" and {rest} more" if rest else ""
        return Unmatched(entry, field, f"{text}{'' if near else '.'} Available: {', '.join(listed)}{tail}.")

    def _known(self, key: Key) -> tuple[str, ...]:
        return (key.name, *self.wrapped(key), *((key.uri,) if key.uri else ()))


def _shown(text: str) -> str:
    return line(text, 80)
