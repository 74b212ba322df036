"""Editing a configuration file: comments kept, whole or not at all, one winner (CFG-8)."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from toolbay import config
from toolbay.config import edit, syntax
from toolbay.errors import ConfigError

ENTRY: dict[str, Any] = {"command": "npx", "args": ["-y", "pkg", "yes", "007", "# no comment"], "env": {"TOKEN": "${T}"}}

FILES = {
    "toolbay.yaml": """\
        # top
        agent:
          model: 'offline'   # quoted

        tools:
          # above the servers
          mcpServers:
            a: # about a
              command: x
              args: [ -y,  "pkg" ]   # odd spaces
            # about b
            b:
              url: https://h/mcp
              description: |
                two
                lines

            # after b
          # after the servers
        # end
        """,
    "indented.yaml": """\
        mcpServers:
            a:
                command: x
                args:
                - 1
                # last
            # about b
            b: {url: http://h, disabled: false} # flow
        """,
    "flow.yaml": "tools: {mcpServers: {a: {command: x}, b: {url: 'http://h'}}} # c\n",
    "list.yaml": "mcpServers:\n  - name: a # first\n    command: x\n  # about b\n  - name: b\n    url: http://h\n",
    "toolbay.jsonc": """\
        // top
        {
          "agent": { "model": "offline" }, // same line
          "tools": {
            /* above */
            "mcpServers": {
              // about a
              "a": { "command": "x", "args": ["-y" , "pkg"] }, // odd
              // about b
              "b": {
                "url": "https://h/mcp", // u
              },
              // after b
            },
          },
        }
        // end
        """,
    "strict.json": (
        '{\n\t"mcpServers": {\n\t\t"a": {\n\t\t\t"command": "x"\n\t\t},\n\t\t"b": {\n\t\t\t"url": "http://h"\n\t\t}\n\t},\n'
        '\t"other": [1, 2]\n}'
    ),
    "small.json": '{"servers":{"a":{"command":"x"},"b":{"url":"http://h"}}}',
    "list.json": '{"mcpServers": [\n  {"name": "a", "command": "x"},\n  {"name": "b", "url": "http://h"} // last\n]}\n',
    "toolbay.toml": """\
        # top
        [agent]
        model = 'offline' # quoted

        # about a
        [tools.mcpServers.a]
        command = "x"
        args = [ "-y",  "pkg" ] # odd

        [tools.mcpServers.a.env]
        A = "1" # one

        # about b
        [tools.mcpServers.b]
        url = "https://h/mcp"

        # about the artifacts
        [tools.artifacts]
        maxFiles = 5
        # end
        """,
}


@pytest.fixture(params=sorted(FILES))
def file(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = tmp_path / request.param
    path.write_bytes(textwrap.dedent(FILES[request.param]).encode())
    return path


def data_of(path: Path) -> dict[str, Any]:
    return syntax.parse(syntax.decode(path.read_bytes(), path).text, syntax.kind_of(path), path)


def names(path: Path) -> list[str]:
    return list(config.load(path, environ={"T": "t"}).tools.mcp_servers)


def lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines()


def test_adding_changes_no_line_that_was_there_but_for_a_comma(file: Path) -> None:
    """CFG-8: comments, order, quotes and spaces stay; the new server comes last and means what was given."""
    before = lines(file)
    edit.add_server(file, "new one", ENTRY)
    found = config.load(file, environ={"T": "t"})
    server = found.tools.mcp_servers["new one"]
    assert isinstance(server, config.ServerConfig)
    assert (server.args, server.env) == (tuple(ENTRY["args"]), {"TOKEN": "t"})
    assert names(file) == ["a", "b", "new one"]
    left = lines(file)
    for line in before:
        if len(before) > 1 and "flow" not in file.name:
            assert line in left or f"{line}," in left or line.replace("}", "},", 1) in left, line


def test_adding_and_removing_gives_the_same_bytes_back(file: Path) -> None:
    """CFG-8: an edit touches what it must and nothing else."""
    before = file.read_bytes()
    edit.add_server(file, "new one", ENTRY)
    edit.set_enabled(file, "new one", enabled=False)
    edit.set_enabled(file, "new one", enabled=True)
    edit.remove_server(file, "new one")
    assert file.read_bytes() == before


def test_removing_keeps_the_comments_of_the_others(file: Path) -> None:
    """CFG-8: the comment above the next server is the next server's."""
    about_b = [line.strip() for line in lines(file) if "about b" in line or "top" in line or "end" in line]
    edit.remove_server(file, "a")
    assert names(file) == ["b"]
    assert [line.strip() for line in lines(file) if "about b" in line or "top" in line or "end" in line] == about_b
    edit.remove_server(file, "b")
    assert names(file) == []
    edit.add_server(file, "c", ENTRY)
    assert names(file) == ["c"]


def test_switching_changes_one_key(file: Path) -> None:
    """CFG-8: off and on again; everything else in the data is as it was."""
    before = data_of(file)
    for name in ("a", "b"):
        edit.set_enabled(file, name, enabled=False)
        assert config.load(file).tools.mcp_servers[name].disabled is True  # type: ignore[union-attr]
        edit.set_enabled(file, name, enabled=True)
        assert config.load(file).tools.mcp_servers[name].disabled is False  # type: ignore[union-attr]
    after = str(data_of(file)).replace(", 'disabled': False", "")
    assert after == str(before).replace(", 'disabled': False", "")


def test_in_toml_what_is_new_stands_above_the_comment_of_the_next_table(tmp_path: Path) -> None:
    """CFG-8: the library alone would put it between a comment and what the comment is about."""
    path = tmp_path / "toolbay.toml"
    path.write_text(textwrap.dedent(FILES["toolbay.toml"]), encoding="utf-8")
    edit.set_enabled(path, "b", enabled=False)
    edit.add_server(path, "new", {"command": "x"})
    after = 'url = "https://h/mcp"\ndisabled = true\n\n[tools.mcpServers.new]\ncommand = "x"\n\n# about the artifacts\n[tools.artifacts]\n'
    assert after in path.read_text(encoding="utf-8")


@pytest.mark.parametrize("switches", [{"enabled": False}, {"isActive": False}, {"quarantined": True}, {"disabled": True, "enabled": False}])
def test_switching_uses_the_switch_that_is_there(tmp_path: Path, switches: dict[str, bool]) -> None:
    """CFG-8: an entry with `enabled` is not given a `disabled` that contradicts it."""
    path = tmp_path / "c.yaml"
    edit.add_server(path, "a", {"command": "x", **switches})
    edit.set_enabled(path, "a", enabled=True)
    found = config.load(path)
    assert found.tools.mcp_servers["a"].disabled is False  # type: ignore[union-attr]
    assert not found.problems
    assert set(data_of(path)["tools"]["mcpServers"]["a"]) == {"command", *switches}


def test_replacing_keeps_the_place(file: Path) -> None:
    """CFG-8: the order of the servers is the person's."""
    edit.add_server(file, "a", ENTRY, replace=True)
    assert names(file)[0] == "a" or file.suffix == ".toml"
    assert config.load(file, environ={"T": "t"}).tools.mcp_servers["a"].command == "npx"  # type: ignore[union-attr]
    assert sorted(names(file)) == ["a", "b"]


@pytest.mark.parametrize("name", ["toolbay.yaml", "toolbay.json", "toolbay.toml", "sub/deep/toolbay.jsonc", ""])
def test_a_file_that_is_not_there_is_made_for_its_owner_only(tmp_path: Path, name: str) -> None:
    """CFG-8: it may come to hold secrets; a folder stands for the `toolbay.yaml` in it."""
    edit.add_server(tmp_path / name, "a", ENTRY)
    path = tmp_path / (name or "toolbay.yaml")
    assert names(path) == ["a"]
    assert list(data_of(path)) == ["tools"]
    if os.name == "posix":
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("c.yaml", "# only a comment\n"),
        ("c.yaml", "tools:\n"),
        ("c.yaml", "tools:\n  mcpServers: # none yet\nagent: {}\n"),
        ("c.yaml", "mcpServers: {} # none yet\n"),
        ("c.yaml", "tools: null"),
        ("c.yaml", "{}"),
        ("c.yaml", "---\nagent:\n  model: x # no newline"),
        ("c.yaml", "tools: {}\nagent:\n- x\n"),
        ("c.yaml", "tools: [x]\n"),
        ("c.yaml", ""),
        ("c.json", ""),
        ("c.json", "{}"),
        ("c.json", '{"tools": null}'),
        ("c.json", "{\n  // none yet\n}\n"),
        ("c.json", '{"tools": {"mcpServers": {\n  // none yet\n}}}'),
        ("c.json", '{"tools": ["x"], "a": 1 /* c */}'),
        ("c.toml", ""),
        ("c.toml", "# only a comment\n"),
        ("c.toml", "[tools]\nresultBudget = 900\n"),
        ("c.toml", "tools = {resultBudget = 900}\n"),
        ("c.toml", "tools.resultBudget = 900"),
    ],
)
def test_a_file_without_servers_gets_its_first(tmp_path: Path, name: str, text: str) -> None:
    """CFG-8: wherever they may live, with everything kept that was there."""
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    path.chmod(0o640)
    edit.add_server(path, "a", ENTRY)
    assert names(path) == ["a"]
    for word in ("only a comment", "none yet", "no newline", "900", "/* c */"):
        assert (word in text) == (word in path.read_text(encoding="utf-8"))
    if os.name == "posix":
        assert stat.S_IMODE(path.stat().st_mode) == 0o640
    edit.remove_server(path, "a")
    assert names(path) == []


