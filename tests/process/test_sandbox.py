"""Servers that are shut in: what the walls are made of, and what real servers find behind them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest

from support import servers
from support.connections import linked, raw
from support.processes import MARK, children, eventually, leftovers, marked
from toolbay.config.models import ServerConfig
from toolbay.errors import LaunchFailed
from toolbay.upstream import keeping
from toolbay.upstream.keeper import FILES, OOM_SCORE
from toolbay.upstream.launch import Launch, prepare
from toolbay.upstream.process import spawn
from toolbay.upstream.sandbox import Walls, argv, confined, walls

pytestmark = [pytest.mark.anyio, pytest.mark.skipif(os.name == "nt", reason="paths and limits are POSIX")]
BWRAP = shutil.which("bwrap")


def _why_not() -> str:
    if BWRAP is None:
        return "bubblewrap is not installed"
    tried = subprocess.run([BWRAP, "--unshare-all", "--ro-bind", "/", "/", "true"], capture_output=True, text=True, check=False)
    return f"bubblewrap cannot be used here: {tried.stderr.strip()}" if tried.returncode else ""


WHY_NOT = _why_not()
strict = pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)
linux = pytest.mark.skipif(not keeping.usable(), reason="limits are set by the keeper, on Linux")


def config(sandbox: str = "strict", **more: Any) -> ServerConfig:
    return servers.config(servers.stdio("server"), sandbox=sandbox, **more)


def launch(*command: str, home: Path | str = "/home/u", cwd: str | None = None) -> Launch:
    return Launch(argv=command, env={"HOME": str(home), "PATH": "/usr/bin:/bin"}, cwd=cwd, shown=command[0])


# -- what the walls are made of ----------------------------------------------------------------------------------------


def pairs(words: tuple[str, ...], option: str) -> list[str]:
    return [words[index + 1] for index, word in enumerate(words) if word == option]


def test_the_walls_end_with_us_and_have_no_door() -> None:
    """SEC-34: no shared namespace, no network, no terminal, no privileges, no fate of its own."""
    words = argv("/usr/bin/bwrap", Walls(home="/home/u", folder="/home/u"), ("/usr/bin/server", "--bind", "x"))
    options, command = words[: words.index("--")], words[words.index("--") + 1 :]
    assert command == ("/usr/bin/server", "--bind", "x"), "what looks like an option of the walls is the server's argument"
    assert {"--unshare-all", "--die-with-parent", "--new-session", "--cap-drop"} <= set(options)
    assert "--share-net" not in options
    assert pairs(options, "--chdir") == ["/home/u"]
    assert "--share-net" in argv("/usr/bin/bwrap", Walls(network=True), ("x",))


def test_mounts_go_from_the_outside_in_and_what_may_be_written_wins() -> None:
    """SEC-34: a later mount covers an earlier one, so their order decides what there is."""
    inside = Walls(
        readable=frozenset({"/usr", "/home/u/app", "/home", "/srv/a"}), writable=frozenset({"/srv/a", "/home/u/app/data"}), home="/home/u"
    )
    words = argv("bwrap", inside, ("x",))
    order = [(words[index - 1], word) for index, word in enumerate(words) if words[index - 1] in ("--ro-bind", "--bind", "--tmpfs")]
    assert order == [
        ("--tmpfs", "/tmp"),
        ("--ro-bind", "/home"),
        ("--tmpfs", "/home/u"),
        ("--ro-bind", "/home/u/app"),
        ("--bind", "/home/u/app/data"),
        ("--ro-bind", "/srv/a"),
        ("--bind", "/srv/a"),
        ("--ro-bind", "/usr"),
    ]


def test_the_environment_is_in_no_argument() -> None:
    """SEC-17, SEC-32: arguments can be read by everybody on the machine."""
    secret = Launch(argv=("/bin/true",), env={"HOME": "/home/u", "API_KEY": "canary-4711", "TMPDIR": "/var/canary"}, cwd=None, shown="true")
    words = confined(secret, config(), find=lambda _: "/usr/bin/bwrap", platform="linux").argv
    assert "canary" not in " ".join(words)
    assert words[words.index("--setenv") + 1 :][:2] == ("TMPDIR", "/tmp")


def test_a_program_brings_its_own_package_and_no_home(tmp_path: Path) -> None:
    """SEC-34: the folder that is known as a package by what lies in it, else the file alone."""
    home = tmp_path / "u"
    (home / "node_modules" / "a" / "dist").mkdir(parents=True)
    script = home / "node_modules" / "a" / "dist" / "index.js"
    script.write_text("#!/usr/bin/env node\n")
    alone = home / "server.py"
    alone.touch()
    project = home / "project"
    (project / "src").mkdir(parents=True)
    (project / "pyproject.toml").touch()
    inner = project / "src" / "main.py"
    inner.touch()
    (home / "package.json").touch()
    (tmp_path / "package.json").touch()

    def readable(*words: str | Path) -> set[str]:
        found = walls(launch("/usr/bin/env", *map(str, words), home=home), config()).readable
        return {path.removeprefix(str(home)) for path in found if path.startswith(str(tmp_path))}

    assert readable("--flag", script) == {"/node_modules"}
    assert readable(alone) == {"/server.py"}, "a home is no package, whatever lies in it"
    assert readable(inner) == {"/project"}
    assert readable("--config", alone, inner) == {"/server.py"}, "further arguments are not looked at"
    assert readable("no-such-file") == set()


def test_an_environment_for_python_brings_the_interpreter_that_it_was_made_with(tmp_path: Path) -> None:
    """SEC-34: through links and first lines, wherever they lead."""
    home = tmp_path / "u"
    base, env, shims = home / "pythons" / "3.12", home / ".local" / "share" / "tools" / "x", home / ".local" / "bin"
    for folder in (base / "bin", base / "lib" / "python3.12", env / "bin", shims):
        folder.mkdir(parents=True)
    (base / "lib" / "python3.12" / "os.py").touch()
    (base / "bin" / "python3.12").write_bytes(b"\x7fELF")
    (env / "pyvenv.cfg").touch()
    (env / "bin" / "python").symlink_to(base / "bin" / "python3.12")
    (env / "bin" / "x").write_text(f"#!{env}/bin/python\n")
    (shims / "x").symlink_to("../share/tools/x/bin/x")
    (home / ".local" / "lib" / "python3.12").mkdir(parents=True)
    (home / ".local" / "lib" / "python3.12" / "os.py").touch()
    found = walls(launch(str(shims / "x"), home=home), config()).readable
    assert {path for path in found if path.startswith(str(tmp_path))} == {str(shims / "x"), str(env), str(base)}


def test_what_an_entry_declares_is_let_in(tmp_path: Path) -> None:
    """SEC-34: files and folders, from / or from the server's home; written only where that is said."""
    home, folder = tmp_path / "u", tmp_path / "work"
    (home / "notes").mkdir(parents=True)
    folder.mkdir()
    (tmp_path / "odd:name").touch()
    found = walls(
        launch("/usr/bin/env", home=home, cwd=str(folder)),
        config(sandbox_paths=("~/notes:rw", f"{tmp_path}/odd:name", f"{tmp_path}:ro"), sandbox_network=True),
    )
    assert found.writable == {str(home / "notes")}
    assert {str(tmp_path), f"{tmp_path}/odd:name", str(folder)} <= found.readable
    assert (found.home, found.folder, found.network) == (str(home), str(folder), True)


