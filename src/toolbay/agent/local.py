"""Which model to use where nobody said: a server on this machine if one answers, else the one that needs no network."""

from __future__ import annotations

import json
import os
import re
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import anyio

from toolbay import _redact
from toolbay.agent.providers import compatible, create, parts
from toolbay.agent.textcalls import TextCalls
from toolbay.errors import ModelError
from toolbay.types import Model

if TYPE_CHECKING:
    import httpx2

DEFAULTS: tuple[tuple[str, str], ...] = (
    ("Ollama", "http://127.0.0.1:11434/v1"),
    ("llama.cpp", "http://127.0.0.1:8080/v1"),
    ("LM Studio", "http://127.0.0.1:1234/v1"),
)
"""The servers that are looked for, in the order in which they are preferred: name and address."""

OFFLINE = "offline"
_SECONDS = 0.5
_SECONDS_ASKED_FOR = 10.0
_MOST_BYTES = 2_000_000
_NO_CHAT = re.compile(r"embed|rerank|bge-|minilm|whisper|tts|stable-diffusion", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True, slots=True)
class LocalServer:
    """A model server that answered: `models` are those for conversations, in its own order, at least one."""

    name: str
    base_url: str
    models: tuple[str, ...]


async def detect(*, addresses: Sequence[tuple[str, str]] = DEFAULTS, client: httpx2.AsyncClient | None = None) -> LocalServer | None:
    """The first of `addresses` (name, base URL) that answers `/models` with a model for conversations.

    All are asked at once and none is waited for longer than half a second.
    """
    found: dict[int, LocalServer] = {}

    async def ask(place: int, name: str, base_url: str, asking: httpx2.AsyncClient) -> None:
        with anyio.move_on_after(_SECONDS):
            models = await _models(asking, base_url)
            if models:
                found[place] = LocalServer(name=name, base_url=base_url, models=models)

    async with _client(client) as asking, anyio.create_task_group() as group:
        for place, (name, base_url) in enumerate(addresses):
            group.start_soon(ask, place, name, base_url, asking, name=f"look for {name}")
    return found[min(found)] if found else None


def wanted_of(spec: str, environ: Mapping[str, str]) -> str:
    """Which model is asked for, by `spec` or TOOLBAY_MODEL; empty where one is to be found.

    Raises:
        ModelError: it is no name of a model. Whether there is such a model is seen when it is made.
    """
    wanted = spec.strip() or environ.get("TOOLBAY_MODEL", "").strip()
    if wanted and wanted != OFFLINE:
        parts(wanted)
    return wanted


async def choose(
    spec: str,
    *,
    environ: Mapping[str, str] | None = None,
    offline: Callable[[], Model],
    addresses: Sequence[tuple[str, str]] = DEFAULTS,
) -> Model:
    """The model that `spec` or TOOLBAY_MODEL names; else the one at OPENAI_BASE_URL; else a local server's; else `offline()`.

    A local server that nobody named is never sent a key, and calls that its model writes as text are taken for calls.

    Raises:
        ModelError: what was asked for cannot be used. Nothing else takes its place.
    """
    environ = os.environ if environ is None else environ
    wanted = wanted_of(spec, environ)
    if wanted == OFFLINE:
        return offline()
    if wanted:
        return create(wanted, environ=environ)
    base_url = environ.get("OPENAI_BASE_URL", "")
    if base_url:
        return await _first_at(base_url, environ)
    server = await detect(addresses=addresses)
    return TextCalls(compatible(server.base_url, server.models[0])) if server else offline()


async def _first_at(base_url: str, environ: Mapping[str, str]) -> Model:
    import httpx2  # noqa: PLC0415 - see below

    key = environ.get("OPENAI_API_KEY", "")
    models: tuple[str, ...] = ()
    async with _client(None) as asking:
        try:
            with anyio.move_on_after(_SECONDS_ASKED_FOR):
                models = await _asked(asking, base_url, key)
        except httpx2.ConnectError as error:
            why = "the connection was refused" if _is_refused(error) else "no connection could be made"
            where = f"{_redact.url(base_url)} (OPENAI_BASE_URL)"
            raise ModelError(f"Nothing answers at {where}: {why}. Start the model's server there, or mend the address.") from None
        except httpx2.HTTPError:
            models = ()
    if not models:
        raise ModelError("The server at OPENAI_BASE_URL does not say which models it has; name one, such as --model openai:NAME.")
    return create(f"openai:{models[0]}", environ=environ)


def _is_refused(error: BaseException | None) -> bool:
    """Whether a refusal is what is behind `error`; of several addresses of one name the causes are a group."""
    while error is not None:
        if isinstance(error, BaseExceptionGroup):
            return any(_is_refused(part) for part in cast("BaseExceptionGroup[BaseException]", error).exceptions)
        if isinstance(error, ConnectionRefusedError):
            return True
        error = error.__cause__ or error.__context__
    return False


@asynccontextmanager
async def _client(given: httpx2.AsyncClient | None) -> AsyncGenerator[httpx2.AsyncClient]:
    if given is not None:
        yield given
        return
    import httpx2  # noqa: PLC0415 - only where somebody looks

    async with httpx2.AsyncClient(trust_env=False, timeout=_SECONDS_ASKED_FOR) as client:
        yield client


async def _models(client: httpx2.AsyncClient, base_url: str) -> tuple[str, ...]:
    """As `_asked`; none where nothing answers."""
    import httpx2  # noqa: PLC0415 - see above

    try:
        return await _asked(client, base_url, "")
    except httpx2.HTTPError:
        return ()


async def _asked(client: httpx2.AsyncClient, base_url: str, key: str) -> tuple[str, ...]:
    """The models for conversations at an address; none where it answers something else.

    Raises:
        httpx2.HTTPError: it does not answer.
    """
    import httpx2  # noqa: PLC0415 - see above

    headers = {"Authorization": f"Bearer {key}"} if key else {}
    data = bytearray()
    try:
        async with client.stream("GET", base_url.rstrip("/") + "/models", headers=headers) as response:
            if response.status_code != 200:
                return ()
            async for piece in response.aiter_bytes():
                data += piece
                if len(data) > _MOST_BYTES:
                    return ()
        names = [str(item["id"]) for item in json.loads(bytes(data))["data"]]
    except (httpx2.InvalidURL, ValueError, TypeError, KeyError):
        return ()
    return tuple(name for name in names if name and not _NO_CHAT.search(name))