def test_bom_and_line_ends_stay(tmp_path: Path) -> None:
    """CFG-8: a file written on Windows goes on being one."""
    for name in ("toolbay.yaml", "toolbay.jsonc", "toolbay.toml"):
        path = tmp_path / name
        before = b"\xef\xbb\xbf" + textwrap.dedent(FILES[name]).replace("\n", "\r\n").encode()
        path.write_bytes(before)
        edit.add_server(path, "new", ENTRY)
        written = path.read_bytes()
        assert written.startswith(b"\xef\xbb\xbf")
        assert written.count(b"\n") == written.count(b"\r\n")
        edit.remove_server(path, "new")
        assert path.read_bytes() == before


@pytest.mark.skipif(os.name != "posix", reason="links need rights on Windows")
def test_a_link_is_followed_and_stays_a_link(tmp_path: Path) -> None:
    """CFG-8: dotfiles are linked; the file behind the link is written."""
    real, link = tmp_path / "real" / "r.yaml", tmp_path / "toolbay.yaml"
    real.parent.mkdir()
    link.symlink_to(real)
    edit.add_server(link, "a", ENTRY)
    edit.add_server(link, "b", ENTRY)
    assert link.is_symlink()
    assert names(real) == ["a", "b"]
    assert [path.name for path in real.parent.iterdir()] == ["r.yaml"]


