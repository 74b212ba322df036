"""A server made with the official SDK's second generation (mcp 2.x): both protocol eras, over stdio, SSE or streamable HTTP.

    sdk2_server.py stdio | sse [PORT] | http [PORT]        [--effects FILE]

Over HTTP the address is printed on standard output as soon as the port is bound (PORT 0, the default: any free one).
"""

from __future__ import annotations

import argparse
import os
import socket
import struct
import zlib
from pathlib import Path
from typing import Annotated, Any

import anyio
import uvicorn
from mcp.server.mcpserver import Context, Elicit, ElicitationResult, Image, MCPServer, Resolve
from mcp_types import ToolAnnotations
from pydantic import BaseModel

server = MCPServer("sdk2", instructions="A server for tests.", version="2.0")
READS = ToolAnnotations(read_only_hint=True)
effects: list[Path] = []


class Weather(BaseModel):
    city: str
    celsius: float
    rain: bool


class Name(BaseModel):
    name: str


def png(width: int = 8, height: int = 8) -> bytes:
    """A red rectangle as a valid PNG."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = (b"\x00" + b"\xff\x00\x00" * width) * height
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


@server.tool(annotations=READS)
def echo(text: str) -> str:
    """Say the text back."""
    return text


@server.tool(annotations=READS)
def add(a: int, b: int) -> int:
    """Add two whole numbers."""
    return a + b


@server.tool(annotations=READS)
async def slow(ctx: Context[Any], steps: int = 3, seconds: float = 0.05) -> str:
    """Take `steps` steps, `seconds` apart, and report each."""
    for step in range(steps):
        await anyio.sleep(seconds)
        await ctx.report_progress(step + 1, steps, f"step {step + 1} of {steps}")
    return f"{steps} steps"


@server.tool()
def fail(reason: str = "as told") -> str:
    """Fail."""
    raise ValueError(reason)


@server.tool(annotations=READS)
def big_text(characters: int) -> str:
    """A text of exactly so many characters, in numbered lines."""
    lines = "".join(f"line {number}\n" for number in range(characters // 6 + 1))
    return lines[:characters]


@server.tool(annotations=READS)
def picture() -> Image:
    """A small red picture."""
    return Image(data=png(), format="png")


@server.tool(annotations=READS)
def weather(city: str) -> Weather:
    """The weather in a city, as structured content."""
    return Weather(city=city, celsius=11.5, rain=True)


@server.tool()
def note(text: str) -> str:
    """Write a line into the effects file: something that must not happen twice."""
    for path in effects:
        with path.open("a", encoding="utf-8") as file:
            file.write(text + "\n")
    return f"noted: {text}"


@server.tool(annotations=READS)
def process(variable: str = "") -> dict[str, str]:
    """This process: its pid, its folder, and the value of an environment variable."""
    return {"pid": str(os.getpid()), "cwd": str(Path.cwd()), "value": os.environ.get(variable, "")}


@server.tool()
async def grow(name: str, ctx: Context[Any]) -> str:
    """Add a tool of this name, and say that the list changed."""
    server.add_tool(lambda: f"I am {name}", name=name, description=f"The grown tool {name}")
    await _list_changed(ctx)
    return f"{name} is there"


@server.tool()
async def shrink(name: str, ctx: Context[Any]) -> str:
    """Remove the tool of this name, and say that the list changed."""
    server.remove_tool(name)
    await _list_changed(ctx)
    return f"{name} is gone"


async def _list_changed(ctx: Context[Any]) -> None:
    # One for clients of each era; the SDK drops what does not fit the connection.
    await ctx.notify_tools_changed()
    await ctx.session.send_tool_list_changed()


def _question() -> Elicit[Name]:
    return Elicit("What is your name?", Name)


@server.tool()
def ask_name(answer: Annotated[ElicitationResult[Name], Resolve(_question)]) -> str:
    """Ask the person for a name: an elicitation, in the form of the connection's era."""
    return f"hello {answer.data.name}" if answer.action == "accept" else f"no name: {answer.action}"


@server.resource("notes://greeting", name="greeting", mime_type="text/plain")
def greeting() -> str:
    """A greeting."""
    return "Good morning from a resource."


@server.resource("notes://logo", name="logo", mime_type="image/png")
def logo() -> bytes:
    """A picture as a resource."""
    return png()


@server.resource("notes://about/{topic}", name="about", mime_type="text/plain")
def about(topic: str) -> str:
    """What there is to know about a topic."""
    return f"All about {topic}."


@server.prompt()
def review(code: str, language: str = "Python") -> str:
    """Ask for a review of some code."""
    return f"Please review this {language} code:\n\n{code}"


async def over_http(app: Any, port: int, path: str) -> None:
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", port))
        print(f"http://127.0.0.1:{listener.getsockname()[1]}{path}", flush=True)
        config = uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=1)
        await uvicorn.Server(config).serve(sockets=[listener])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("transport", choices=("stdio", "sse", "http"))
    parser.add_argument("port", type=int, nargs="?", default=0)
    parser.add_argument("--effects", type=Path, action="append", default=[])
    options = parser.parse_args()
    effects.extend(options.effects)
    if options.transport == "stdio":
        server.run("stdio")
    elif options.transport == "sse":
        anyio.run(over_http, server.sse_app(), options.port, "/sse")
    else:
        anyio.run(over_http, server.streamable_http_app(), options.port, "/mcp")


if __name__ == "__main__":
    main()
