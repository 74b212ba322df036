"""The official conformance suite (npm: @modelcontextprotocol/conformance) examines a program that is made of Toolbay's library.

Each scenario is a run of its own, in each version of the protocol that it is about: as one run, the suite passes what crashed.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Generator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from support.canaries import PARENT, assert_clean
from support.servers import SERVERS

SUITE = SERVERS / "node_modules" / "@modelcontextprotocol" / "conformance" / "dist" / "index.js"
DRIVER = Path(__file__).with_name("driver.py")
PATIENCE = 60
"""Seconds that the program may take for one scenario."""
AT_ONCE = 2
"""How many scenarios run side by side."""
EXTENSION = ""
"""In the place of a version: of no version of the protocol, but of an extension to it."""
DATED = ("2025-11-25", "2026-07-28")

SCENARIOS: dict[str, tuple[str, ...]] = {
    "initialize": ("2025-06-18", "2025-11-25"),
    "tools_call": ("2025-06-18", *DATED),
    "elicitation-sep1034-client-defaults": ("2025-11-25",),
    "sse-retry": ("2025-11-25",),
    "request-metadata": ("2026-07-28",),
    **dict.fromkeys(
        (
            "auth/metadata-default",
            "auth/metadata-var1",
            "auth/metadata-var2",
            "auth/metadata-var3",
            "auth/basic-cimd",
            "auth/scope-from-www-authenticate",
            "auth/scope-from-scopes-supported",
            "auth/scope-omitted-when-undefined",
            "auth/scope-step-up",
            "auth/scope-retry-limit",
            "auth/pre-registration",
        ),
        DATED,
    ),
    "auth/token-endpoint-auth-basic": ("2025-06-18", *DATED),
    "auth/token-endpoint-auth-post": ("2025-06-18", *DATED),
    "auth/token-endpoint-auth-none": ("2025-06-18", *DATED),
    "auth/2025-03-26-oauth-metadata-backcompat": ("2025-03-26",),
    "auth/2025-03-26-oauth-endpoint-fallback": ("2025-03-26",),
    **dict.fromkeys(
        (
            "auth/resource-mismatch",
            "auth/offline-access-scope",
            "auth/offline-access-not-supported",
            "auth/authorization-server-migration",
            "auth/iss-supported",
            "auth/iss-not-advertised",
            "auth/iss-supported-missing",
            "auth/iss-wrong-issuer",
            "auth/iss-unexpected",
            "auth/iss-normalized",
            "auth/metadata-issuer-mismatch",
            "sep-2322-client-request-state",
            "http-standard-headers",
            "http-custom-headers",
            "http-invalid-tool-headers",
            "json-schema-ref-no-deref",
        ),
        ("2026-07-28",),
    ),
    "json-schema-2020-12-preservation": DATED,
    **dict.fromkeys(
        (
            "auth/client-credentials-jwt",
            "auth/client-credentials-basic",
            "auth/enterprise-managed-authorization",
            "auth/dpop",
            "auth/dpop-nonce",
            "auth/wif-jwt-bearer",
            "sep-2640-client-no-prefetch",
            "sep-2640-client-verify-digest",
            "sep-2640-client-verify-size",
            "sep-2640-client-verify-frontmatter",
        ),
        (EXTENSION,),
    ),
}
"""All that the suite has for clients, and in which versions."""

NOT_YET: dict[str, str] = {
    "elicitation-sep1034-client-defaults": "a server cannot ask the person anything in the middle of a call (elicitation)",
    "sep-2322-client-request-state": "as above: the scenario goes on only after the person was asked",
    "auth/client-credentials-jwt": "a program says who it is by a secret, not by a signed assertion (private_key_jwt)",
    "auth/enterprise-managed-authorization": "no token is had by way of a company's own identity provider (SEP-990)",
    "auth/dpop": "tokens are bearer tokens, bound to no key (SEP-1932)",
    "auth/dpop-nonce": "as above",
    "auth/wif-jwt-bearer": "no token is had by the assertion of a workload's platform (SEP-1933)",
    "sep-2640-client-no-prefetch": "skills that servers offer are not used (SEP-2640)",
    "sep-2640-client-verify-digest": "as above",
    "sep-2640-client-verify-size": "as above",
    "sep-2640-client-verify-frontmatter": "as above",
}
"""What Toolbay cannot do yet. It may only shrink: a scenario that is passed by now must go."""

REFUSED: dict[str, str] = {
    "auth/resource-mismatch": "is about https://evil.example.com/mcp, not about",
    "auth/scope-retry-limit": "3 logins were not enough: ",
    **dict.fromkeys(
        ("auth/iss-supported-missing", "auth/iss-wrong-issuer", "auth/iss-unexpected", "auth/iss-normalized"),
        "does not say that it comes from localhost",
    ),
    "auth/metadata-issuer-mismatch": "says that it is https://attacker.example.com, so it is not used",
}
"""Where the right thing is not to go on, and why the program says that it did not: the suite takes any end of it for that."""

pytestmark = pytest.mark.node


Leg: TypeAlias = tuple[str, str]
"""A scenario, in one version of the protocol."""
SECRETS = re.compile(r"(test|cc)-token-?|test-(client-)?secret|pre-registered-secret|conformance-test-secret|test-auth-code")
"""What the suite gives that nobody else may see."""


class Unmet(AssertionError):
    """The program does not do what the scenario asks for."""


@dataclass(frozen=True)
class Run:
    """How a scenario went. `stdout` and `stderr` are the program's, `said` is the suite's."""

    code: int
    checks: list[dict[str, Any]]
    stdout: str
    stderr: str
    said: str


@cache
def node() -> str:
    """A Node that the suite runs with: 22 or newer."""
    if not SUITE.exists():
        pytest.skip("the conformance suite is not installed: make setup")
    for found in (SERVERS / "node_modules" / ".bin" / "node", shutil.which("node")):
        if found is None or not Path(found).exists():
            continue
        said = subprocess.run([found, "--version"], capture_output=True, text=True, check=False, timeout=30).stdout
        if (version := re.match(r"v(\d+)\.", said)) is not None and int(version[1]) >= 22:
            return str(found)
    pytest.skip("the conformance suite needs Node.js 22 or newer, which is not there")


def legs() -> list[object]:
    found: list[object] = []
    for name, versions in SCENARIOS.items():
        marks = [pytest.mark.xfail(strict=True, raises=Unmet, reason=f"NOT_YET: {NOT_YET[name]}")] if name in NOT_YET else []
        found += [pytest.param(name, version, marks=marks, id=f"{name}-{version or 'extension'}") for version in versions]
    return found


def test_the_suite_has_the_scenarios_that_stand_here() -> None:
    """TRA-1: another version of the suite brings its new scenarios into this list."""
    listed = subprocess.run([node(), str(SUITE), "list", "--client"], capture_output=True, text=True, check=True, timeout=60).stdout
    known = {name: tuple(versions.split(",")) for name, versions in re.findall(r"^ +- (\S+) \[([^]]+)\]", listed, re.MULTILINE)}
    assert known == {name: tuple(version or "extension" for version in versions) for name, versions in SCENARIOS.items()}
    assert not NOT_YET.keys() - SCENARIOS.keys()


def examined(scenario: str, version: str, folder: Path) -> Run:
    """Let the suite examine the program once."""
    asked = ["client", "--scenario", scenario, "--command", shlex.join([sys.executable, str(DRIVER)]), "-o", str(folder / "out")]
    asked += ["--timeout", str(PATIENCE * 1000), *(["--spec-version", version] if version else [])]
    environ = {**os.environ, "AWS_SECRET_ACCESS_KEY": PARENT, "TOOLBAY_HOME": str(folder / "home")}
    run = subprocess.run([node(), str(SUITE), *asked], capture_output=True, text=True, check=False, timeout=PATIENCE + 30, env=environ)
    results = next((folder / "out").rglob("checks.json"), None)
    assert results is not None, run.stderr
    stdout, stderr = (results.with_name(f"{name}.txt").read_text(encoding="utf-8") for name in ("stdout", "stderr"))
    return Run(run.returncode, json.loads(results.read_text(encoding="utf-8")), stdout, stderr, run.stderr)


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Generator[Mapping[Leg, Future[Run]]]:
    """All that are asked for, some at a time: most of what one costs is two programs that start, one after the other."""
    node()
    found = [getattr(item, "callspec", None) for item in request.session.items if item.path == Path(__file__)]
    chosen: list[Leg] = [(one.params["scenario"], one.params["version"]) for one in found if one is not None]
    with ThreadPoolExecutor(max_workers=min(AT_ONCE, os.cpu_count() or 1)) as pool:
        try:
            yield {leg: pool.submit(examined, *leg, tmp_path_factory.mktemp("examined")) for leg in chosen}
        finally:
            pool.shutdown(cancel_futures=True)


@pytest.mark.parametrize(("scenario", "version"), legs())
def test_scenario(scenario: str, version: str, runs: Mapping[Leg, Future[Run]]) -> None:
    """TRA-1: what the specification asks of a client, as its own suite sees it."""
    run = runs[scenario, version].result()
    for name, text in (("stdout", run.stdout), ("stderr", run.stderr)):
        assert_clean(text, f"the program's {name}")
        assert not SECRETS.search(text), text
    if run.code != 0:
        raise Unmet(run.said)
    if not any(check["status"] == "SUCCESS" for check in run.checks):
        raise Unmet(f"nothing was examined:\n{run.said}")
    ended = (run.stdout.splitlines() or [""])[-1]
    if ended != ("refused" if scenario in REFUSED else "done") or REFUSED.get(scenario, "") not in run.stderr:
        raise Unmet(f"the program ended with {ended!r}:\n{run.stderr}\n{run.said}")