def test_what_cannot_be_done_is_told_and_changes_nothing(tmp_path: Path) -> None:
    """CFG-8: taken names, unknown names, broken files, layouts that an edit would damage; no value is shown."""
    path = tmp_path / "c.yaml"
    for text, act, said in (
        ("mcpServers: {files: {command: canary-s3cret}}", lambda: edit.add_server(path, "files", ENTRY), "already a server `files`"),
        ("mcpServers: {files: {command: canary-s3cret}}", lambda: edit.remove_server(path, "fils"), "did you mean `files`"),
        ("mcpServers: {files: canary-s3cret}", lambda: edit.set_enabled(path, "files", enabled=False), "is no object"),
        ("mcpServers: {a: canary-s3cret", lambda: edit.add_server(path, "b", ENTRY), "line 1"),
        ("mcpServers: {}", lambda: edit.add_server(path, "", ENTRY), "needs a name"),
        ("mcpServers: {}", lambda: edit.add_server(path, "a", {"env": {"canary-s3cret": object()}}), "no JSON value"),
        ("x-a: &a {command: canary-s3cret}\nmcpServers:\n  a: *a\n", lambda: edit.set_enabled(path, "a", enabled=False), "by hand"),
        ("mcpServers:\n  a: &a {command: canary-s3cret}\n  b: *a\n", lambda: edit.remove_server(path, "a"), "by hand"),
        ("mcpServers:\n  a: &a\n    command: canary-s3cret\n  b: *a\n", lambda: edit.set_enabled(path, "a", enabled=False), "by hand"),
    ):
        path.write_text(text, encoding="utf-8")
        with pytest.raises(ConfigError, match=said) as caught:
            act()
        assert "canary-s3cret" not in str(caught.value)
        assert path.read_text(encoding="utf-8") == text
    path.write_text("x-a: &a {command: x}\nmcpServers:\n  a: *a # c\n  b: *a\n", encoding="utf-8")
    edit.remove_server(path, "a")
    edit.add_server(path, "c", ENTRY)
    assert names(path) == ["b", "c"]


