"""What is said of a command before it is started: where it is, what it is taken for, what it cannot run with."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from diagnosis.patients import errors, only, program, the_error
from support.processes import alive
from support.servers import config, stdio
from toolbay.diagnosis import programs
from toolbay.diagnosis.findings import Finding, Level, Notes
from toolbay.diagnosis.launching import examine

pytestmark = [pytest.mark.anyio, pytest.mark.skipif(os.name == "nt", reason="these programs are scripts of a POSIX shell")]


class Place:
    """A home with nothing in it and a PATH with one folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.home = root / "home"
        self.bin = root / "bin"
        self.home.mkdir()
        self.bin.mkdir()

    async def look(self, command: str, *args: str, **more: Any) -> Notes:
        notes = Notes(server="s")
        entry = config(stdio(command, *args), **more)
        await examine(entry, {"HOME": str(self.home), "PATH": str(self.bin)}, notes)
        return notes

    async def finding(self, command: str, *args: str, **more: Any) -> Finding:
        return the_error(await self.look(command, *args, **more))


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


async def test_a_command_that_is_there_and_can_be_run_is_no_news(place: Place) -> None:
    """TRA-8: a program on the PATH, and one by its full path."""
    file = program(place.bin / "weather")
    assert (await place.look("weather")).findings == []
    assert (await place.look(str(file))).findings == []


@pytest.mark.parametrize(
    "folder",
    [".local/bin", ".nvm/versions/node/v22.1.0/bin", ".volta/bin", ".asdf/shims", ".pyenv/shims", ".cargo/bin", ".bun/bin"],
)
async def test_a_command_beside_the_path_is_found_where_such_programs_are(place: Place, folder: str) -> None:
    """TRA-8: not on the PATH, and where it is: what version managers put into the home folder."""
    file = program(place.home / folder / "weatherd")
    finding = await place.finding("weatherd")
    assert "its command weatherd was not found" in finding.what
    assert str(place.bin) in finding.why
    assert f"it is at {file}" in finding.mend
    assert f"add {file.parent} to your PATH" in finding.mend


@pytest.mark.parametrize("folder", ["node_modules/.bin", ".venv/bin", "venv/bin"])
async def test_a_command_of_the_project_is_found_in_its_folder(place: Place, folder: str) -> None:
    """TRA-8: what npm and a virtual environment install belongs to the folder that the server runs in."""
    project = place.root / "project"
    file = program(project / folder / "weatherd")
    finding = await place.finding("weatherd", cwd=str(project))
    assert f"it is at {file}" in finding.mend


async def test_a_launcher_of_windows_is_found_by_its_name_without_the_ending(tmp_path: Path) -> None:
    """TRA-4: npm installs `name.cmd` there."""
    file = program(tmp_path / "weatherd.cmd")
    assert programs.elsewhere("weatherd", [tmp_path]) == file
    assert programs.neighbour("weatherd.cmd", "", [program(tmp_path / "weatherd").parent]) in {"weatherd", "weatherd.cmd"}


@pytest.mark.parametrize(
    ("asked", "there"), [("wether-server", "weather-server"), ("Weather-Server", "weather-server"), ("python", "python3")]
)
async def test_a_misspelt_command_has_the_name_that_is_there(place: Place, asked: str, there: str) -> None:
    """TRA-8: letters, case, and the two names of Python."""
    program(place.bin / there)
    finding = await place.finding(asked)
    # This machine's own folders may have a python too.
    assert f"did you mean {there}?" in finding.mend or (asked == "python" and "it is at" in finding.mend)


async def test_a_launcher_that_is_not_there_says_what_brings_it(place: Place) -> None:
    """TRA-8: npx comes with Node.js, uvx with uv."""
    finding = await place.finding("uvx", "mcp-server-time")
    assert "install uv" in finding.mend or "it is at" in finding.mend
    assert programs.install("npx") == "install Node.js, version 20 or newer, which brings node, npm and npx"


async def test_a_path_of_the_entry_that_hides_the_command_is_named(place: Place) -> None:
    """TRA-5: `env` wins over the inherited PATH, also by mistake."""
    file = program(place.bin / "weatherd")
    finding = await place.finding("weatherd", env={"PATH": "/nowhere/bin"})
    assert "/nowhere/bin" in finding.why
    assert "remove PATH from `env`" in finding.mend
    assert str(file) in finding.mend


async def test_arguments_in_the_command_are_taken_apart(place: Place) -> None:
    """CFG-6: other clients take a whole line as `command`."""
    finding = await place.finding("npx -y weather-server")
    assert "holds arguments" in finding.why
    assert 'write `command: npx`, and ["-y", "weather-server"] as `args`' in finding.mend


async def test_a_file_that_is_not_there_is_told_from_one_that_nearly_is(place: Place) -> None:
    """TRA-8: a path with a typing error."""
    program(place.root / "servers" / "weather.sh")
    finding = await place.finding(str(place.root / "servers" / "wether.sh"))
    assert "there is no file" in finding.why
    assert str(place.root / "servers" / "weather.sh") in finding.mend


async def test_a_file_that_is_not_executable_says_how_it_can_be(place: Place) -> None:
    """TRA-8: chmod, or the interpreter as the command."""
    file = program(place.root / "server.py", "print(1)\n", mode=0o644)
    finding = await place.finding(str(file))
    assert "not executable" in finding.why
    assert f"chmod +x {file}" in finding.mend
    assert "`command: python3`" in finding.mend


@pytest.mark.parametrize("command", ["x" * 5000, f"/{'x' * 5000}"])
async def test_a_name_that_the_system_refuses_to_look_for_ends_no_examination(command: str) -> None:
    """TRA-8: of a whole configuration one entry may be anything; the start itself says what the system says."""
    assert "could not be started" in the_error(await only(stdio(command))).what


