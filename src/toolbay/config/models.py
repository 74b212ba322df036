"""The configuration as values: one server, the tools section, the agent section.

Keys are camelCase in files (snake_case is read as well); attributes are snake_case. What a field means, its unit, its
default and why stands beneath it, and is what editors show.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic.alias_generators import to_camel

from toolbay._text import line
from toolbay.config import logins


class Section(BaseModel):
    """A part of the configuration. Unknown keys are reported by the loader and otherwise ignored."""

    model_config = ConfigDict(
        frozen=True, extra="ignore", alias_generator=to_camel, validate_by_alias=True, validate_by_name=True, use_attribute_docstrings=True
    )


class TransportType(StrEnum):
    STDIO = "stdio"
    SSE = "sse"
    HTTP = "streamableHttp"


class RestartPolicy(Section):
    """How a server that went away, or could not be brought up, is tried again."""

    enabled: bool = True
    """Whether it is tried again at all by itself."""
    first_delay: float = Field(default=0.5, gt=0)
    """Seconds before the next attempt (the one after it had been ready is at once); each further one waits twice as long, with jitter."""
    max_delay: float = Field(default=60.0, gt=0)
    """Seconds: the longest wait between two attempts."""
    stable_after: float = Field(default=30.0, gt=0)
    """Seconds of being ready after which its failures are forgotten."""
    max_attempts: int = Field(default=5, ge=1)
    """Failures within `window` after which it is left alone for `pause`; then one attempt is made after each pause."""
    window: float = Field(default=180.0, gt=0)
    """Seconds for which a failure counts."""
    pause: float = Field(default=60.0, gt=0)
    """Seconds of the first pause; each further one is twice as long. A reload or a person ends it at once."""
    max_pause: float = Field(default=600.0, gt=0)
    """Seconds: the longest pause."""


_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?", re.IGNORECASE)


def _bytes(value: Any) -> Any:
    """A size as people write it: `2g`, `500 MB` (powers of ten), `2GiB` (powers of two), or a number of bytes."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value
    found = _SIZE.fullmatch(value.strip()) if isinstance(value, str) else None
    if found is None:
        raise ValueError('must be a size such as "500 MB" or "2g"')
    number, letter, binary = found.groups()
    return int(float(number) * (1024 if binary else 1000) ** " kmgt".index(letter.lower() or " "))


class Limits(Section):
    """What a program and all that it starts may use together: what passes it is ended, and told why. Linux."""

    memory: Annotated[int, BeforeValidator(_bytes, json_schema_input_type=int | str), Field(ge=0)] = 0
    """Memory, as "500 MB" or "2g"; what programs share counts in parts. 0: any."""
    processes: int = Field(default=1_000, ge=0)
    """How many processes, itself among them; the default stops what multiplies without end. 0: any number."""


_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HEADER_VALUE = re.compile(r"(?:[!-~](?:[\t -~]*[!-~])?)?")


def _sendable(headers: Mapping[str, str]) -> Mapping[str, str]:
    """What a request can carry (RFC 9110, 5.1 and 5.5). A variable that was read from a file often ends in a line break."""
    for name, value in headers.items():
        if not _HEADER_NAME.fullmatch(name):
            raise ValueError(f"must have names of letters, digits and hyphens, not {line(json.dumps(name), 60)}")
        if not _HEADER_VALUE.fullmatch(value):
            raise ValueError(f"must have values that are one line of ASCII without spaces around it, and that of {name} is none")
    return headers


class LoginConfig(Section):
    """How to log in to a server (OAuth 2.1). Without it, `toolbay login NAME` does what the server asks for."""

    type: Literal["oauth", "client_credentials", "none"] = "oauth"
    """`oauth`: a person logs in, in a browser. `client_credentials`: the program logs in by itself. `none`: nobody does."""
    client_id: Annotated[str, AfterValidator(logins.visible)] = ""
    """Our name at the authorization server, where it was given one by hand. Default: it is asked for one."""
    client_secret: Annotated[str, AfterValidator(logins.visible)] = ""
    """The secret that belongs to `clientId`, if there is one: better written as ${NAME} or ${keyring:...}."""
    client_metadata_url: Annotated[str, AfterValidator(logins.document)] = ""
    """An https address of a document about this client, for authorization servers that take such an address as a `clientId`."""
    scopes: Annotated[
        tuple[Annotated[str, AfterValidator(logins.scope)], ...], BeforeValidator(logins.words, json_schema_input_type=str | list[str])
    ] = ()
    """What is asked for. Default: what the server says that it needs."""
    issuer: Annotated[str, AfterValidator(logins.issuer)] = ""
    """The authorization server. With the type client_credentials it must be named: the secret is shown to it only.

    Default: the one that the server names, or the first of them.
    """
    hosts: tuple[Annotated[str, AfterValidator(logins.host)], ...] = ()
    """Further hosts that the authorization server's addresses may be at, besides those of its own domain."""
    callback_port: int = Field(default=0, ge=0, le=65535)
    """The port on this machine that the browser comes back to. 0: any; set it where `clientId` was registered with one."""
    callback_url: Annotated[str, AfterValidator(logins.callback)] = ""
    """The whole address on this machine that the browser comes back to, where `clientId` was registered with another one.

    Default: http://127.0.0.1:PORT/callback.
    """
    assume_pkce: bool = False
    """Go on where the authorization server does not say that it protects the code (PKCE, S256). It is used in any case."""

    @model_validator(mode="after")
    def _whole(self) -> LoginConfig:
        if self.type == "client_credentials" and not (self.client_id and self.client_secret):
            raise ValueError("must have `clientId` and `clientSecret`, for with the type client_credentials the program logs in by itself")
        if self.callback_port and self.callback_url:
            raise ValueError("must have `callbackPort` or `callbackUrl`, not both: the port stands in the address already")
        return self

    @property
    def redirect_uri(self) -> str:
        """Where the browser comes back to, to the letter; empty where any port will do."""
        return self.callback_url or (logins.loopback(self.callback_port) if self.callback_port else "")