@pytest.mark.parametrize(("path", "why"), [("notes:rw", "no full path"), ("/no/such/folder", "does not exist"), ("", "no full path")])
def test_a_declared_path_that_is_none_is_told(path: str, why: str) -> None:
    """SEC-34: fail closed, with the mend."""
    with pytest.raises(LaunchFailed, match=why) as caught:
        walls(launch("/usr/bin/env"), config(sandbox_paths=(path,)))
    assert not caught.value.retriable


def test_without_walls_a_strict_server_is_not_started() -> None:
    """SEC-34: fail closed: where there is no bubblewrap, and where there can be none."""
    with pytest.raises(LaunchFailed, match="needs bubblewrap: install it") as caught:
        confined(launch("/usr/bin/env"), config(), find=lambda _: None, platform="linux")
    assert not caught.value.retriable
    with pytest.raises(LaunchFailed, match="on Linux only"):
        confined(launch("/usr/bin/env"), config(), find=lambda _: "/usr/bin/bwrap", platform="darwin")


def test_other_levels_change_no_command() -> None:
    """SEC-34: `none` is nothing; `soft` is limits that the keeper sets."""
    made = launch("/usr/bin/env")
    assert confined(made, config("none")) is made
    soft = confined(made, config("soft"), find=lambda _: None, platform="darwin")
    assert (soft.argv, soft.confinement) == (made.argv, "soft")