KEYS = st.text(alphabet=st.characters(exclude_categories=["Cs", "Cc", "Zl", "Zp"]), min_size=1, max_size=12)
TEXTS = st.text(
    alphabet=st.characters(exclude_categories=["Cs"], exclude_characters="\r\x85\u2028\u2029\ufeff\x7f", min_codepoint=32), max_size=12
)
ENTRIES = st.fixed_dictionaries(
    {"command": TEXTS},
    optional={
        "args": st.lists(TEXTS, max_size=3),
        "env": st.dictionaries(KEYS, TEXTS, max_size=3),
        "disabled": st.booleans(),
        "toolTimeout": st.integers(1, 9),
    },
)


@given(name=KEYS, entry=ENTRIES, base=st.sampled_from(sorted(FILES)))
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_any_entry_under_any_name_comes_back_and_the_others_are_untouched(
    tmp_path: Path, name: str, entry: dict[str, Any], base: str
) -> None:
    """CFG-8: names with dots, quotes, colons; values that look like numbers, comments or references."""
    path = tmp_path / base
    path.write_bytes(textwrap.dedent(FILES[base]).encode())
    before = path.read_bytes()
    taken = name in {"a", "b"}
    edit.add_server(path, name, entry, replace=taken)
    draft = edit.Draft(path)
    assert draft.entry(name) == entry
    for other in {"a", "b"} - {name}:
        assert draft.entry(other)
    if not taken:
        edit.remove_server(path, name)
        assert path.read_bytes() == before


def test_of_two_editors_at_once_one_wins_whole_and_the_other_is_told(file: Path) -> None:
    """CFG-8: both read, both change, the second to write is refused and its file is the first one's, whole."""
    first, second = edit.Draft(file), edit.Draft(file)
    first.add("first", ENTRY)
    second.add("second", ENTRY)
    second.remove("a")
    first.save()
    won = file.read_bytes()
    with pytest.raises(ConfigError, match="changed by someone else"):
        second.save()
    assert file.read_bytes() == won
    assert names(file) == ["a", "b", "first"]
    assert [path.name for path in file.parent.iterdir()] == [file.name]