class ServerConfig(Section):
    """One MCP server. `type` has been inferred and references have been resolved by the loader."""

    type: TransportType
    """`stdio`, `sse` or `streamableHttp` (also written `http`). Inferred: a command is stdio, a URL whose path ends in /sse is sse."""
    command: str = ""
    """stdio: the program to run, by name or path."""
    args: tuple[str, ...] = ()
    """stdio: its arguments."""
    env: Mapping[str, str] = Field(default_factory=dict[str, str])
    """stdio: environment variables for it, besides a minimal set."""
    env_file: str = ""
    """stdio: a file of NAME=VALUE lines for its environment; `env` wins over it."""
    inherit_env: tuple[str, ...] = ()
    """stdio: names of our own environment variables that it gets too."""
    cwd: str = ""
    """stdio: the folder it runs in. Default: ours."""
    url: str = ""
    """sse, streamableHttp: the address."""
    headers: Annotated[Mapping[str, str], AfterValidator(_sendable)] = Field(default_factory=dict[str, str])
    """sse, streamableHttp: headers of every request."""
    tool_timeout: float = Field(default=30.0, gt=0)
    """Seconds that a call may take, from the moment it is sent."""
    tool_timeouts: Mapping[str, Annotated[float, Field(gt=0)]] = Field(default_factory=dict[str, float])
    """Seconds for single tools, by the server's own names."""
    max_timeout: float = Field(default=600.0, gt=0)
    """Seconds that a call may take while progress keeps arriving."""
    startup_timeout: float = Field(default=30.0, gt=0)
    """Seconds from start to ready. `npx` and `uvx` may download a package first."""
    max_concurrent: int = Field(default=100, ge=1)
    """Calls that are under way at once; further ones wait for their turn, within their own time."""
    max_queued: int = Field(default=5_000, ge=0)
    """Calls that may wait for their turn; what is over fails at once."""
    ping_interval: float = Field(default=0.0, ge=0)
    """Seconds of silence after which the server is asked whether it lives, and in which it must answer. 0: it is not asked.

    A server that does one thing at a time must answer within this time of a call that took too long.
    """
    enabled_tools: tuple[str, ...] = ("*",)
    """Which tools are offered: own names, wrapped names, glob patterns. Empty: none."""
    disabled_tools: tuple[str, ...] = ()
    """Which tools are not offered; wins over `enabledTools`."""
    enabled_resources: tuple[str, ...] | None = None
    """Which resources are offered, by name or URI. Default: all where `enabledTools` has "*"."""
    enabled_prompts: tuple[str, ...] | None = None
    """Which prompts are offered, by name. Default: all where `enabledTools` has "*"."""
    disabled: bool = False
    """True keeps the entry but does not start it."""
    retry: Literal["safe", "always", "never"] | Mapping[str, Literal["safe", "always", "never"]] = "safe"
    """Whether a call that may have run is sent once more when its answer is lost: `safe`, `always`, `never`, or by tool.

    `safe`: only tools of a `trusted` server that it calls read-only or idempotent. `never`: nor what the server refused or
    was too busy for. By tool: own names, wrapped names or patterns; a name counts before patterns, of several patterns the
    most careful one, and what no entry names is `safe`. What never left is always sent once more, and so are readings of
    resources and prompts.
    """
    restart: RestartPolicy = RestartPolicy()
    """How it is brought back when it goes away."""
    approval: Literal["never", "writes", "always"] | Mapping[str, Literal["never", "always"]] = "never"
    """Whether a person is asked before a call of the agent: `never`, before tools that write (`writes`), `always`, or by tool.

    By tool: the server's own names, wrapped names or patterns; what no entry names is not asked about.
    """
    trusted: bool = False
    """Whether what the server says of its tools (read-only, idempotent) is believed: for `retry: safe` and `approval: writes`."""
    roots: tuple[str, ...] = ()
    """Folders that the server is told it may use (MCP roots)."""
    sampling: bool = False
    """Whether the server may ask our model. Not supported yet."""
    elicitation: bool = False
    """Whether the server may ask the person. Not supported yet."""
    limits: Limits = Limits()
    """stdio: what the program may use of the machine."""
    sandbox: Literal["none", "soft", "strict"] = "none"
    """stdio: how far the program is shut in: not at all, by limits, or behind walls (bubblewrap, Linux) without network and home."""
    sandbox_paths: tuple[str, ...] = ()
    """stdio, `strict`: files and folders that it may read, such as "~/notes"; with ":rw" at the end it may write them too."""
    sandbox_network: bool = False
    """stdio, `strict`: whether it may use the network."""
    ssrf_whitelist: tuple[str, ...] = ()
    """sse, streamableHttp: address ranges (CIDR) that the network guard lets this server use."""
    fake_ip: tuple[str, ...] = ()
    """sse, streamableHttp: ranges of a proxy on this machine that answers every DNS question with an address of its own."""
    auth: Annotated[
        LoginConfig | None,
        BeforeValidator(logins.whole, json_schema_input_type=LoginConfig | Literal["oauth", "none"] | bool | None),
    ] = None
    """sse, streamableHttp: how to log in; `oauth` and `none` may stand for themselves. A token of your own belongs in `headers`."""
    description: str = ""
    """What it is for, for people and for the search among tools."""
    protocol_version: Literal["auto", "legacy", "2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25", "2026-07-28"] = "auto"
    """`auto`, `legacy` (the initialize handshake), or the version of the protocol that is offered to the server."""


