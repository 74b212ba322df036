"""The shape of the tree itself: sizes, what an import costs, what no file may say, what the lock files promise."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
MEASURED = ("src", "demo", "bench")

MODULE_LINES, FUNCTION_LINES, CLASS_LINES, PARAMETERS = 400, 60, 250, 7
OVERSIZED: frozenset[str] = frozenset()
"""What is over a limit, as the test prints it. It may only shrink: an entry that is no longer over must go."""

LOADED_LATE = ("mcp", "mcp_types", "starlette", "uvicorn", "httpx2", "pydantic_ai", "openai", "anthropic", "langchain_core", "agents")


def modules(*folders: str) -> Iterator[Path]:
    for folder in folders:
        yield from (path for path in sorted((ROOT / folder).rglob("*.py")) if "node_modules" not in path.parts)


def oversized(path: Path, root: Path = ROOT) -> Iterator[str]:
    text = path.read_text(encoding="utf-8")
    where = path.relative_to(root).as_posix()
    if text.count("\n") > MODULE_LINES:
        yield f"{where}: module"
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ClassDef) and _lines(node) > CLASS_LINES:
            yield f"{where}: class {node.name}"
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            if _lines(node) > FUNCTION_LINES:
                yield f"{where}: function {node.name}"
            if len([arg for arg in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs) if _counts(arg)]) > PARAMETERS:
                yield f"{where}: parameters of {node.name}"


def _counts(arg: ast.arg) -> bool:
    """An option of the command line (`Annotated[..., typer.Option(...)]`) is given by a person, by name: no caller lists it."""
    return arg.arg not in {"self", "cls"} and not (arg.annotation and ast.unparse(arg.annotation).startswith("Annotated["))


def _lines(node: ast.stmt) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def test_nothing_is_bigger_than_the_limits_but_what_is_listed() -> None:
    """STRUCTURE: modules, functions, classes and parameter lists keep to their sizes."""
    found = {entry for path in modules(*MEASURED) for entry in oversized(path)}
    assert found == OVERSIZED


def test_the_size_check_sees_what_is_too_big(tmp_path: Path) -> None:
    """STRUCTURE: each of the four limits is really held."""
    path = tmp_path / "big.py"
    body = "\n".join(f"    x{number} = 1" for number in range(260))
    path.write_text(f"class Big:\n{body}\n\ndef long(self, a, b, c, d, e, f, g, *, h):\n{body}\n", encoding="utf-8")
    assert set(oversized(path, tmp_path)) == {"big.py: module", "big.py: class Big", "big.py: function long", "big.py: parameters of long"}


def mocks(path: Path) -> Iterator[str]:
    """Where a test puts something in the place of our own code, or makes an object that answers everything."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    ours = {
        (alias.asname or alias.name).split(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
        if (alias.name if isinstance(node, ast.Import) else node.module or "").split(".")[0] == "toolbay"
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            named = [alias.name for alias in node.names] + ([node.module or ""] if isinstance(node, ast.ImportFrom) else [])
            if {"unittest.mock", "mock", "pytest_mock"} & set(named):
                yield f"{path.name}:{node.lineno} imports a mock library"
        elif isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            if called.split(".")[-1] in {"Mock", "MagicMock", "AsyncMock", "patch"} or called.startswith("mocker."):
                yield f"{path.name}:{node.lineno} calls {called}"
            if called.endswith("monkeypatch.setattr") and node.args:
                target = ".".join(ast.unparse(arg).strip("'\"") for arg in node.args[: 1 if len(node.args) == 2 else 2])
                # A limit that is made small for a test is still our own code at work.
                if target.split(".")[0] in ours | {"toolbay"} and not target.split(".")[-1].isupper():
                    yield f"{path.name}:{node.lineno} replaces {target}"


def test_no_test_mocks_our_own_code() -> None:
    """STRUCTURE: tests use real objects and small scripted fakes, so that they fail when the behaviour goes."""
    assert [found for path in modules("tests") for found in mocks(path)] == []


def test_the_mock_check_sees_mocks(tmp_path: Path) -> None:
    """STRUCTURE: every way of replacing our code is seen, and a smaller limit is none."""
    path = tmp_path / "test_bad.py"
    path.write_text(
        "from unittest import mock\nimport unittest.mock\nfrom toolbay import registry as r\n"
        "def test(monkeypatch):\n    MagicMock()\n    monkeypatch.setattr(r, 'x', 1)\n    monkeypatch.setattr('toolbay.x.y', 1)\n"
        "    monkeypatch.setattr(r, 'MAX_BYTES', 1)\n",
        encoding="utf-8",
    )
    assert [found.split(":")[1].split()[0] for found in mocks(path)] == ["1", "2", "5", "6", "7"]


def unmasked(path: Path) -> Iterator[str]:
    """Where a traceback is written as it is. What an exception says may hold a secret that it was given."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module == "traceback":
            yield f"{path.name}:{node.lineno} imports from traceback"
        elif isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            # The `exception` of a future or task, which gives one, takes nothing.
            logged = called.split(".")[-1] == "exception" and (node.args or node.keywords)
            if logged or called.startswith("traceback.") or any(keyword.arg == "exc_info" for keyword in node.keywords):
                yield f"{path.name}:{node.lineno} calls {called}"


def test_no_traceback_is_logged_unmasked() -> None:
    """SEC, OBS-2: `_redact.trace` is the one way from an exception to the text of its traceback."""
    assert [found for path in modules("src") if path.name != "_redact.py" for found in unmasked(path)] == []


def test_the_traceback_check_sees_tracebacks(tmp_path: Path) -> None:
    """STRUCTURE: every way of writing one is seen; what a task has raised, and a masked one, are none."""
    path = tmp_path / "bad.py"
    path.write_text(
        "import traceback\nfrom traceback import print_exc\n_log.exception('x')\nlogging.getLogger().exception(msg='x')\n"
        "_log.error('x', exc_info=True)\nself._log.debug('x', exc_info=error)\ntraceback.print_exception(error)\n"
        "task.exception()\n_log.error('x %s', trace(error, safe))\n",
        encoding="utf-8",
    )
    assert [found.split(":")[1].split()[0] for found in unmasked(path)] == ["2", "3", "4", "5", "6", "7"]


@pytest.mark.parametrize("statement", ["import toolbay", "import toolbay.cli", "from toolbay.cli import main"])
def test_an_import_pulls_in_nothing_heavy(statement: str) -> None:
    """STRUCTURE: the protocol's SDK, web servers and model libraries are loaded when they are used, not before."""
    code = f"{statement}\nimport json, sys; print(json.dumps(sorted(sys.modules)))"
    loaded = json.loads(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout)
    assert "toolbay" in loaded
    assert sorted({name.split(".")[0] for name in loaded} & set(LOADED_LATE)) == []


def test_every_contract_row_that_a_test_names_exists() -> None:
    """STRUCTURE: ids in the docstrings of tests are rows of the behaviour contract."""
    design = ROOT.parent / "shared" / "design"
    if not (design / "behaviour.md").is_file():
        pytest.skip("the behaviour contract (../shared/design/behaviour.md) is not there")
    contract = (design / "behaviour.md").read_text(encoding="utf-8")
    rows = set(re.findall(r"^- ([A-Z]+-\d+)\b", contract, re.MULTILINE))
    # The rows of security are a numbered table of their own.
    security = (design / "security.md").read_text(encoding="utf-8") if (design / "security.md").is_file() else ""
    rows |= {f"SEC-{number}" for number in re.findall(r"^\| (\d+) \|", security, re.MULTILINE)}
    assert len(rows) > 50, "the contract is no longer read as it is written"
    assert sorted(f"{where} names {row}" for where, row in _named_rows(modules("tests")) if row not in rows) == []


def _named_rows(paths: Iterable[Path]) -> Iterator[tuple[str, str]]:
    for path in paths:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                named = (ast.get_docstring(node) or "").partition(":")[0]
                yield from ((f"{path.name}::{node.name}", row) for row in re.findall(r"\b[A-Z]{2,4}-\d+\b", named))


def files() -> list[Path]:
    """What git tracks; without git, everything that is not made by a tool."""
    answer = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if answer.returncode == 0:
        return [ROOT / name for name in answer.stdout.split("\0") if name and (ROOT / name).is_file()]
    made = {".git", "node_modules", "__pycache__", ".venv", ".venv-mcp1"}
    return [path for path in ROOT.rglob("*") if path.is_file() and not made & set(path.parts)]


# In parts, so that this file is not the first to say them.
HOSTS = ("registry." + "npmjs", "pypi." + "org", "python" + "hosted.org", "proxy." + "golang.org", "deb." + "debian.org")
FOLDERS = ("work", "farm", "tmp/lab")


def test_no_file_names_a_registry_or_a_folder_of_one_machine() -> None:
    """STRUCTURE: whoever installs uses the registries that his own tools are set to, and no path is of our machines."""
    said = re.compile("|".join([*map(re.escape, HOSTS), *(rf"(?<![\w.~/:-])/{folder}/" for folder in FOLDERS)]))
    found: list[str] = []
    for path in files():
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        found += [f"{path.relative_to(ROOT)}: {match.group()}" for match in said.finditer(text)]
    assert found == []


def test_lock_files_name_no_address() -> None:
    """STRUCTURE: Node's lock files resolve nothing to an address."""
    locks = [path for path in files() if path.name == "package-lock.json"]
    assert locks
    for path in locks:
        packages = json.loads(path.read_text(encoding="utf-8"))["packages"]
        assert [name for name, entry in packages.items() if "://" in str(entry.get("resolved", ""))] == []


def test_the_lock_file_holds_what_the_project_asks_for() -> None:
    """STRUCTURE: a dependency that was added or raised is in the lock file, at a version that fits."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    groups = project["dependency-groups"]
    wanted = [*project["project"]["dependencies"], *project["project"]["optional-dependencies"]["models"]]
    wanted += [item for group in ("build", "demo", "lint", "test") for item in groups[group]]
    _assert_locked(wanted, ROOT / "requirements.lock")
    _assert_locked(groups["mcp1"], ROOT / "requirements-mcp1.lock")


def _assert_locked(wanted: list[str], lock: Path) -> None:
    found = re.findall(r"^([A-Za-z0-9._-]+)(?:\[[^]]*\])?==([^ ;\\]+)", lock.read_text(encoding="utf-8"), re.MULTILINE)
    locked = {canonicalize_name(name): version for name, version in found}
    for requirement in map(Requirement, wanted):
        version = locked.get(canonicalize_name(requirement.name))
        assert version is not None, f"{requirement.name} is not in {lock.name}: make lock"
        assert requirement.specifier.contains(version, prereleases=True), f"{requirement} has {version} in {lock.name}: make lock"