# -- real servers behind them ------------------------------------------------------------------------------------------

LOOK = """
import json, os, resource, socket, sys
def tried(action):
    try: return str(action())
    except OSError as error: return type(error).__name__
seen = dict(
    env=sorted(os.environ), cwd=os.getcwd(), home=os.listdir(os.environ["HOME"]), pids=[n for n in os.listdir("/proc") if n.isdigit()],
    etc=sorted(os.listdir("/etc")), root=sorted(os.listdir("/")), uid=os.getuid(),
    shadow=tried(lambda: open("/etc/shadow").read(1)),
    usr=tried(lambda: open("/usr/x", "w")),
    temporary=tried(lambda: open(os.path.join(os.environ.get("TMPDIR", "/tmp"), "x"), "w").name),
    network=tried(lambda: socket.create_connection(("127.0.0.1", int(sys.argv[1])), 2).getpeername()),
    files=resource.getrlimit(resource.RLIMIT_NOFILE), core=resource.getrlimit(resource.RLIMIT_CORE),
    oom=open("/proc/self/oom_score_adj").read().strip(),
    status={k: v.strip() for k, _, v in (line.partition(":") for line in open("/proc/self/status")) if k in ("NoNewPrivs", "CapEff")},
    declared=[tried(lambda: open(path, "a").name) + " " + tried(lambda: open(path).read()) for path in sys.argv[2:]],
)
print(json.dumps(seen), flush=True)
"""


async def look(sandbox: str, port: int, *paths: Path, env: dict[str, str] | None = None, **more: Any) -> dict[str, Any]:
    """What a real server of that confinement sees of the world."""
    entry = servers.stdio(sys.executable, "-IS", "-c", LOOK, str(port), *paths, env=env)
    made = servers.config(entry, sandbox=sandbox, **more)
    text = b""
    with anyio.fail_after(30):
        async with spawn(confined(prepare(made), made)) as child:
            try:
                while b"\n" not in text:
                    text += await child.receive()
            except anyio.EndOfStream:
                pytest.fail(child.describe_end())
    assert not children()
    return json.loads(text)


@linux
async def test_p18_a_soft_server_has_limits() -> None:
    """SEC-34: no core files, a bounded number of files, first to go when memory runs out, nothing gained by setuid programs."""
    seen = await look("soft", 1)
    assert seen["core"] == [0, 0]
    assert seen["files"][1] <= FILES
    assert seen["oom"] == OOM_SCORE.decode()
    assert seen["status"]["NoNewPrivs"] == "1"
    free = await look("none", 1)
    assert free["oom"] != seen["oom"]
    assert free["status"]["NoNewPrivs"] == "0"


async def test_limits_that_cannot_be_set_are_told(caplog: pytest.LogCaptureFixture) -> None:
    """SEC-34: without a keeper `soft` is not silently nothing."""
    made = servers.config(servers.stdio(sys.executable, "-IS", "-c", ""), sandbox="soft")
    async with spawn(confined(prepare(made), made), kept=False) as child:
        await child.exited.wait()
    assert "runs without its limits" in caplog.text


