"""The public names: what `import toolbay` offers is exactly what it says it offers."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from pathlib import Path

import toolbay

SOURCE = Path(toolbay.__file__)


def test_all_names_are_written_in_order() -> None:
    """STRUCTURE: one sorted list, so that two changes to it do not collide and a reader finds a name."""
    assert list(toolbay.__all__) == sorted(toolbay.__all__)
    assert len(set(toolbay.__all__)) == len(toolbay.__all__)


def test_dir_shows_the_public_names_and_nothing_else() -> None:
    """STRUCTURE: what completion shows is what is promised."""
    assert sorted(name for name in dir(toolbay) if not name.startswith("_")) == [name for name in toolbay.__all__ if name[0] != "_"]


def test_every_public_name_is_there_and_says_what_it_is() -> None:
    """STRUCTURE: each one loads, and each class and function has a docstring of its own."""
    silent = [
        name
        for name in toolbay.__all__
        if (inspect.isclass(getattr(toolbay, name)) or inspect.isroutine(getattr(toolbay, name)))
        and not (getattr(toolbay, name).__doc__ or "").strip()
    ]
    assert silent == []


def test_what_users_read_of_public_names_holds_no_numbers_of_the_contract() -> None:
    """STRUCTURE: ids of rows are for who works on Toolbay; nobody else has the list."""
    shown = {name: getattr(toolbay, name) for name in toolbay.__all__}
    shown |= {f"events.{name}": one for name, one in vars(importlib.import_module("toolbay.events")).items() if inspect.isclass(one)}
    members = {
        f"{name}.{member}": value
        for name, one in shown.items()
        if inspect.isclass(one)
        for member, value in vars(one).items()
        if not member.startswith("_") and (inspect.isroutine(value) or isinstance(value, property))
    }
    texts = {name: inspect.getdoc(one) or "" for name, one in {**shown, **members}.items()}
    assert len(texts) > 100
    assert [name for name, text in texts.items() if re.search(r"\b[A-Z]{2,4}-\d+\b", text.replace("UTF-8", ""))] == []


def test_every_module_says_what_it_is_for() -> None:
    """STRUCTURE: a module begins with the idea of it."""
    modules = SOURCE.parent.rglob("*.py")
    assert [str(path) for path in modules if not ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))] == []


def test_every_error_can_be_caught_by_a_public_name() -> None:
    """LIB: whoever handles one kind of failure needs its name, and a new one is easily forgotten."""
    errors = [
        one for one in vars(importlib.import_module("toolbay.errors")).values() if inspect.isclass(one) and issubclass(one, Exception)
    ]
    assert toolbay.ToolbayError in errors
    assert [error.__name__ for error in errors if error.__name__ not in toolbay.__all__] == []


def test_what_the_documents_promise_is_public() -> None:
    """LIB: the words of signatures that users write themselves, and the events, have a public home."""
    assert {"AppOptions", "Bus", "Busy", "Control", "Conversation", "InvalidServer", "Next", "Registry", "Session"} <= set(toolbay.__all__)
    assert {"LoginConfig", "LoginFailed", "LoginStatus", "Page", "Pasting", "Person", "Store"} <= set(toolbay.__all__)
    assert issubclass(importlib.import_module("toolbay.events").CallFinished, importlib.import_module("toolbay.events").Event)
    assert "toolbay.events" in (toolbay.__doc__ or "")