class InvalidServer(Section):
    """An entry that cannot be used. It costs only itself."""

    reason: str
    """One sentence: what is wrong and the mend. Of several faults the first, and how many more there are."""
    faults: tuple[str, ...] = ()
    """A sentence for each fault; empty where `reason` says all."""
    where: str = ""
    """The entry's key path."""

    @property
    def told(self) -> tuple[str, ...]:
        """All that is wrong, a sentence for each fault."""
        return self.faults or (self.reason,)


class ArtifactsConfig(Section):
    """Where files go that tools return."""

    dir: str = ""
    """The folder. Default: in the user's data folder."""
    max_bytes: int = Field(default=1_000_000_000, gt=0)
    """Bytes of all files together; the oldest go first."""
    max_files: int = Field(default=2_000, gt=0)
    """How many files are kept."""
    max_age_days: float = Field(default=30.0, gt=0)
    """Days that a file is kept."""


class ToolsConfig(Section):
    """Everything about tools."""

    mcp_servers: Mapping[str, ServerConfig | InvalidServer] = Field(default_factory=dict[str, "ServerConfig | InvalidServer"])
    """The servers by name."""
    ssrf_whitelist: tuple[str, ...] = ()
    """Address ranges (CIDR) that the network guard lets every server use."""
    fake_ip: tuple[str, ...] = ()
    """Ranges of a proxy on this machine that answers every DNS question with an address of its own, such as 198.18.0.0/15."""
    result_budget: int = Field(default=16_000, ge=500)
    """Characters of one result that a model is shown; the rest is kept as a file that it can read on in."""
    artifacts: ArtifactsConfig = ArtifactsConfig()
    """Where files go that tools return."""
    reload_on_change: bool = True
    """Whether a program that runs on (such as `toolbay chat`) reads this file again by itself when it changes."""


class AgentConfig(Section):
    """The agent: its model and its limits."""

    model: str = ""
    """`provider:model`, or `offline`. Default: a local model server if one answers, else `offline`."""
    instructions: str = ""
    """What the model is told besides."""
    max_steps: int = Field(default=25, ge=1)
    """Model requests in one turn; at the limit it is asked once more, without tools."""
    max_seconds: float = Field(default=600.0, gt=0)
    """Seconds that one turn may take."""
    parallel_calls: int = Field(default=8, ge=1)
    """Read-only calls that run side by side."""
    history_tokens: int = Field(default=60_000, ge=1_000)
    """About how many tokens of a long conversation are sent to the model."""


class Problem(Section):
    """Something in a configuration that a person should know, though it stops nothing."""

    where: str
    """The path of the key, such as `tools.mcpServers.files.argz`."""
    text: str
    """One sentence: what is wrong and the mend."""


class Config(Section):
    """A whole configuration as it was read. `path` is None where there was no file."""

    tools: ToolsConfig = ToolsConfig()
    """Tools and their servers."""
    agent: AgentConfig = AgentConfig()
    """The agent."""
    path: Path | None = Field(default=None, exclude=True)
    problems: tuple[Problem, ...] = Field(default=(), exclude=True)
    files: Mapping[Path, str] = Field(default_factory=dict[Path, str], exclude=True, repr=False)
    """The files that it was read from, or looked for in, with what stands for their content (`places.digest`)."""
    searched: bool = Field(default=False, exclude=True)
    """Whether a file was looked for and none was found: reading it again looks again."""
    secrets: frozenset[str] = Field(default=frozenset[str](), exclude=True, repr=False)
    """Values that came from references, `env` and `headers`: masked wherever text leaves us."""
