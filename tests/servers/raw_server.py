"""A stdio server without an SDK that does exactly the wrong thing it is told to by its arguments.

It speaks `initialize` of 2025-11-25, lists and calls tools, and answers -32601 to all else (so also to the probe of newer clients).
Standard library only: it starts in some tens of milliseconds, and nothing in it mends what a test wants broken.

WHAT in an argument is a method (`initialize`, `tools/list`) or the name of a tool. Of a tool's call the effect comes first and
the fault after it, but for `--die-before`. `{secret}` in a TEXT is the value of FAULT_SECRET in the environment.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

PROTOCOL = "2025-11-25"
FOREVER = 3600.0
PARAMETERS = {"slow": {"steps": {"type": "integer"}, "seconds": {"type": "number"}}, "grow": {"name": {"type": "string"}}}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--tools", default="echo,note,slow", help="names of the tools, with commas; what they do: see Server.run_tool")
    add("--pages", type=int, default=1, help="tools/list comes in so many pages, each further one with one tool page_N")
    add("--endless-pages", action="store_true", help="tools/list always names the same next page")
    add("--spoil-list", type=Path, metavar="FILE", help="once FILE is there, tools/list is as it says: see Server.list")
    add("--provoke", action="store_true", help="say that the tools changed after each time that they were listed")
    add("--announce", type=int, default=0, metavar="N", help="say so many times that the tools changed before each answer to a call")
    add("--chatter", type=int, default=0, metavar="N", help="so many log messages and progress before each answer to a call")
    add("--hang", action="append", default=[], metavar="METHOD", help="never answer this method")
    add("--no-reply", action="append", default=[], metavar="TOOL", help="take the call, let it act, never answer")
    add("--late", action="append", default=[], metavar="TOOL", help="answer a call only after its notifications/cancelled came")
    add("--die-on", action="append", default=[], metavar="TOOL", help="let the call act, then die without an answer")
    add("--die-once", metavar="FILE", help="with --die-on: only if FILE is not there yet; it is made")
    add("--error", action="append", default=[], metavar="TOOL=CODE", help="answer a call with this JSON-RPC error code")
    add("--die-before", action="append", default=[], metavar="WHAT", help="die when it is asked, before anything is done")
    add("--cut", action="append", default=[], metavar="WHAT=BYTES", help="die after so many bytes of the answer; negative: from its end")
    add("--stall", action="append", default=[], metavar="WHAT=BYTES", help="write so many bytes of the answer, then nothing any more")
    add("--once", metavar="FILE", help="faults of an answer only while FILE is not there; the first of them makes it")
    add("--big", action="append", default=[], metavar="TOOL=BYTES", help="answer with a text of so many characters")
    add("--endless", action="append", default=[], metavar="WHAT", help="begin to answer with a line that never ends")
    add("--bad-bytes", action="append", default=[], metavar="TOOL", help="answer with bytes in the text that are no UTF-8")
    add("--put", type=Path, metavar="FILE", help='what FILE holds, in the place of each "?!" in an answer, as JSON that may be none')
    add("--other-id", action="append", default=[], metavar="TOOL=ID", help="answer under this id (JSON) first, then under the right one")
    add("--twice", action="append", default=[], metavar="TOOL", help="answer two times")
    add("--deaf-after", metavar="METHOD", help="after the answer to this method read nothing any more")
    add("--close-stdin-at", metavar="METHOD", help="close the input right before the answer to this method")
    add("--greet", type=int, default=0, metavar="BYTES", help="so many bytes of text lines before the first answer")
    add("--flood-stderr", type=int, default=0, metavar="BYTES", help="so many bytes to standard error at the start of every call")
    add("--binary-stderr", action="store_true", help="what goes to standard error are random bytes without line ends")
    add("--close-stderr", action="store_true", help="close standard error at the start")
    add("--exit-after", type=float, metavar="SECONDS", help="exit with code 3 so long after the handshake")
    add("--serial", type=float, metavar="SECONDS", help="take calls one after another, each for so long")
    add("--drop", type=int, default=0, metavar="N", help="never answer every Nth call")
    add("--exit-at-start", type=int, metavar="CODE", help="exit at once")
    add("--stderr", metavar="TEXT", action="append", default=[], help="write this line to standard error at the start")
    add("--slow-start", type=float, default=0.0, metavar="SECONDS", help="wait before reading anything")
    add("--string-ids", action="store_true", help="answer with the ids as text")
    add("--pollute", type=int, default=0, metavar="N", help="so many lines that are no JSON-RPC before every answer")
    add("--bad-tool", action="store_true", help="list one tool that does not follow the protocol, before the good ones")
    add("--mute-prompt", action="store_true", help="offer a prompt `mute` whose answer holds no messages")
    add("--bad-progress", action="store_true", help="send a progress notification without a token before every answer to a call")
    add("--log", metavar="TEXT", help="log this over the protocol, as a warning, at the start of every call")
    add("--ignore-eof", action="store_true", help="live on after the end of input")
    add("--ignore-sigterm", action="store_true", help="do not end on SIGTERM")
    add(
        "--spawn", action="append", default=[], metavar="HOW", help="at the start leave something behind, as hostile.py can; needs --family"
    )
    add("--family", metavar="FILE", help="with --spawn: a line `HOW PID` for each")
    add("--hog", action="append", default=[], metavar="TOOL=MB", help="take so much memory before answering, and keep it")
    add(
        "--forks",
        action="append",
        default=[],
        metavar="TOOL=N",
        help="start so many processes before answering; they end with us, or when told",
    )
    add("--result", action="append", default=[], metavar="TOOL=FILE", help="answer with the result in FILE, as JSON")
    add("--spawn-child", action="store_true", help="start a process of our own that outlives its input; its pid is an effect: child PID")
    add("--starts", type=Path, default=_path("RAW_STARTS"), metavar="FILE", help="a line for every start: the pid")
    add("--effects", type=Path, default=_path("RAW_EFFECTS"), metavar="FILE", help="a line for every tool that acted, by name")
    add("--definitions", type=Path, metavar="FILE", help="JSON of further keys of tools, by name; read anew for every list")
    add("--journal", type=Path, metavar="FILE", help="a line of JSON for every message that came in")
    return parser.parse_args()


def _path(variable: str) -> Path | None:
    value = os.environ.get(variable)
    return Path(value) if value else None


class Server:
    """One conversation over standard input and output. Answers may come from threads; each is one write."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.tools = [name for name in options.tools.split(",") if name]
        self.errors = _numbers(options.error)
        self.cuts, self.stalls, self.sizes = _numbers(options.cut), _numbers(options.stall), _numbers(options.big)
        self.other_ids = {name: json.loads(given) for name, _, given in (item.partition("=") for item in options.other_id)}
        self.hogs, self.forks = _numbers(options.hog), _numbers(options.forks)
        self.results = {name: Path(file) for name, _, file in (item.partition("=") for item in options.result)}
        self.kept: list[bytearray] = []
        self.calls = 0
        self.queue = threading.Lock()
        self.cancelled: dict[Any, threading.Event] = {}
        self.writing = threading.Lock()

    def send(self, message: dict[str, Any], what: str = "") -> None:
        if self.options.string_ids and "id" in message:
            message["id"] = str(message["id"])
        data = json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n"
        if what in self.options.bad_bytes:
            data = data.replace(b"?!", b"\xff\xfe")
        if self.options.put:
            data = data.replace(b'"?!"', self.options.put.read_bytes())
        with self.writing:
            if what in {*self.cuts, *self.stalls, *self.options.endless} and self.first_time():
                self.spoil(data, what)
            self.write(data)

    def write(self, data: bytes) -> None:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()

    def first_time(self) -> bool:
        """Whether a fault is due: always, or with `--once` the first time that any process of ours asks."""
        if self.options.once is None:
            return True
        try:
            os.close(os.open(self.options.once, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
        return True

    def spoil(self, data: bytes, what: str) -> None:
        """Begin an answer, and never end it."""
        if what in self.options.endless:
            self.write(data.rstrip(b"\n"))
            while True:
                self.write(b"x" * (1 << 20))
        self.write(data[: {**self.stalls, **self.cuts}[what]])
        if what in self.cuts:
            os._exit(7)
        time.sleep(FOREVER)

    def reply(self, message_id: Any, result: dict[str, Any], what: str = "") -> None:
        for number in range(self.options.pollute):
            with self.writing:
                self.write(f"INFO: line {number} that is no message\n".encode())
        if what in self.other_ids:
            self.send({"id": self.other_ids[what], "result": _text("of another call")})
        if what in self.options.twice:
            self.send({"id": message_id, "result": result})
            result = _text("once more")
        self.send({"id": message_id, "result": result}, what)

    def refuse(self, message_id: Any, code: int, text: str) -> None:
        self.send({"id": message_id, "error": {"code": code, "message": text}})

    def effect(self, line: str) -> None:
        """Append one line in one write, so that a count holds whatever dies next."""
        if self.options.effects:
            with self.options.effects.open("a", encoding="utf-8") as file:
                file.write(line + "\n")

    def serve(self) -> None:
        for line in sys.stdin:
            if self.options.journal:
                with self.options.journal.open("a", encoding="utf-8") as file:
                    file.write(line)
            message = json.loads(line)
            method = message.get("method", "")
            if method in self.options.hang:
                continue
            if method in self.options.die_before and self.first_time():
                os._exit(7)
            if method == self.options.close_stdin_at:
                os.close(0)
            if "id" in message:
                self.request(message["id"], method, message.get("params") or {})
                if method == self.options.deaf_after:
                    time.sleep(FOREVER)
                if method == self.options.close_stdin_at:
                    time.sleep(FOREVER)
            elif method == "notifications/cancelled":
                self.cancelled.setdefault(message["params"]["requestId"], threading.Event()).set()

    def request(self, message_id: Any, method: str, params: dict[str, Any]) -> None:
        if method == "initialize":
            server = {"name": "raw", "version": "1.0"}
            offered = {"tools": {"listChanged": True}, **({"prompts": {}} if self.options.mute_prompt else {})}
            self.reply(message_id, {"protocolVersion": PROTOCOL, "capabilities": offered, "serverInfo": server}, method)
            if self.options.exit_after is not None:
                threading.Timer(self.options.exit_after, os._exit, (3,)).start()
        elif method == "ping":
            self.reply(message_id, {})
        elif method == "prompts/list" and self.options.mute_prompt:
            self.reply(message_id, {"prompts": [{"name": "mute"}]})
        elif method == "prompts/get" and self.options.mute_prompt:
            self.reply(message_id, {"description": "no messages"})
        elif method == "tools/list":
            self.list(message_id, int(params.get("cursor") or 0))
        elif method == "tools/call":
            # A thread a call: a slow one must not keep the notification from us that cancels it.
            threading.Thread(target=self.call, args=(message_id, params), daemon=True).start()
        else:
            self.refuse(message_id, -32601, "Method not found")

    def list(self, message_id: Any, number: int) -> None:
        """The tools; spoilt: `endless`, `repeated` or `empty` cursors, an `error`, or `nothing` any more."""
        spoil = self.options.spoil_list
        how = spoil.read_text(encoding="utf-8") if spoil and spoil.exists() else ""
        if how == "error":
            self.refuse(message_id, -32603, "the list is spoilt, as told")
        elif how:
            listed = [] if how == "nothing" else [_tool(f"spoilt_{number}")]
            following = {"nothing": None, "endless": str(number + 1), "repeated": "7", "empty": ""}[how]
            self.reply(message_id, {"tools": listed, "nextCursor": following}, "tools/list")
        else:
            self.reply(message_id, self.page(number), "tools/list")
        if self.options.provoke:
            self.send({"method": "notifications/tools/list_changed"})

    def page(self, number: int) -> dict[str, Any]:
        if number:
            listed = [_tool(f"page_{number}")]
        else:
            listed = [_tool(name) for name in self.tools]
            if self.options.bad_tool:
                listed.insert(0, {"name": "bad", "inputSchema": {"properties": 5}, "annotations": {"readOnlyHint": "yes please"}})
        if self.options.definitions and self.options.definitions.exists():
            further = json.loads(self.options.definitions.read_text(encoding="utf-8"))
            listed = [{**tool, **further.get(tool["name"], {})} for tool in listed]
        if self.options.endless_pages:
            return {"tools": listed, "nextCursor": "1"}
        return {"tools": listed, "nextCursor": str(number + 1)} if number + 1 < self.options.pages else {"tools": listed}

    def call(self, message_id: Any, params: dict[str, Any]) -> None:
        name, given = params.get("name", ""), params.get("arguments") or {}
        options = self.options
        if name in options.die_before and self.first_time():
            os._exit(7)
        if options.flood_stderr:
            _flood(options.flood_stderr, binary=options.binary_stderr)
        if options.serial is not None:
            with self.queue:
                time.sleep(options.serial)
        token = (params.get("_meta") or {}).get("progressToken")
        for _ in range(options.announce):
            self.send({"method": "notifications/tools/list_changed"})
        for number in range(options.chatter):
            self.send({"method": "notifications/message", "params": {"level": "info", "data": f"line {number}"}})
            self.send({"method": "notifications/progress", "params": {"progressToken": token, "progress": number}})
        if options.log is not None:
            self.send({"method": "notifications/message", "params": {"level": "warning", "data": options.log}})
        if name in self.errors:
            self.refuse(message_id, self.errors[name], f"{name} is refused, as told")
            return
        result = self.run_tool(message_id, name, given, (params.get("_meta") or {}).get("progressToken"))
        if result is None:
            self.refuse(message_id, -32602, f"Unknown tool: {name}")
            return
        self.effect(name)
        with self.queue:
            self.calls += 1
            dropped = options.drop and self.calls % options.drop == 0
        if dropped:
            return
        if name in options.die_on and not (options.die_once and Path(options.die_once).exists()):
            if options.die_once:
                Path(options.die_once).touch()
            os._exit(7)
        if name in options.no_reply:
            return
        if name in options.late:
            self.cancelled.setdefault(message_id, threading.Event()).wait(FOREVER)
        if options.bad_progress:
            self.send({"method": "notifications/progress", "params": {"progress": 1}})
        self.reply(message_id, result, name)

    def run_tool(self, message_id: Any, name: str, given: dict[str, Any], token: Any) -> dict[str, Any] | None:
        """`slow` reports progress `steps` times, `seconds` apart; `grow` adds the tool `name`; every other one says its arguments back."""
        if name == "slow":
            stop = self.cancelled.setdefault(message_id, threading.Event())
            steps = int(given.get("steps", 1))
            for step in range(steps):
                if stop.wait(float(given.get("seconds", 0))):
                    return _text("cancelled")
                if token is not None:
                    progress = {"progressToken": token, "progress": step + 1, "total": steps, "message": f"step {step + 1}"}
                    self.send({"method": "notifications/progress", "params": progress})
            return _text(f"{steps} steps")
        if name == "grow" and name in self.tools:
            self.tools.append(str(given["name"]))
            self.send({"method": "notifications/tools/list_changed"})
            return _text("grown")
        if name in self.hogs:
            for _ in range(self.hogs[name] // 10):
                self.kept.append(bytearray(b"x") * 10_000_000)
                time.sleep(0.002)  # so that a watch sees it grow, as it would a real one
        for _ in range(self.forks.get(name, 0)):
            _fork()
        if name in self.results:
            return json.loads(self.results[name].read_text(encoding="utf-8"))
        if name in self.sizes:
            return _text("x" * self.sizes[name])
        if name in self.tools or name.startswith("page_"):
            return _text(str(given.get("text", json.dumps(given))))
        return None


def _tool(name: str) -> dict[str, Any]:
    return {
        "name": name,
        "description": f"The tool {name}",
        "inputSchema": {"type": "object", "properties": PARAMETERS.get(name, {"text": {"type": "string"}})},
        "annotations": {"readOnlyHint": name == "echo"},
    }


def _numbers(given: list[str]) -> dict[str, int]:
    return {name: int(number) for name, _, number in (item.rpartition("=") for item in given)}


def _fork() -> None:
    """One process more, that ignores SIGTERM and ends after a minute whatever happens; the next one is a moment later."""
    if os.fork() == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(60)
        os._exit(0)
    time.sleep(0.001)


def _flood(size: int, *, binary: bool) -> None:
    """Write `size` bytes to standard error, however slowly they are taken."""
    piece = os.urandom(1 << 16).replace(b"\n", b"-") if binary else b"a line that says nothing at all, many times over\n" * 1300
    with open(2, "wb", buffering=0, closefd=False) as stream:
        while size > 0:
            size -= stream.write(piece[:size]) or 0


def _text(text: str) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": text}]}


def main() -> None:
    options = arguments()
    if options.starts:
        with Path(options.starts).open("a", encoding="utf-8") as file:
            file.write(f"{os.getpid()}\n")
    for text in options.stderr:
        print(text.replace("{secret}", os.environ.get("FAULT_SECRET", "")), file=sys.stderr, flush=True)
    if options.close_stderr:
        os.close(2)
    if options.exit_at_start is not None:
        sys.exit(options.exit_at_start)
    if options.ignore_sigterm:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    server = Server(options)
    if options.spawn_child:
        child = subprocess.Popen([sys.executable, "-c", f"import time; time.sleep({FOREVER})"], stdin=subprocess.DEVNULL)
        server.effect(f"child {child.pid}")
    if options.spawn:
        sys.path.append(str(Path(__file__).parent))
        import hostile  # pyright: ignore[reportMissingImports] - from the folder of this program

        for how in options.spawn:
            hostile.start(options.family, how)
        while not Path(options.family).exists() or Path(options.family).read_text(encoding="utf-8").count("\n") < len(options.spawn):
            time.sleep(0.01)
    if options.greet:
        server.write((b"A line of a server that talks too much on its standard output.\n" * (options.greet // 60 + 1))[: options.greet])
        server.write(b"\n")
    time.sleep(options.slow_start)
    server.serve()
    if options.ignore_eof:
        time.sleep(FOREVER)


if __name__ == "__main__":
    main()
