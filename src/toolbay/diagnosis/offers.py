"""What servers that work offer, and what of it does not reach a model: schemas, allow-lists, pins, names, weight. Pure."""

from __future__ import annotations

import shlex
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from toolbay.config.launchers import pinned
from toolbay.config.models import ServerConfig
from toolbay.diagnosis.findings import Notes
from toolbay.events import Notice
from toolbay.fleet import ServerStatus
from toolbay.lock import Finding as Quarantined
from toolbay.types import Kind, Tool
from toolbay.upstream.naming import Key, wrapped

HEAVY_TOKENS: Final = 10_000
"""Tokens of one server's definitions that are worth a word: they are in each request to a model."""
SLOW: Final = 0.5
"""The part of `startupTimeout` from which a start was a near thing."""
_SHOWN: Final = 8


def tell(config: ServerConfig, status: ServerStatus, remarks: Iterable[Notice], quarantined: Sequence[Quarantined], notes: Notes) -> None:
    """Put into `notes` what of a server that is ready is not as it should be."""
    for remark in remarks:
        if remark.about == "definition":
            notes.warning("a definition of it is not in order", remark.text, "tell whoever makes the server; the rest of it is offered")
        elif remark.about == "selection":
            notes.warning("an entry of its lists names nothing", remark.text, "correct the name, or remove the entry")
    for finding in quarantined:
        why = f"it is not as it was pinned ({finding.reason})"
        named = shlex.quote(notes.server)
        mend = f"toolbay lock --check {named} shows it, toolbay lock --accept {named} takes it as it is"
        notes.warning(f"its {finding.what} is not offered", why, mend)
    if status.seconds > SLOW * config.startup_timeout:
        why = f"it took {status.seconds:.1f} s of the {config.startup_timeout:g} s that it has"
        notes.warning("its start was slow", why, "raise `startupTimeout`, so that a slower day does not fail it")
    if not (status.tools or status.resources or status.prompts):
        notes.warning("it offers nothing", "it lists no tools, resources or prompts", "check its arguments and its own configuration")


def tell_left_out(reasons: Mapping[str, str], notes: Notes) -> None:
    """Tools that never get as far as a listing."""
    for name, reason in list(reasons.items())[:_SHOWN]:
        notes.warning(f"its tool {name} is left out", f"its marks for headers are invalid ({reason})", "tell whoever makes the server")


def tell_weight(tokens: int, tools: int, notes: Notes) -> None:
    """Definitions that are heavy cost tokens with each request, and a model's attention."""
    if tokens > HEAVY_TOKENS:
        why = f"the definitions of its {tools} tools are in each request to a model"
        notes.warning(f"it weighs about {tokens:,} tokens", why, "offer what is needed: list it in `enabledTools`")


def tell_launchers(loose: Mapping[str, tuple[str, str]], notes: Notes) -> None:
    """Launchers that take whatever was published last: by server the package, and the version that just ran where it is known."""
    if not loose:
        return
    one = len(loose) == 1
    servers = ", ".join(list(loose)[:_SHOWN]) + (f" and {len(loose) - _SHOWN} more" if len(loose) > _SHOWN else "")
    what = f"the package{'' if one else 's'} of {servers} come{'s' if one else ''} in any version"
    known = [pinned(package, version) for package, version in loose.values() if version]
    others = [pinned(package) for package, version in loose.values() if not version]
    parts = [f"write what ran just now: {', '.join(known)}"] if known else []
    parts += [f"{'and' if known else 'write'} a version behind the name: {', '.join(others)}"] if others else []
    notes.note(what, f"what runs is whatever was published last under {'that name' if one else 'those names'}", "; ".join(parts))


def tell_clashes(tools: Mapping[str, Iterable[Tool]], notes: Notes) -> None:
    """Names that several servers want, and names that are alike for a model."""
    claims: dict[str, list[Tool]] = defaultdict(list)
    alike: dict[str, list[str]] = defaultdict(list)
    for server, offered in tools.items():
        for tool in offered:
            if tool.kind is Kind.TOOL:
                claims[wrapped(Key(server, tool.kind, tool.wire_name))].append(tool)
                alike[tool.wire_name].append(server)
    for name, claimed in claims.items():
        if len(claimed) > 1:
            those = " and ".join(f"{tool.wire_name} of {tool.server} ({tool.name})" for tool in claimed[:_SHOWN])
            notes.warning(f"the name {name} is wanted more than once", f"by {those}", "rename one of the servers, for names that are plain")
    shared: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for name, servers in alike.items():
        if len(servers) > 1:
            shared[tuple(servers)].append(name)
    for servers, names in shared.items():
        listed = ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
        why = "a model can tell them apart by the server's name and their descriptions only"
        notes.note(f"{' and '.join(servers)} have tools of the same name ({listed})", why, "leave one of them out with `disabledTools`")
