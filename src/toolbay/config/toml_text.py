"""Edits of a TOML text. The library keeps comments and order; what it would take along with a removed table is put back."""

from __future__ import annotations

from typing import Any

from toolbay.errors import ConfigError


def put(text: str, path: tuple[str | int, ...], value: Any) -> str:
    """Set what is at `path`; parents that are missing are made. An index may be the length of its list."""
    import tomlkit  # noqa: PLC0415  # heavy, and for TOML files only
    import tomlkit.exceptions  # noqa: PLC0415
    import tomlkit.items  # noqa: PLC0415

    document = tomlkit.parse(text)
    node: Any = document
    try:
        for key in path[:-1]:
            if isinstance(key, str) and key not in node:
                inline = isinstance(node, tomlkit.items.InlineTable)
                node[key] = tomlkit.inline_table() if inline else tomlkit.table(is_super_table=True)
            node = node[key]
        key = path[-1]
        if isinstance(key, int) and key >= len(node):
            node.append(tomlkit.item(value))  # pyright: ignore[reportUnknownMemberType]
        else:
            node[key] = value
    except tomlkit.exceptions.TOMLKitError:
        raise ConfigError(f"`{path[-1]}` does not fit into the tables as they are laid out: edit it by hand") from None
    new = tomlkit.dumps(document)  # pyright: ignore[reportUnknownMemberType]
    return _before_comments(text, new)


def drop(text: str, path: tuple[str | int, ...]) -> str:
    """Take away what is at `path`, which must be there."""
    import tomlkit  # noqa: PLC0415  # as above
    import tomlkit.items  # noqa: PLC0415

    document = tomlkit.parse(text)
    above: Any = None
    node: Any = document
    for key in path[:-1]:
        above, node = node, node[key]
    del node[path[-1]]
    if not node and above is not None:
        # A table that only headers of its members made would go with the last of them.
        inline = isinstance(node, tomlkit.items.InlineTable)
        above[path[-2]] = tomlkit.array() if isinstance(path[-1], int) else tomlkit.inline_table() if inline else tomlkit.table()
    return _with_comments(text, tomlkit.dumps(document))  # pyright: ignore[reportUnknownMemberType]


def _parted(longer: str, shorter: str) -> tuple[str, str, str] | None:
    """What stands before, in and after the lines that `longer` has more than `shorter`, if they are in one place."""
    start = next((at for at, (mine, yours) in enumerate(zip(longer, shorter, strict=False)) if mine != yours), len(shorter))
    start = shorter.rfind("\n", 0, start) + 1
    end = start + len(longer) - len(shorter)
    return (longer[:start], longer[start:end], longer[end:]) if end >= start and longer[end:] == shorter[start:] else None


def _comments_at_end(text: str) -> str:
    """The comment lines that a text ends with, and the empty ones among them."""
    kept: list[str] = []
    for line in reversed(text.splitlines(keepends=True)):
        if line.strip() and not line.lstrip().startswith("#"):
            break
        kept.insert(0, line)
    return "".join(kept)


def _before_comments(old: str, new: str) -> str:
    """What is new goes above the comment of the next table, not between the two."""
    parts = _parted(new, old)
    if parts is None:
        return new
    head, added, tail = parts
    comments = _comments_at_end(head) if tail.strip() else ""
    if not added.lstrip().startswith("["):
        return f"{head[: len(head) - len(comments)]}{added}{comments}{tail}"
    about_next = f"\n{comments}".rpartition("\n\n")[2].lstrip("\n")
    head, tail = head[: len(head) - len(about_next)], about_next + tail
    gap = "\n" if head.strip() and not head.endswith("\n\n") else ""
    return f"{head}{gap}{added.strip(chr(10))}\n" + (f"\n{tail}" if tail else "")


def _with_comments(old: str, new: str) -> str:
    """To the library, what stands above the next header is the end of the table before it; it goes on being said."""
    parts = _parted(old, new)
    if parts is None:
        return new
    head, table, tail = parts
    kept = _comments_at_end(table)
    return head + (kept.lstrip("\n") if head.endswith("\n\n") else kept) + tail