async def test_a_folder_is_no_command(place: Place) -> None:
    """TRA-8: the folder of a server is often taken for its program."""
    finding = await place.finding(str(place.home))
    assert "it is a folder" in finding.why


async def test_a_script_without_an_interpreter_is_told(place: Place) -> None:
    """TRA-8: the system cannot run what names nobody to run it."""
    file = program(place.root / "server.js", "console.log(1)\n")
    finding = await place.finding(str(file))
    assert "first line names no interpreter" in finding.why
    assert f"write `command: node` with {file} as the first of `args`" in finding.mend


@pytest.mark.parametrize("line", ["#!/usr/bin/env nodejs-99", "#!/usr/bin/env -S nodejs-99 --quiet", "#!/opt/there-is-none/nodejs-99"])
async def test_a_script_whose_interpreter_is_missing_names_it(place: Place, line: str) -> None:
    """TRA-8: npx is such a script, and says nothing but "No such file" where node is missing."""
    file = program(place.bin / "launcher", f"{line}\n")
    finding = await place.finding("launcher")
    assert "nodejs-99, which is not there" in finding.why
    assert str(file) in finding.why
    assert "install" in finding.mend


async def test_a_missing_folder_is_told_with_the_one_that_is_there(place: Place) -> None:
    """TRA-8: `cwd`."""
    (place.root / "project").mkdir()
    program(place.bin / "weatherd")
    finding = await place.finding("weatherd", cwd=str(place.root / "projekt"))
    assert "it does not exist" in finding.why
    assert f"correct `cwd`; there is {place.root / 'project'}" in finding.mend


@pytest.mark.parametrize(
    ("flags", "said"), [(("--rm",), True), (("--rm", "-i"), False), (("-i", "--rm"), False), (("--interactive",), False)]
)
async def test_a_container_without_input_is_told(place: Place, flags: tuple[str, ...], said: bool) -> None:
    """TRA-2: `docker run` without -i closes the pipe that the server is spoken to through."""
    program(place.bin / "docker")
    notes = await place.look("docker", "run", *flags, "mcp/time")
    assert bool(errors(notes)) is said
    if said:
        assert "add -i behind run" in the_error(notes).mend


async def test_a_container_with_a_terminal_is_warned_of(place: Place) -> None:
    """TRA-7: -it is what everybody types at a prompt."""
    program(place.bin / "docker")
    (finding,) = (await place.look("docker", "run", "-it", "mcp/time")).findings
    assert finding.level is Level.WARNING
    assert "remove -t" in finding.mend


async def test_a_node_that_is_too_old_for_the_package_is_told(place: Place) -> None:
    """TRA-8: what the package's `engines` want against what the program says of itself."""
    node = program(place.bin / "node", "#!/bin/sh\necho v16.3.0\n")
    package = place.root / "server"
    (package / "dist").mkdir(parents=True)
    (package / "package.json").write_text('{"name": "weather", "engines": {"node": ">=20"}}')
    finding = await place.finding("node", str(package / "dist" / "index.js"))
    assert f"{node} is v16.3.0, and the package weather wants >=20" in finding.why
    assert "install a Node.js that is >=20" in finding.mend
    program(node, "#!/bin/sh\necho v22.3.0\n")
    assert (await place.look("node", str(package / "dist" / "index.js"))).findings == []


async def test_a_node_that_says_no_end_of_a_version_is_left(place: Place, tmp_path: Path) -> None:
    """TRA-8, LIF-1: it is read as far as a version can go, and what it has started ends with it."""
    package, pids = place.root / "server", tmp_path / "pids"
    package.mkdir()
    (package / "package.json").write_text('{"name": "weather", "engines": {"node": ">=20"}}')
    program(place.bin / "node", f"#!/bin/sh\n/bin/sleep 600 &\necho $! > {pids}\nwhile :; do echo no version, but very much text; done\n")
    assert (await place.look("node", str(package / "index.js"))).findings == []
    assert not alive(int(pids.read_text()))


async def test_a_program_in_a_sandbox_says_its_version_in_there(place: Place, tmp_path: Path) -> None:
    """SEC: who is not trusted as a server is not trusted with `--version` either."""
    package, trace = place.root / "server", tmp_path / "trace"
    package.mkdir()
    (package / "package.json").write_text('{"name": "weather", "engines": {"node": ">=20"}}')
    program(place.bin / "node", f"#!/bin/sh\necho was here > {trace}\necho v16.3.0\n")
    await place.look("node", str(package / "index.js"), sandbox="strict")
    assert not trace.exists()


@pytest.mark.parametrize("text", ["[" * 500_000, '{"engines": {"node": "' + ">" * 900_000 + '"}}'])
async def test_a_package_whose_description_is_an_attack_is_passed_over(place: Place, text: str) -> None:
    """TRA-8: a package is a stranger's."""
    program(place.bin / "node", "#!/bin/sh\necho v16.3.0\n")
    package = place.root / "server"
    package.mkdir()
    (package / "package.json").write_text(text)
    assert (await place.look("node", str(package / "index.js"))).findings == []


async def test_what_npx_has_fetched_before_tells_which_node_it_wants(place: Place) -> None:
    """TRA-8: the cache of npx."""
    program(place.bin / "node", "#!/bin/sh\necho v16.3.0\n")
    program(place.bin / "npx")
    folder = place.home / ".npm" / "_npx" / "1234" / "node_modules" / "@some" / "weather"
    folder.mkdir(parents=True)
    (folder / "package.json").write_text('{"name": "@some/weather", "engines": {"node": "^18.2 || >=20"}}')
    finding = await place.finding("npx", "-y", "@some/weather@1.2.3")
    assert "@some/weather wants ^18.2 || >=20" in finding.why
