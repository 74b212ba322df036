"""Edits of a TOML text. The library keeps comments and order; what it would take along with a removed table is put back."""

from __future__ import annotations

from typing import Any

from toolbay.errors import ConfigError


def put(text: str, path: tuple[str | int, ...], value: Any) -> str:
    """Set what is at `path`; parents that are missing are made. An index may be the length of its list."""
    import tomlkit  # noqa: PLC0415  # heavy, and for TOML files only
    import tomlkit.exceptions  # noqa: PLC0415

    document = tomlkit.parse(text)
    node: Any = document
    try:
        for key in path[:-1]:
            if isinstance(key, str) and key not in node:
                node[key] = tomlkit.table(is_super_table=True)
            node = node[key]
        key = path[-1]
        if isinstance(key, int) and key >= len(node):
            node.append(tomlkit.item(value))  # pyright: ignore[reportUnknownMemberType]
        else:
            node[key] = value
    except tomlkit.exceptions.TOMLKitError:
        raise ConfigError(f"`{path[-1]}` does not fit into the tables as they are laid out: edit it by hand") from None
    return tomlkit.dumps(document)  # pyright: ignore[reportUnknownMemberType]


def drop(text: str, path: tuple[str | int, ...]) -> str:
    """Take away what is at `path`, which must be there."""
    import tomlkit  # noqa: PLC0415  # as above

    document = tomlkit.parse(text)
    node: Any = document
    for key in path[:-1]:
        node = node[key]
    del node[path[-1]]
    return _with_comments(text, tomlkit.dumps(document))  # pyright: ignore[reportUnknownMemberType]


def _with_comments(old: str, new: str) -> str:
    """To the library, what stands above the next header is the end of the table before it; it goes on being said."""
    start = next((at for at, (mine, yours) in enumerate(zip(old, new, strict=False)) if mine != yours), len(new))
    start = new.rfind("\n", 0, start) + 1
    length = len(old) - len(new)
    if old[start + length :] != new[start:]:
        return new
    kept: list[str] = []
    for line in reversed(old[start : start + length].splitlines(keepends=True)):
        if line.strip() and not line.lstrip().startswith("#"):
            break
        kept.insert(0, line)
    return new[:start] + "".join(kept) + new[start:]
