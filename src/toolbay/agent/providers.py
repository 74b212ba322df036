"""Any model by `provider:model`, over pydantic-ai's `direct` layer: the only file that knows that library.

It translates both ways: our messages into its parts, its replies into ours, its errors into one plain sentence. What a
provider must get back unchanged with a call's result (reasoning, signatures) is remembered while the process lives.
"""

from __future__ import annotations

import json
import os
import re
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit

from toolbay.errors import ModelError
from toolbay.types import Json, Message, ModelRequest, Reply, Role, TextDelta, ToolCall, Usage

if TYPE_CHECKING:
    import httpx2
    from pydantic_ai import messages as wire
    from pydantic_ai.models import Model as Engine
    from pydantic_ai.models import ModelRequestParameters
    from pydantic_ai.settings import ModelSettings

KEYS: Mapping[str, tuple[str, ...]] = {
    "anthropic": ("ANTHROPIC_API_KEY",),
    "cerebras": ("CEREBRAS_API_KEY",),
    "cohere": ("CO_API_KEY",),
    "deepseek": ("DEEPSEEK_API_KEY",),
    "fireworks": ("FIREWORKS_API_KEY",),
    "google": ("GOOGLE_API_KEY", "GEMINI_API_KEY"),
    "groq": ("GROQ_API_KEY",),
    "huggingface": ("HF_TOKEN",),
    "mistral": ("MISTRAL_API_KEY",),
    "moonshotai": ("MOONSHOTAI_API_KEY",),
    "openai": ("OPENAI_API_KEY",),
    "openai-chat": ("OPENAI_API_KEY",),
    "openai-responses": ("OPENAI_API_KEY",),
    "openrouter": ("OPENROUTER_API_KEY",),
    "together": ("TOGETHER_API_KEY",),
    "xai": ("XAI_API_KEY",),
}
"""Where the key of a provider is looked for, in this order."""

FORMS = "openai:gpt-5-mini, anthropic:claude-sonnet-4-5, google:gemini-2.5-pro, ollama:llama3.2, or offline"
_NO_KEY = "no-key"
_OLLAMA = "http://127.0.0.1:11434/v1"
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_REMEMBERED = 256
_RETRIES = 1
_DETAIL = 300
_TAKE_RETRIES = ("openai", "openai-chat", "openai-responses", "anthropic", "groq")
# These refuse calls in a conversation whose request declares no tools.
_DECLARE_ALWAYS = ("anthropic", "bedrock")
# These have a mark for a failed result; for others the library would wrap the text, which says itself that it failed.
_MARK_ERRORS = ("anthropic", "bedrock")


def create(spec: str, *, environ: Mapping[str, str] | None = None) -> ProviderModel:
    """The model that `spec` (`provider:model`) names, with its key from the environment.

    With OPENAI_BASE_URL set, `openai:` means the server there, spoken to by the chat completions API; it needs no key.

    Raises:
        ModelError: the form, the provider or the key is not there, or the library is not installed.
    """
    environ = os.environ if environ is None else environ
    provider, model = parts(spec)
    base_url = environ.get("OPENAI_BASE_URL", "")
    if provider in ("openai", "openai-chat") and base_url:
        return compatible(base_url, model, key=environ.get("OPENAI_API_KEY", ""), name=spec.strip())
    if provider == "ollama":
        return compatible(environ.get("OLLAMA_BASE_URL") or _OLLAMA, model, key=environ.get("OLLAMA_API_KEY", ""), name=spec.strip())
    return _built(spec.strip(), provider, lambda: _engine(spec.strip(), provider, environ), secrets=_keys(provider, environ))


def parts(spec: str) -> tuple[str, str]:
    """The provider and the model of `provider:model`.

    Raises:
        ModelError: it is of another form.
    """
    provider, colon, model = spec.strip().partition(":")
    if not (colon and provider and model.strip()):
        raise ModelError(f"{spec!r} does not name a model; write provider:model, such as {FORMS}.")
    return provider, model


