"""A small server that speaks OpenAI's chat completions, for real clients: it follows a script and checks each request.

What it checks are the published rules of the API's requests: roles, calls answered exactly once and in order, names,
arguments that are JSON text, parameters whose root is an object. What breaks them is answered with HTTP 400, as by the
real one, and kept in `violations`.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")


@dataclass(frozen=True, kw_only=True)
class Say:
    """A reply. `calls` are `(id, name, arguments as text)`; with `status` it is an error with `text` as its message."""

    text: str = ""
    calls: Sequence[tuple[str, str, str]] = ()
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    reasoning: str = ""
    """Sent as `reasoning_content`, as many servers of reasoning models do."""
    break_off: bool = False
    """End the stream in the middle."""


def check(body: dict[str, Any]) -> list[str]:
    """What in a request the real API would refuse."""
    wrong: list[str] = []
    if not isinstance(body.get("model"), str) or not body["model"]:
        wrong.append("model is not a name")
    tools = body.get("tools")
    if tools is not None and not 1 <= len(tools) <= 128:
        wrong.append(f"tools has {len(tools)} entries")
    names = [tool["function"]["name"] for tool in tools or ()]
    if len(set(names)) != len(names):
        wrong.append("a tool's name is used twice")
    for tool in tools or ():
        function = tool["function"]
        parameters = function.get("parameters", {"type": "object", "properties": {}})
        if tool["type"] != "function" or not NAME.fullmatch(function["name"]):
            wrong.append(f"tool {function['name']!r} has a bad name")
        if (
            parameters.get("type") != "object"
            or "properties" not in parameters
            or {"anyOf", "oneOf", "allOf", "enum", "not"} & set(parameters)
        ):
            wrong.append(f"the parameters of {function['name']} are no plain object")
    return wrong + check_messages(body.get("messages") or [])


def check_messages(messages: list[dict[str, Any]]) -> list[str]:
    wrong: list[str] = [] if messages else ["messages is empty"]
    waiting: list[str] = []
    used: set[str] = set()
    for index, message in enumerate(messages):
        role = message.get("role")
        if role not in ("system", "developer", "user", "assistant", "tool"):
            wrong.append(f"message {index} has the role {role!r}")
        if role == "tool":
            if not waiting or message.get("tool_call_id") != waiting.pop(0):
                wrong.append(f"message {index} answers {message.get('tool_call_id')!r} out of order")
            if not isinstance(message.get("content"), str | list):
                wrong.append(f"message {index} has no content")
            continue
        if waiting:
            wrong.append(f"message {index} follows calls that are not answered: {waiting}")
            waiting = []
        calls = message.get("tool_calls")
        if calls == [] or (calls and role != "assistant"):
            wrong.append(f"message {index} has tool_calls where it must not")
        if not calls and not message.get("content"):
            wrong.append(f"message {index} says nothing")
        for call in calls or ():
            waiting.append(call["id"])
            function = call["function"]
            if not call["id"] or call["id"] in used or call["type"] != "function" or not NAME.fullmatch(function["name"]):
                wrong.append(f"message {index} has a bad call {call}")
            used.add(call["id"])
            try:
                is_object = isinstance(json.loads(function["arguments"]), dict)
            except (TypeError, ValueError):
                is_object = False
            if not is_object:
                wrong.append(f"message {index} has arguments that are no JSON text of an object: {function['arguments']!r}")
    return wrong + [f"calls are not answered: {waiting}" for _ in waiting[:1]]


class OpenAIServer:
    """`with OpenAIServer([Say(text="hi")]) as server:` listens at `server.base_url` on the loopback until the block ends."""

    def __init__(self, script: Sequence[Say | Callable[[dict[str, Any]], Say]] = (), *, models: Sequence[str] = ("test-model",)) -> None:
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.violations: list[str] = []
        self._script = iter(script)
        self._models = models
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=lambda: self._server.serve_forever(poll_interval=0.01), daemon=True)
        self.base_url = f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def answer(self, body: dict[str, Any]) -> Say:
        wrong = check(body)
        self.violations.extend(wrong)
        if wrong:
            return Say(status=400, text="; ".join(wrong))
        entry = next(self._script, None)
        if entry is None:
            return Say(status=500, text="the script is over")
        return entry if isinstance(entry, Say) else entry(body)

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        owner = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002
                pass

            def do_GET(self) -> None:
                owner.headers.append(dict(self.headers))
                if self.path == "/v1/models":
                    self.send_json(200, {"object": "list", "data": [{"id": name, "object": "model"} for name in owner._models]})
                else:
                    self.send_json(404, {"error": {"message": "no such path"}})

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                owner.requests.append(body)
                owner.headers.append(dict(self.headers))
                if self.path != "/v1/chat/completions":
                    self.send_json(404, {"error": {"message": f"no such path: {self.path}"}})
                    return
                say = owner.answer(body)
                if say.status != 200:
                    self.send_json(say.status, {"error": {"message": say.text, "type": "error"}}, say.headers)
                elif body.get("stream"):
                    self.send_stream(body, say)
                else:
                    self.send_json(200, whole(body, say))

            def send_json(self, status: int, payload: object, headers: dict[str, str] | None = None) -> None:
                data = json.dumps(payload).encode()
                self.send_response(status)
                for name, value in {"Content-Type": "application/json", "Content-Length": str(len(data)), **(headers or {})}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(data)

            def send_stream(self, body: dict[str, Any], say: Say) -> None:
                self.send_response(200)
                self.send_header("Content-Type", "text/event-stream")
                self.send_header("Connection", "close")
                self.end_headers()
                self.close_connection = True
                for number, piece in enumerate(pieces(body, say)):
                    if say.break_off and number == 2:
                        return
                    self.wfile.write(b"data: " + json.dumps(piece).encode() + b"\n\n")
                    self.wfile.flush()
                self.wfile.write(b"data: [DONE]\n\n")

        return Handler


def envelope(body: dict[str, Any], kind: str) -> dict[str, Any]:
    return {"id": "chatcmpl-1", "object": kind, "created": 1, "model": body["model"]}


def calls_of(say: Say) -> list[dict[str, Any]]:
    return [{"id": i, "type": "function", "function": {"name": name, "arguments": arguments}} for i, name, arguments in say.calls]


def whole(body: dict[str, Any], say: Say) -> dict[str, Any]:
    message = {"role": "assistant", "content": say.text or None} | ({"tool_calls": calls_of(say)} if say.calls else {})
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if say.calls else "stop"}
    return envelope(body, "chat.completion") | {
        "choices": [choice],
        "usage": {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10},
    }


def pieces(body: dict[str, Any], say: Say) -> list[dict[str, Any]]:
    """The reply as the API streams it: text in pieces, each call's head and then its arguments in halves, then the end."""
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    deltas += [{"reasoning_content": say.reasoning}] if say.reasoning else []
    deltas += [{"content": say.text[start : start + 5]} for start in range(0, len(say.text), 5)]
    for index, call in enumerate(calls_of(say)):
        text = call["function"]["arguments"]
        deltas.append({"tool_calls": [{"index": index, **call, "function": {"name": call["function"]["name"], "arguments": ""}}]})
        half = len(text) // 2
        deltas += [{"tool_calls": [{"index": index, "function": {"arguments": part}}]} for part in (text[:half], text[half:])]
    made = [
        envelope(body, "chat.completion.chunk") | {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas
    ]
    end = {"index": 0, "delta": {}, "finish_reason": "tool_calls" if say.calls else "stop"}
    made.append(envelope(body, "chat.completion.chunk") | {"choices": [end]})
    usage = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}
    return [*made, envelope(body, "chat.completion.chunk") | {"choices": [], "usage": usage}]
