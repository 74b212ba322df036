"""`toolbay config`: where the configuration is, what it says, whether it is sound."""

from __future__ import annotations

from typing import Annotated

import typer

from toolbay.cli.invocation import DONE, FAILED, invocation
from toolbay.cli.pinning import UNPINNED_HINT
from toolbay.cli.terminal import DIM, GREEN, RED, YELLOW, plural

group = typer.Typer(rich_markup_mode=None, no_args_is_help=True)


def register(program: typer.Typer) -> None:
    program.add_typer(group, name="config", help="The configuration: its place, its contents, its faults.")


@group.command("path", help="The file in use, or where it would be made.")
def path(context: typer.Context, as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False) -> None:
    from toolbay.cli.servers import file_to_edit  # noqa: PLC0415

    terminal = invocation(context).terminal
    place = file_to_edit(invocation(context))
    if as_json:
        terminal.json({"path": str(place), "exists": place.exists()})
        return
    terminal.write(str(place))
    if not place.exists():
        terminal.say("(there is no file there yet)")


@group.command("show", help="What was read, with secrets masked.")
def show(
    context: typer.Context,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON (the default).")] = False,
    as_yaml: Annotated[bool, typer.Option("--yaml", help="As YAML.")] = False,
) -> None:
    from toolbay.config import masked  # noqa: PLC0415

    if as_json and as_yaml:
        raise typer.BadParameter("--json and --yaml exclude each other.")
    invoked = invocation(context)
    shown = masked(invoked.config())
    if not as_yaml:
        invoked.terminal.json(shown)
        return
    from io import StringIO  # noqa: PLC0415

    from ruamel.yaml import YAML  # noqa: PLC0415

    text = StringIO()
    yaml = YAML(typ="safe", pure=True)
    yaml.default_flow_style = False
    yaml.sort_base_mapping_type_on_output = False  # pyright: ignore[reportAttributeAccessIssue]  (untyped library)
    yaml.dump(shown, text)  # pyright: ignore[reportUnknownMemberType]
    invoked.terminal.write(text.getvalue())


@group.command("check", help="Tell every fault with its place and its mend.")
def check(context: typer.Context, as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False) -> None:
    from toolbay.config.launchers import pinned, unpinned  # noqa: PLC0415
    from toolbay.config.models import InvalidServer  # noqa: PLC0415
    from toolbay.lock import FILE_NAME, Lock  # noqa: PLC0415

    invoked = invocation(context)
    terminal = invoked.terminal
    config = invoked.read()
    servers = config.tools.mcp_servers
    broken = {name: server for name, server in servers.items() if isinstance(server, InvalidServer)}
    sound = {name: server for name, server in servers.items() if not isinstance(server, InvalidServer)}
    loose = {name: package for name, server in sound.items() if (package := unpinned(server))}
    lock = Lock.load(config.path.parent / FILE_NAME if config.path else None)
    failed = FAILED if broken or lock.fault else DONE
    if as_json:
        problems = [{"where": problem.where, "text": problem.text} for problem in config.problems]
        problems += [{"where": FILE_NAME, "text": lock.fault}] if lock.fault else []
        invalid = [{"server": name, "text": entry.reason, "faults": entry.told} for name, entry in broken.items()]
        terminal.json(
            {
                "path": str(config.path) if config.path else None,
                "problems": problems,
                "invalid": invalid,
                "unpinned": [{"server": name, "package": package} for name, package in loose.items()],
                "servers": len(servers),
            }
        )
        raise typer.Exit(failed)
    for entry in broken.values():
        for fault in entry.told:
            terminal.write(f"✗ {entry.where}: {fault}", RED)
    for problem in config.problems:
        terminal.write(f"! {problem.where}: {problem.text}", YELLOW)
    if lock.fault:
        terminal.write(f"✗ {lock.fault}", RED)
    where = str(config.path) if config.path else "no configuration file"
    counted = f"{plural(len(servers), 'server')}, {len(broken)} invalid, {plural(len(config.problems), 'warning')}"
    terminal.write(f"{where}: {counted}", "" if failed or config.problems else GREEN)
    if loose:
        named = ", ".join(pinned(package) for package in loose.values())
        terminal.say(f"({', '.join(loose)}: what runs is whatever version was published last: write one, as in {named})", DIM)
    if servers and not lock.is_present:
        terminal.say(UNPINNED_HINT, DIM)
    raise typer.Exit(failed)


@group.command("schema", help="The JSON Schema of the configuration file, for editors.")
def schema(context: typer.Context) -> None:
    from toolbay.config import schema as made  # noqa: PLC0415

    invocation(context).terminal.json(made())