@strict
async def test_a_strict_server_sees_nothing_but_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SEC-34: reads no home, no secrets of the system, writes nothing but its temporary files, connects nowhere, sees nobody."""
    home = tmp_path / "home of u"
    (home / ".ssh").mkdir(parents=True)
    (home / ".ssh" / "id").write_text("secret")
    (home / "notes").write_text("n")
    (home / "log").write_text("l")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "elsewhere"))
    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener:
        port = listener.extra(anyio.abc.SocketAttribute.local_port)
        seen = await look(
            "strict",
            port,
            home / ".ssh" / "id",
            home / "notes",
            home / "log",
            sandbox_paths=("~/notes", f"{home}/log:rw"),
            env={"OWN": "1"},
        )
        assert seen["network"] != str(("127.0.0.1", port))
        free = await look("strict", port, sandbox_network=True)
        assert free["network"] == str(("127.0.0.1", port))
    assert seen["declared"][1:] == ["OSError n", f"{home}/log l"], "read, and read and written"
    assert "secret" not in seen["declared"][0]
    assert set(seen["home"]) == {"notes", "log"}
    assert seen["cwd"] == str(home)
    assert seen["shadow"] == "FileNotFoundError"
    assert seen["usr"] == "OSError"
    assert seen["temporary"] == "/tmp/x"
    assert not (tmp_path / "elsewhere").exists()
    assert {"OWN", keeping.MARK, "HOME", "PATH"} <= set(seen["env"])
    assert len(seen["pids"]) <= 3, "its own processes alone"
    assert seen["uid"] == os.getuid()
    assert int(seen["status"]["CapEff"], 16) == 0
    assert seen["status"]["NoNewPrivs"] == "1"
    assert seen["core"] == [0, 0]
    assert not {"shadow", "ssh", "hostname"} & set(seen["etc"])


@strict
async def test_a_strict_server_is_a_server_like_others() -> None:
    """SEC-34, LIF-1: it answers through the walls, is ended with all that it started, and its exit code is told."""
    env = marked()
    async with linked({**raw("--ignore-sigterm", "--ignore-eof", "--spawn-child", env=env), "sandbox": "strict"}) as link:
        assert link.state == "ready", link.connection.error
        assert await link.call("echo", {"text": "through"}) == "through"
        assert len(leftovers(env[MARK])) >= 2
    await eventually(lambda: not leftovers(env[MARK]), "the end of all")
    async with linked({**raw("--exit-at-start", "3", "--stderr", "no key"), "sandbox": "strict"}) as link:
        assert link.state == "failed"
        assert "exit code 3" in str(link.connection.error)
        assert "no key" in str(link.connection.error)


@strict
async def test_a_strict_server_of_node_runs(tmp_path: Path) -> None:
    """SEC-34: a package with all that it depends on, and a folder that it may write."""
    entry = {**servers.filesystem(tmp_path), "sandbox": "strict", "sandboxPaths": [f"{tmp_path}:rw"]}
    async with linked(entry) as link:
        assert link.state == "ready", link.connection.error
        await link.call("write_file", {"path": str(tmp_path / "a.txt"), "content": "written"})
    assert (tmp_path / "a.txt").read_text() == "written"


async def test_a_strict_server_is_refused_where_bubblewrap_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SEC-34: through the whole connection: failed at once with the mend, and never run."""
    monkeypatch.setenv("PATH", str(tmp_path))
    effect = tmp_path / "ran"
    code = f"open({str(effect)!r}, 'w')"
    async with linked({**servers.stdio(sys.executable, "-IS", "-c", code), "sandbox": "strict"}) as link:
        assert link.state == "failed"
        assert "bubblewrap" in str(link.connection.error)
    assert not effect.exists()