def test_a_file_that_appears_or_vanishes_meanwhile_is_noticed(tmp_path: Path) -> None:
    """CFG-8: no file is a state too."""
    path = tmp_path / "c.yaml"
    draft = edit.Draft(path)
    draft.add("a", ENTRY)
    path.write_text("mcpServers: {}\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="changed by someone else"):
        draft.save()
    draft = edit.Draft(path)
    draft.add("a", ENTRY)
    path.unlink()
    with pytest.raises(ConfigError, match="changed by someone else"):
        draft.save()
    assert not path.exists()


EDITOR = """
import sys
from pathlib import Path
from toolbay.config import edit
from toolbay.errors import ConfigError
sys.stdin.readline()
for number in range(15):
    while True:
        try:
            edit.add_server(Path(sys.argv[1]), f"{sys.argv[2]}{number}", {"command": "x"})
            break
        except ConfigError as error:
            assert "changed by someone else" in str(error), error
"""


def test_editors_in_several_processes_lose_no_change(tmp_path: Path) -> None:
    """CFG-8: whoever is told tries again; in the end everything is there, and nothing but the file."""
    path = tmp_path / "toolbay.yaml"
    editors = [subprocess.Popen([sys.executable, "-c", EDITOR, str(path), name], stdin=subprocess.PIPE) for name in "pqr"]
    for editor in editors:
        assert editor.stdin
        editor.stdin.write(b"\n")
        editor.stdin.close()
    assert [editor.wait(timeout=60) for editor in editors] == [0, 0, 0]
    assert sorted(names(path)) == sorted(f"{name}{number}" for name in "pqr" for number in range(15))
    assert [left.name for left in tmp_path.iterdir() if left.suffix != ".lock"] == ["toolbay.yaml"]


KILLED = """
import os, signal, sys
from pathlib import Path
from toolbay.config import edit
sys.addaudithook(lambda event, args: os.kill(os.getpid(), signal.SIGKILL) if event == "os.rename" else None)
edit.add_server(Path(sys.argv[1]), "b", {"command": "x"})
"""


@pytest.mark.skipif(os.name != "posix", reason="needs SIGKILL")
def test_a_kill_between_write_and_rename_leaves_the_old_file(tmp_path: Path) -> None:
    """CFG-8: the old file whole; what the killed one left is cleared by the next edit."""
    path = tmp_path / "toolbay.yaml"
    edit.add_server(path, "a", ENTRY)
    before = path.read_bytes()
    done = subprocess.run([sys.executable, "-c", KILLED, str(path)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert path.read_bytes() == before
    assert len(list(tmp_path.iterdir())) == 2
    edit.add_server(path, "c", ENTRY)
    assert names(path) == ["a", "c"]
    assert list(tmp_path.iterdir()) == [path]


FULL = """
import resource, signal, sys
from pathlib import Path
from toolbay.config import edit
from toolbay.errors import ConfigError
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (8, 8))
try:
    edit.add_server(Path(sys.argv[1]), "b", {"command": "canary-s3cret"})
except ConfigError as error:
    print(error)
"""


@pytest.mark.skipif(os.name != "posix", reason="needs a limit on the size of files")
def test_a_disk_that_takes_no_more_leaves_the_old_file(tmp_path: Path) -> None:
    """CFG-8: a write that breaks off is one sentence, the file is as it was, and nothing is left beside it."""
    path = tmp_path / "toolbay.yaml"
    edit.add_server(path, "a", ENTRY)
    before = path.read_bytes()
    done = subprocess.run([sys.executable, "-c", FULL, str(path)], check=True, capture_output=True, text=True)
    assert "cannot be written" in done.stdout
    assert "canary-s3cret" not in done.stdout + done.stderr
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_real_files_of_other_clients_can_be_edited(shared_data: Path, tmp_path: Path) -> None:
    """CFG-8: in every file that can be read, a server is added and taken out again, and every other one switched and removed."""
    for path in sorted((shared_data / "configs").iterdir()):
        if path.suffix == ".md" or path.name.startswith("04-"):
            continue
        copy = tmp_path / path.name
        copy.write_bytes(path.read_bytes())
        others = names(copy)
        edit.add_server(copy, "new one", ENTRY)
        assert names(copy) == [*others, "new one"]
        edit.remove_server(copy, "new one")
        if others:
            assert copy.read_bytes().rstrip() == path.read_bytes().rstrip()
        for name in others:
            edit.set_enabled(copy, name, enabled=False)
            edit.remove_server(copy, name)
        assert names(copy) == []