def compatible(base_url: str, model: str, *, key: str = "", name: str = "") -> ProviderModel:
    """A model on a server that speaks OpenAI's chat completions at `base_url` (which ends in `/v1` as a rule).

    A server on this machine is never asked through a proxy.
    """

    import httpx2  # noqa: PLC0415 - lazy, as the library is

    def build() -> Engine:
        from pydantic_ai.models.openai import OpenAIChatModel  # noqa: PLC0415
        from pydantic_ai.providers.openai import OpenAIProvider  # noqa: PLC0415

        return OpenAIChatModel(model, provider=OpenAIProvider(base_url=base_url, api_key=key or _NO_KEY, http_client=client))

    if urlsplit(base_url).scheme not in ("http", "https") or not urlsplit(base_url).hostname:
        raise ModelError(f"OPENAI_BASE_URL is {_bare(base_url)!r}, which is no address; it looks like http://127.0.0.1:8080/v1.")
    is_local = urlsplit(base_url).hostname in ("127.0.0.1", "::1", "localhost")
    client = httpx2.AsyncClient(trust_env=False, timeout=httpx2.Timeout(600, connect=5)) if is_local else None
    made = _built(name or f"openai:{model}", "openai", build, secrets=(key,) if key else ())
    made.address, made.client = _bare(base_url), client
    return made


def _built(name: str, provider: str, build: Callable[[], Engine], *, secrets: tuple[str, ...]) -> ProviderModel:
    try:
        from pydantic_ai.exceptions import UserError  # noqa: PLC0415 - heavy, and optional
    except ImportError as error:
        raise ModelError(
            f"The model {name} needs the model library: install toolbay[models] (in its folder: pip install '.[models]')."
        ) from error
    try:
        engine = build()
    except ImportError as error:
        raise ModelError(
            f"The model {name} needs the library of {provider}: install pydantic-ai-slim[{provider.removeprefix('gateway/')}]."
        ) from error
    except (UserError, ValueError) as error:
        wanted = KEYS.get(provider, ())
        if wanted and not secrets:
            raise ModelError(f"The model {name} needs a key: set {' or '.join(wanted)}.") from error
        raise ModelError(f"The model {name} cannot be used ({_cut(str(error), secrets)}); valid forms are {FORMS}.") from error
    return ProviderModel(engine, name=name, provider=provider, secrets=secrets)


def _engine(spec: str, provider: str, environ: Mapping[str, str]) -> Engine:
    from pydantic_ai.models import infer_model  # noqa: PLC0415
    from pydantic_ai.providers import infer_provider, infer_provider_class  # noqa: PLC0415

    keys = _keys(provider, environ)

    def with_key(wanted: str) -> Any:
        kind = infer_provider_class(wanted)
        return cast("Any", kind)(api_key=keys[0]) if keys else infer_provider(wanted)

    infer_provider_class(provider)
    return infer_model(spec, with_key)


