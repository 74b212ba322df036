"""Servers added, removed and switched in a configuration file, without touching anything else in it (CFG-8).

The text is changed only where it must be. Before it is written it is parsed again: it must hold exactly the change that
was asked for, else nothing is written. Messages name keys and files, never values.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from pathlib import Path
from types import NoneType
from typing import Any, cast

from toolbay.config import fields, json_text, syntax, toml_text, writing, yaml_text
from toolbay.config.loading import SERVER_PLACES
from toolbay.config.places import FILE_NAMES
from toolbay.errors import ConfigError
from toolbay.types import Json

_LANGUAGES = {syntax.Kind.YAML: yaml_text, syntax.Kind.JSON: json_text, syntax.Kind.TOML: toml_text}
_SWITCHES = {"disabled": False, "enabled": True, "isActive": True, "quarantined": False}
"""The keys that switch an entry, and what each is when the server is on."""


def add_server(path: Path, name: str, entry: Mapping[str, Any], *, replace: bool = False) -> None:
    """Write a new server's entry (keys as in files) after the others; `path` is made where it does not exist.

    Raises:
        ConfigError: the name is taken (and not `replace`), the file does not parse, was changed meanwhile, or cannot be written.
    """
    draft = Draft(path)
    draft.add(name, entry, replace=replace)
    draft.save()


def remove_server(path: Path, name: str) -> None:
    """Take a server's entry out.

    Raises:
        ConfigError: there is no such server, or as `add_server`.
    """
    draft = Draft(path)
    draft.remove(name)
    draft.save()


def set_enabled(path: Path, name: str, enabled: bool) -> None:
    """Switch a server on or off.

    Raises:
        ConfigError: there is no such server, or as `add_server`.
    """
    draft = Draft(path)
    draft.enable(name, enabled)
    draft.save()


class Draft:
    """A file as it was read, and the changes to it that `save` writes together or not at all."""

    def __init__(self, path: Path) -> None:
        """Read `path`; a folder stands for the configuration in it.

        Raises:
            ConfigError: it cannot be read, or does not parse.
        """
        self.path = path / FILE_NAMES[0] if path.is_dir() else path
        self._read: bytes | None = writing.read(self.path)
        self._source = syntax.decode(self._read or b"", self.path)
        self._text = self._source.text
        self._kind = syntax.kind_of(self.path, self._text)
        self._data: Json = syntax.parse(self._text, self._kind, self.path) if self._text.strip() else {}

    def add(self, name: str, entry: Mapping[str, Any], *, replace: bool = False) -> None:
        """As `add_server`, without writing."""
        if not name:
            raise ConfigError("A server needs a name: give one that is not empty.")
        there = self._find(name)
        if there and not replace:
            raise ConfigError(f"There is already a server `{name}` in {self.path}: choose another name, or remove that one first.")
        place = there[:-1] if there else self._place()
        try:
            value = cast("Json", json.loads(json.dumps(_without_none(entry), allow_nan=False)))
        except (TypeError, ValueError):
            raise ConfigError(
                f"The entry of server `{name}` holds something that is no JSON value: use text, numbers, lists and objects."
            ) from None
        servers = self._at(place)
        if isinstance(servers, list):
            value = {"name": name, **value}
            self._put(there or (*place, len(cast("list[Any]", servers))), value)
        else:
            self._put((*place, name), value)

    def remove(self, name: str) -> None:
        """As `remove_server`, without writing."""
        path = self._existing(name)
        text = self._changed("drop", path)
        expected = copy.deepcopy(self._data)
        del _walk(expected, path[:-1])[path[-1]]
        self._accept(text, expected)

    def enable(self, name: str, enabled: bool) -> None:
        """As `set_enabled`, without writing."""
        path = self._existing(name)
        entry = self._at(path)
        if not isinstance(entry, dict):
            raise ConfigError(f"The server `{name}` in {self.path} is no object and cannot be switched: mend or remove it.")
        present = [key for key in _SWITCHES if key in entry]
        for key in present or ([] if enabled else ["disabled"]):
            wanted = _SWITCHES[key] is enabled
            if cast("Json", entry).get(key) is not wanted:
                self._put((*path, key), wanted)

    def entry(self, name: str) -> Any:
        """A server's entry as it stands in the file, references and secrets included: not for showing.

        Raises:
            ConfigError: there is no such server.
        """
        value = copy.deepcopy(self._at(self._existing(name)))
        return {key: part for key, part in value.items() if key != "name"} if isinstance(self._existing(name)[-1], int) else value

    def save(self) -> None:
        """Write the changes, if any.

        Raises:
            ConfigError: the file was changed by someone else since it was read, or cannot be written. It is as it was.
        """
        if self._text != self._source.text:
            data = self._source.encoded(self._text)
            writing.replace(self.path, data, expected=self._read)
            self._read, self._source = data, syntax.decode(data, self.path)

    def _place(self) -> tuple[str, ...]:
        """Where this file keeps its servers, or may."""
        for place in SERVER_PLACES:
            if isinstance(self._at(place), (dict, list)):
                return place
        for place in SERVER_PLACES:
            parent = self._at(place[:-1])
            if isinstance(parent, dict) and place[-1] in parent:
                return place  # the key is there, with nothing in it yet
        return SERVER_PLACES[0] if isinstance(self._data.get("tools", {}), (dict, NoneType)) else ("mcpServers",)

    def _find(self, name: str) -> tuple[str | int, ...]:
        for place in SERVER_PLACES:
            servers = self._at(place)
            if isinstance(servers, dict) and name in servers:
                return (*place, name)
            if isinstance(servers, list):
                for at, item in enumerate(cast("list[Any]", servers)):
                    if isinstance(item, dict) and cast("Json", item).get("name") == name:
                        return (*place, at)
        return ()

    def _existing(self, name: str) -> tuple[str | int, ...]:
        found = self._find(name)
        if not found:
            close = fields.nearest(name, [key for place in SERVER_PLACES for key in self._names(place)])
            raise ConfigError(f"There is no server `{name}` in {self.path}" + (f"; did you mean `{close}`?" if close else "."))
        return found

    def _names(self, place: tuple[str, ...]) -> list[str]:
        servers = self._at(place)
        return list(cast("Json", servers)) if isinstance(servers, dict) else []

    def _at(self, path: tuple[str | int, ...]) -> Any:
        node: Any = self._data
        for key in path:
            if isinstance(node, dict):
                node = cast("Json", node).get(str(key))
            elif isinstance(node, list) and isinstance(key, int):
                node = cast("list[Any]", node)[key]
            else:
                return None
        return node

    def _put(self, path: tuple[str | int, ...], value: Any) -> None:
        text = self._changed("put", path, value)
        expected = copy.deepcopy(self._data)
        node = _walk(expected, path[:-1])
        if isinstance(node, list) and path[-1] == len(cast("list[Any]", node)):
            node = cast("list[Any]", node)
            node.append(value)
        else:
            cast("Json", node)[cast("str", path[-1])] = value
        self._accept(text, expected)

    def _changed(self, edit: str, path: tuple[str | int, ...], *value: Any) -> str:
        language = _LANGUAGES[self._kind]
        try:
            return language.drop(self._text, path) if edit == "drop" else language.put(self._text, path, *value)
        except ConfigError as error:
            raise ConfigError(f"{self.path} was not changed: {error}.") from None
        except (TypeError, ValueError, LookupError):
            # The languages' libraries fail in these ways on layouts that they do not take.
            raise self._by_hand() from None

    def _accept(self, text: str, expected: Json) -> None:
        """Keep `text`, if it says what it must."""
        try:
            data = syntax.parse(text, self._kind, self.path)
        except ConfigError:
            raise self._by_hand() from None
        if data != expected:
            raise self._by_hand()
        self._text, self._data = text, data

    def _by_hand(self) -> ConfigError:
        return ConfigError(f"{self.path} was not changed, for it is laid out in a way that cannot be edited safely: edit it by hand.")


def _walk(data: Any, path: tuple[str | int, ...]) -> Any:
    """What is at `path`; objects that are missing on the way are made."""
    for key in path:
        if isinstance(data, dict) and cast("Json", data).get(cast("str", key)) is None:
            data[key] = {}
        data = cast("Any", data)[key]
    return data


def _without_none(value: Any) -> Any:
    """What is null means nothing to the loader, and TOML has no word for it."""
    if isinstance(value, Mapping):
        return {key: _without_none(item) for key, item in cast("Mapping[str, Any]", value).items() if item is not None}
    if isinstance(value, (list, tuple)):
        return [_without_none(item) for item in cast("list[Any]", value)]
    return value
