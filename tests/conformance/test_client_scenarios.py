"""The official conformance suite (npm: @modelcontextprotocol/conformance) examines a program that is made of Toolbay's library.

Each scenario runs alone, in each version of the protocol that it is about: run all at once, the suite passes what crashed.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from support.canaries import assert_clean
from support.servers import SERVERS

SUITE = SERVERS / "node_modules" / "@modelcontextprotocol" / "conformance" / "dist" / "index.js"
DRIVER = Path(__file__).with_name("driver.py")
PATIENCE = 60
"""Seconds that the program may take for one scenario."""
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
    **dict.fromkeys((name for name in SCENARIOS if name.startswith("auth/")), "logins are being built"),
    "elicitation-sep1034-client-defaults": "a server cannot ask the person anything in the middle of a call (elicitation)",
    "sep-2322-client-request-state": "as above: the scenario goes on only after the person was asked",
    "auth/client-credentials-jwt": "a program says who it is by a secret, not yet by a signed assertion (private_key_jwt)",
    "auth/enterprise-managed-authorization": "no token is had by another one of the company's own identity provider (SEP-990)",
    "auth/dpop": "tokens are bearer tokens, not bound to a key (SEP-1932)",
    "auth/dpop-nonce": "as above",
    "auth/wif-jwt-bearer": "no token is had by the assertion of a workload's platform (SEP-1933)",
    "sep-2640-client-no-prefetch": "skills that servers offer are not used (SEP-2640)",
    "sep-2640-client-verify-digest": "as above",
    "sep-2640-client-verify-size": "as above",
    "sep-2640-client-verify-frontmatter": "as above",
}
"""What Toolbay cannot do yet. It may only shrink: a scenario that is passed by now must go."""

REFUSED = frozenset(
    {
        "auth/resource-mismatch",
        "auth/scope-retry-limit",
        "auth/iss-supported-missing",
        "auth/iss-wrong-issuer",
        "auth/iss-unexpected",
        "auth/iss-normalized",
        "auth/metadata-issuer-mismatch",
    }
)
"""Where the right thing is not to go on: the suite then takes any end of the program for one."""

pytestmark = pytest.mark.node


class Unmet(AssertionError):
    """The program does not do what the scenario asks for."""


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
    """CONF: another version of the suite brings its new scenarios into this list."""
    listed = subprocess.run([node(), str(SUITE), "list", "--client"], capture_output=True, text=True, check=True, timeout=60).stdout
    known = {name: tuple(versions.split(",")) for name, versions in re.findall(r"^ +- (\S+) \[([^]]+)\]", listed, re.MULTILINE)}
    assert known == {name: tuple(version or "extension" for version in versions) for name, versions in SCENARIOS.items()}
    assert not NOT_YET.keys() - SCENARIOS.keys()


@pytest.mark.parametrize(("scenario", "version"), legs())
def test_scenario(scenario: str, version: str, tmp_path: Path) -> None:
    """CONF: what the specification asks of a client, as its own suite sees it."""
    asked = ["client", "--scenario", scenario, "--command", shlex.join([sys.executable, str(DRIVER)]), "-o", str(tmp_path / "out")]
    asked += ["--timeout", str(PATIENCE * 1000), *(["--spec-version", version] if version else [])]
    environ = {**os.environ, "TOOLBAY_HOME": str(tmp_path / "home-of-the-program")}
    run = subprocess.run([node(), str(SUITE), *asked], capture_output=True, text=True, check=False, timeout=PATIENCE + 30, env=environ)
    results = next((tmp_path / "out").rglob("checks.json"), None)
    assert results is not None, run.stderr
    said = {name: results.with_name(f"{name}.txt").read_text(encoding="utf-8") for name in ("stdout", "stderr")}
    for name, text in said.items():
        assert_clean(text, f"the program's {name}")
        assert not re.search(r"test-token-|test-(client-)?secret|pre-registered-secret|conformance-test-secret", text), text
    if run.returncode != 0:
        raise Unmet(run.stderr)
    if not any(check["status"] == "SUCCESS" for check in json.loads(results.read_text(encoding="utf-8"))):
        raise Unmet(f"nothing was examined:\n{run.stderr}")
    ended = (said["stdout"].splitlines() or [""])[-1]
    if ended != ("refused" if scenario in REFUSED else "done"):
        raise Unmet(f"the program ended with {ended!r}:\n{said['stderr']}\n{run.stderr}")