def _keys(provider: str, environ: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(environ[name] for name in KEYS.get(provider, ()) if environ.get(name))


class ProviderModel:
    """A `Model` over one of the library's. Made by `create` and `compatible`."""

    def __init__(self, engine: Engine, *, name: str, provider: str, secrets: tuple[str, ...]) -> None:
        self._engine = engine
        self._name = name
        self._provider = provider
        self._secrets = secrets
        self.address = ""
        """Where its server is, for people; empty for a provider's own."""
        self.client: httpx2.AsyncClient | None = None
        """An HTTP client that was made for it, and that it closes."""
        self._replies: OrderedDict[str, wire.ModelResponse] = OrderedDict()

    @property
    def name(self) -> str:
        return self._name

    async def stream(self, request: ModelRequest) -> AsyncIterator[TextDelta | Reply]:
        from pydantic_ai.direct import model_request_stream  # noqa: PLC0415
        from pydantic_ai.exceptions import AgentRunError, UserError  # noqa: PLC0415

        parameters, settings = self._parameters(request)
        try:
            messages = self._messages(request)
            async with model_request_stream(self._engine, messages, model_settings=settings, model_request_parameters=parameters) as pieces:
                async for event in pieces:
                    text = _arrived(event)
                    if text:
                        yield TextDelta(text=text)
                response = pieces.get()
        except (AgentRunError, UserError) as error:
            raise ModelError(self._sentence(error)) from error
        yield self._reply(response)

    async def aclose(self) -> None:
        """Close its connections. It can be used again, unless its server is on this machine."""
        async with self._engine:
            pass
        if self.client is not None:
            await self.client.aclose()

    def _parameters(self, request: ModelRequest) -> tuple[ModelRequestParameters, ModelSettings]:
        from pydantic_ai.models import ModelRequestParameters  # noqa: PLC0415
        from pydantic_ai.settings import ModelSettings  # noqa: PLC0415

        settings = ModelSettings(max_retries=_RETRIES) if self._provider in _TAKE_RETRIES else ModelSettings()
        tools = [_definition(tool.name, tool.description, tool.parameters) for tool in request.tools]
        called = {_wire_name(call.name) for message in request.messages for call in message.calls}
        if called and not tools and self._provider in _DECLARE_ALWAYS:
            tools = [_definition(name, "", {"type": "object", "properties": {}}) for name in sorted(called)]
            settings["tool_choice"] = "none"
        return ModelRequestParameters(function_tools=tools), settings

    def _messages(self, request: ModelRequest) -> list[wire.ModelMessage]:
        from pydantic_ai import messages as wire  # noqa: PLC0415

        made: list[wire.ModelMessage] = []
        asked: list[wire.ModelRequestPart] = []

        def ask() -> None:
            if asked:
                made.append(wire.ModelRequest(parts=list(asked), instructions=request.instructions))
                asked.clear()

        for message in request.messages:
            if message.role is Role.USER:
                asked.append(wire.UserPromptPart(content=_clean(message.text)))
            elif message.role is Role.TOOL:
                asked.append(
                    wire.ToolReturnPart(
                        tool_name=_wire_name(message.name),
                        content=_clean(message.text) or "(no output)",
                        tool_call_id=message.call_id,
                        outcome="failed" if message.is_error and self._provider in _MARK_ERRORS else "success",
                    )
                )
            else:
                ask()
                made.append(self._replies.get(_mark(message.text, message.calls)) or _response(message))
        ask()
        return made

    def _reply(self, response: wire.ModelResponse) -> Reply:
        from pydantic_ai import messages as wire  # noqa: PLC0415

        text = "".join(part.content for part in response.parts if isinstance(part, wire.TextPart))
        calls = tuple(
            ToolCall(id=part.tool_call_id, name=part.tool_name, arguments=_arguments(part.args))
            for part in response.parts
            if isinstance(part, wire.ToolCallPart)
        )
        if not text and not calls and response.finish_reason in ("length", "content_filter"):
            why = (
                "ran out of tokens before it said anything" if response.finish_reason == "length" else "withheld its reply (content filter)"
            )
            raise ModelError(f"The model {self._name} {why}; ask in other words, or choose another model.")
        if calls and all(_NAME.fullmatch(call.name) and not isinstance(call.arguments, str) for call in calls):
            self._replies[_mark(text, calls)] = response
            while len(self._replies) > _REMEMBERED:
                self._replies.popitem(last=False)
        usage = Usage(input_tokens=response.usage.input_tokens, output_tokens=response.usage.output_tokens)
        return Reply(text=text, calls=calls, usage=usage)

    def _sentence(self, error: Exception) -> str:
        """One sentence for what went wrong: what a person can do about it, and never a key."""
        from pydantic_ai import exceptions as wrong  # noqa: PLC0415

        at = f" at {self.address}" if self.address else ""
        who = f"The model {self._name}{at}"
        body = error.body if isinstance(error, wrong.ModelAPIError) else None
        detail = _cut(_said(body) or getattr(error, "message", ""), self._secrets)
        status = error.status_code if isinstance(error, wrong.ModelHTTPError) else 0
        if isinstance(error, wrong.ModelContextWindowExceededError):
            return f"{who} cannot take a conversation this long; start a new one, or lower agent.historyTokens."
        if isinstance(error, wrong.ModelAuthenticationError) or status in (401, 403):
            keys = KEYS.get(self._provider, ())
            mend = f"set {' or '.join(keys)} to a valid key" if keys else f"check the credentials of {self._provider}"
            return f"{who} refused the key (HTTP {status or 401}); {mend}."
        if isinstance(error, wrong.ModelQuotaExceededError):
            return f"{who} refused: the account's quota is used up; check its billing, or choose another model."
        if isinstance(error, wrong.ModelRateLimitError) or status == 429:
            wait = error.retry_after if isinstance(error, wrong.ModelAPIError) else None
            return f"{who} is asked too often (HTTP 429); try again {f'in {wait:g} seconds' if wait else 'in a while'}."
        if isinstance(error, wrong.ModelNotFoundError) or status == 404:
            return f"{who} was not found (HTTP 404); check the model's name{' and the address' if at else ''}."
        if isinstance(error, wrong.ModelTimeoutError | wrong.ModelRequestTimeout):
            return f"{who} did not answer in time; try again, or choose a faster model."
        if isinstance(error, wrong.ModelConnectionError):
            mend = "check that the server runs there" if at else "check the network"
            return f"{who} cannot be reached; {mend}."
        if status >= 500:
            return f"{who} failed (HTTP {status}); try again in a while."
        if status:
            return f"{who} refused the request (HTTP {status}: {detail})."
        return f"{who} gave no reply that can be used ({detail})."


def _definition(name: str, description: str, parameters: Json) -> Any:
    from pydantic_ai.tools import ToolDefinition  # noqa: PLC0415

    # Never strict: that mode rewrites schemas, and many of the real ones do not survive it.
    return ToolDefinition(name=name, description=description or None, parameters_json_schema=parameters, strict=False)


def _arrived(event: object) -> str:
    from pydantic_ai import messages as wire  # noqa: PLC0415

    if isinstance(event, wire.PartStartEvent) and isinstance(event.part, wire.TextPart):
        return event.part.content
    if isinstance(event, wire.PartDeltaEvent) and isinstance(event.delta, wire.TextPartDelta):
        return event.delta.content_delta
    return ""


def _response(message: Message) -> wire.ModelResponse:
    from pydantic_ai import messages as wire  # noqa: PLC0415

    parts: list[wire.ModelResponsePart] = [wire.TextPart(content=_clean(message.text))] if message.text else []
    for call in message.calls:
        # Servers parse the arguments of the past again; what was no object would fail each request from then on.
        arguments: Json = {"invalid": call.arguments} if isinstance(call.arguments, str) else call.arguments
        parts.append(wire.ToolCallPart(tool_name=_wire_name(call.name), args=_clean(json.dumps(arguments)), tool_call_id=call.id))
    return wire.ModelResponse(parts=parts)


def _arguments(args: str | Mapping[str, Any] | None) -> Json | str:
    if not isinstance(args, str):
        return dict(args or {})
    try:
        parsed: object = json.loads(args) if args.strip() else {}
    except (ValueError, RecursionError):
        return args
    return cast("Json", parsed) if isinstance(parsed, dict) else args


def _wire_name(name: str) -> str:
    """A name that a model made up may be one that providers refuse to see again."""
    return name if _NAME.fullmatch(name) else re.sub(r"[^a-zA-Z0-9_-]", "_", name)[:64] or "unnamed"


def _mark(text: str, calls: Iterable[ToolCall]) -> str:
    return json.dumps([text, [[call.id, call.name, call.arguments] for call in calls]], sort_keys=True)


def _clean(text: str) -> str:
    """Half a surrogate pair cannot be sent."""
    return text.encode("utf-8", "replace").decode()


def _said(body: object) -> str:
    """The message in a provider's error, in the shapes that they come in."""
    for key in ("error", "message", "detail"):
        if isinstance(body, Mapping):
            body = cast("Mapping[str, object]", body).get(key, cast("object", body))
    return body if isinstance(body, str) else ""


def _cut(text: str, secrets: Iterable[str]) -> str:
    for secret in secrets:
        text = text.replace(secret, "***")
    text = " ".join(text.split()).rstrip(".")
    return text if len(text) <= _DETAIL else text[: _DETAIL - 1] + "…"


def _bare(url: str) -> str:
    """An address without what may be secret in it."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}" if parts.netloc else url.split("?", maxsplit=1)[0]
