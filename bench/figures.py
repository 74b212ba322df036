"""The page docs/figures.md, made from the results of `peers.py run`: every number and every sentence about one comes from a file.

A measure of which less is better is compared by its ratio to the best client's; where Toolbay is more than 5 % off the best, the
page says so, in a list of its own. `floor` is no client: it shows what the machine could do, and is never compared with.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Row = Mapping[str, Any]
CLIENTS = ("floor", "sdk2", "sdk1", "fastmcp", "openai-agents", "pydantic-ai", "nanobot", "toolbay")
OURS, FLOOR = "toolbay", "floor"
NAMES = {
    "floor": "(floor)",
    "sdk2": "SDK 2",
    "sdk1": "SDK 1",
    "fastmcp": "FastMCP",
    "openai-agents": "openai-agents",
    "pydantic-ai": "pydantic-ai",
    "nanobot": "nanobot",
    "toolbay": "**Toolbay**",
}
CLOSE = 1.05
"""Ratio to the best up to which a figure counts as good as the best: less is noise."""
CASES = {
    "stdio-between": "stdio: the server is killed between two calls",
    "stdio-during": "stdio: killed while a call runs",
    "http-between": "HTTP: restarted between two calls",
    "http-during": "HTTP: killed while a call runs, before its answer began",
    "http-during-sse-open": "HTTP: killed while a call runs, its event stream open",
    "http-between-down": "HTTP: gone for good",
}


@dataclass
class Measure:
    """One column of a table: a number for each client; `more` where more of it is better."""

    title: str
    values: dict[str, float | None]
    digits: int = 0
    more: bool = False
    instead: dict[str, str] = field(default_factory=dict[str, str])
    """What a client's cell says where it has no number."""
    compared: bool = True
    name: str = ""
    """The title where it stands alone."""

    def cell(self, client: str) -> str:
        value = self.values.get(client)
        return self.instead.get(client, "-") if value is None else f"{value:,.{self.digits}f}"


class Page:
    """The page as it grows, and what was measured on it."""

    def __init__(self, results: Path) -> None:
        self._results = results
        self._lines: list[str] = []
        self._compared: list[tuple[str, Measure]] = []

    def rows(self, name: str) -> list[Row]:
        path = self._results / f"{name}.jsonl"
        return [json.loads(line) for line in path.read_text("utf-8").splitlines()] if path.exists() else []

    def say(self, *paragraphs: str) -> None:
        for text in paragraphs:
            self._lines += [text, ""]

    def table(self, what: str, measures: Sequence[Measure]) -> None:
        present = [client for client in CLIENTS if any(client in m.values or client in m.instead for m in measures)]
        rows = [[NAMES[client], *(measure.cell(client) for measure in measures)] for client in present]
        self.grid(["client", *(measure.title for measure in measures)], rows)
        self._compared += [(what, measure) for measure in measures if measure.compared]

    def grid(self, head: Iterable[str], rows: Iterable[Iterable[str]]) -> None:
        head = list(head)
        lines = [f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows)]
        self._lines += [*lines, ""]

    def behind(self) -> list[str]:
        """Where a client does better than Toolbay, worst first."""
        found: list[tuple[float, str]] = []
        for what, measure in self._compared:
            values = {name: value for name, value in measure.values.items() if value is not None and name != FLOOR}
            if OURS not in values or len(values) < 2:
                continue
            best = (max if measure.more else min)(values, key=lambda name: values[name])
            off = values[best] / values[OURS] if measure.more else values[OURS] / values[best] if values[best] > 0 else math.inf
            # What is printed as the same is no difference.
            if off > CLOSE and measure.cell(OURS) != measure.cell(best):
                sizes = f"{measure.cell(OURS)}, {NAMES[best]} {measure.cell(best)}"
                found.append((off, f"- {what}, {measure.name or measure.title}: {sizes}{f' (x{off:.2f})' if off < math.inf else ''}"))
        return [text for _, text in sorted(found, reverse=True)]

    def text(self) -> str:
        return "\n".join(self._lines).rstrip() + "\n"


def median(values: Iterable[float]) -> float | None:
    known = list(values)
    return statistics.median(known) if known else None


def percentile(values: Iterable[float], part: float) -> float | None:
    known = sorted(values)
    return known[min(len(known) - 1, int(len(known) * part))] if known else None


def _by_client(rows: Iterable[Row]) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(row["peer"], []).append(row)
    return found


def _short(text: str, limit: int = 70) -> str:
    flat = " ".join(text.split()).replace("|", "/")
    return flat if len(flat) <= limit else flat[: limit - 1] + "…"


# -- the parts ------------------------------------------------------------------------------------------------------------


def cold(page: Page) -> None:
    rows = page.rows("cold")
    titles = {
        "stdio1": "1 server",
        "stdio5": "5 servers",
        "stdio20": "20 servers",
        "stdio20-slow": "20 servers, each 0.5 s slow",
        "stdio5-dead": "5 and a dead one",
        "stdio5-hang": "5 and a hanging one",
    }
    measures: list[Measure] = []
    for case, title in titles.items():
        of_case = _by_client(row for row in rows if row["case"] == case)
        measure = Measure(title, {}, 2)
        for client, runs in of_case.items():
            good = [run["res"]["t_listed"] for run in runs if run.get("res", {}).get("outcome") == "ok"]
            measure.values[client] = median(good)
            measure.instead[client] = _no_start(runs[-1])
        measures.append(measure)
    page.say(
        "## Cold start",
        "Seconds from the start of the process to the tools of all servers that can be had, over stdio, with an empty cache. A dead server "
        "ends at once; a hanging one never answers.",
    )
    page.table("cold start", measures)


def _no_start(run: Row) -> str:
    result = run.get("res", {})
    outcome = result.get("outcome", "crashed")
    if "t_failed" in result:
        return f"fails as a whole after {result['t_failed']:.0f} s"
    return _short(outcome, 40)


def calls(page: Page) -> None:
    page.say(
        "## Calls",
        "A small tool on one server. p50 and p99 are one call at a time, in microseconds; CPU is the client's own, in microseconds a call, "
        "one at a time and 100 at once; calls a second at 1, 10 and 100 concurrent.",
    )
    for title, name, response in (
        ("stdio", "calls-stdio", None),
        ("HTTP, answers as event streams (SSE)", "calls-http", "sse"),
        ("HTTP, answers as JSON", "calls-http", "json"),
    ):
        rows = [row for row in page.rows(name) if row["response"] == response]
        if rows:
            page.say(f"### {title}")
            _calls(page, title, rows)


def _calls(page: Page, title: str, rows: Sequence[Row]) -> None:
    def of(phase: str, take: Callable[[list[Row]], float | None]) -> dict[str, float | None]:
        found = _by_client(row for row in rows if row["phase"] == phase)
        return {client: take(runs) for client, runs in found.items() if client in CLIENTS}

    def p50(runs: list[Row]) -> float | None:
        return median(percentile(run["lat"], 0.5) or 0 for run in runs)

    def p99(runs: list[Row]) -> float | None:
        return percentile((one for run in runs for one in run["lat"]), 0.99)

    def cpu(runs: list[Row]) -> float | None:
        return median(run["cpu"] / run["n"] * 1e6 for run in runs)

    def rate(runs: list[Row]) -> float | None:
        return median(run["n"] / run["wall"] for run in runs)

    errors = {client: float(sum(run["errors"] for run in runs)) for client, runs in _by_client(rows).items() if client in CLIENTS}
    page.table(
        title,
        [
            Measure("p50 µs", of("seq", p50)),
            Measure("p99 µs", of("seq", p99)),
            Measure("CPU µs", of("seq", cpu)),
            Measure("CPU µs at 100", of("c100", cpu)),
            Measure("calls/s at 1", of("seq", rate), more=True),
            Measure("at 10", of("c10", rate), more=True, name="calls/s at 10"),
            Measure("at 100", of("c100", rate), more=True, name="calls/s at 100"),
            Measure("errors", dict(errors), compared=False),
        ],
    )
    ratios = {phase: _ratio([row for row in rows if row["phase"] == phase]) for phase in ("seq", "c10", "c100")}
    told = ", ".join(f"x{ratio:.2f} at {at}" for (_, ratio), at in zip(ratios.items(), (1, 10, 100), strict=True) if ratio is not None)
    if told:
        page.say(f"CPU of a call through Toolbay, by the same call through the raw SDK 2 in the same round: {told}.")


def _ratio(rows: Iterable[Row]) -> float | None:
    by = _by_client(rows)
    theirs = {run["round"]: run["cpu"] / run["n"] for run in by.get("sdk2", [])}
    return median(run["cpu"] / run["n"] / theirs[run["round"]] for run in by.get(OURS, []) if run["round"] in theirs)


def payload(page: Page) -> None:
    rows = page.rows("payload")
    page.say("## Large results", "Milliseconds until a result is there, and the growth of the client's memory at its peak in MB.")
    for title, transport, response in (("stdio", "stdio", None), ("HTTP, SSE", "http", "sse"), ("HTTP, JSON", "http", "json")):
        part = [row for row in rows if row["transport"] == transport and row["response"] == response]
        if not part:
            continue
        page.say(f"### Results over {title}")
        measures: list[Measure] = []
        for tool, size in (("big_text", 1_000_000), ("big_image", 5_000_000), ("big_text", 20_000_000)):
            label = f"{size // 1_000_000} MB {'of text' if tool == 'big_text' else 'picture'}"
            found = _by_client(row for row in part if row["case"] == [tool, size])
            results = {client: runs[-1].get("res", {}).get(f"{tool}:{size}", {}) for client, runs in found.items()}
            good = {client: one for client, one in results.items() if one.get("ms") and not one.get("err")}
            lost = {client: _lost(one) for client, one in results.items() if client not in good}
            measures += [
                Measure(f"{label}, ms", {client: min(one["ms"]) for client, one in good.items()}, instead=lost),
                Measure(
                    "MB",
                    {client: (one["peak_kb"] - one["rss_before_kb"]) / 1024 for client, one in good.items()},
                    instead=lost,
                    name=f"{label}, MB of memory",
                ),
            ]
        page.table(f"results over {title}", measures)


def _lost(result: Row) -> str:
    return "lost" if result.get("err") else "crashed"


def tools(page: Page) -> None:
    rows = page.rows("tools")
    page.say("## Many tools", "One server over stdio: seconds to connect, list and make ready for a model; CPU seconds; MB at the peak.")
    for size in (1_000, 10_000):
        found = {client: runs[-1] for client, runs in _by_client(row for row in rows if row["size"] == size).items()}
        good = {client: run["res"] for client, run in found.items() if "res" in run}
        crashed = {client: "crashed" for client in found if client not in good}
        if not found:
            continue
        page.say(f"### {size:,} tools")
        page.table(
            f"{size:,} tools",
            [
                Measure("seconds", {client: one["total_s"] for client, one in good.items()}, 2, instead=crashed),
                Measure("CPU s", {client: one["cpu_s"] for client, one in good.items()}, 2),
                Measure("peak MB", {client: one["peak_kb"] / 1024 for client, one in good.items()}),
                Measure("a call then, µs", {client: one["call_p50_us"] for client, one in good.items()}),
                Measure("tools", {client: float(one["n"]) for client, one in good.items()}, compared=False),
            ],
        )


def long(page: Page) -> None:
    found = {client: runs[-1] for client, runs in _by_client(page.rows("long")).items()}
    good = {client: run["res"] for client, run in found.items() if "res" in run}
    page.say("## 20,000 calls", "Over stdio, 4 at a time. What is left after closing: open descriptors, tasks, processes.")
    if not good:
        return
    page.table(
        "20,000 calls",
        [
            Measure("seconds", {client: one["wall_s"] for client, one in good.items()}, 1),
            Measure("MB before", {client: one["curve_kb"][0] / 1024 for client, one in good.items()}),
            Measure("MB more after", {client: (one["curve_kb"][-1] - one["curve_kb"][0]) / 1024 for client, one in good.items()}, 1),
            Measure("descriptors", {client: float(one["after"]["fds"] - one["base"]["fds"]) for client, one in good.items()}),
            Measure("tasks", {client: float(one["after"]["tasks"] - one["base"]["tasks"]) for client, one in good.items()}),
            Measure("processes", {client: float(len(one["after"]["children"])) for client, one in good.items()}),
        ],
    )


def faults(page: Page) -> None:
    page.say(
        "## The kills",
        "A tool that counts its executions is called; the server is ended with SIGKILL and, over HTTP, started again after 0.2 s. Shown: "
        "what came of the call that met it, seconds until then, how often the tool was executed, whether the next call and one a second "
        "later went through. The clients were run side by side, since they do little but wait.",
    )
    latest = {(row["case"], row["peer"]): row for row in page.rows("faults")}
    for case, title in CASES.items():
        rows = [(client, latest[case, client]) for client in CLIENTS if (case, client) in latest]
        if rows:
            page.say(f"### {title}")
            page.grid(["client", "the call", "s", "executed", "next", "later"], [_kill(client, row) for client, row in rows])


def _kill(client: str, row: Row) -> list[str]:
    steps = {step["step"]: step for step in row.get("res", {}).get("steps", [])}
    met = steps.get("killed during") or steps.get("after kill")
    if met is None:
        return [NAMES[client], _short(row.get("res", {}).get("fatal", "crashed")), "-", "-", "-", "-"]

    def went(step: str) -> str:
        said = steps.get(step, {}).get("out", "-")
        return "yes" if said.startswith("ok") else "hangs" if said.startswith("HANG") else "no"

    said = met["out"]
    told = "went through" if said.startswith("ok") else _short(said.removeprefix("error-result: "), 150)
    return [NAMES[client], told, f"{met['s']:.1f}", str(met.get("executions", "-")), went("next"), went("1s later")]


# -- the page -------------------------------------------------------------------------------------------------------------


def page(results: Path, facts: Mapping[str, Any]) -> str:
    body = Page(results)
    for part in (cold, calls, payload, tools, long, faults):
        part(body)
    return f"{head(facts, body.behind())}\n{body.text()}"


def head(facts: Mapping[str, Any], behind: Sequence[str]) -> str:
    versions = ", ".join(facts["versions"].values())
    trial = "**From a trial with few rounds: no figures to quote.** " if facts["trial"] else ""
    where = (
        "All figures of this page in which another client is more than 5 % better, the largest distance first. What Toolbay does for a "
        "call and the others do not has a price, and here it is."
    )
    return f"""# Figures

{trial}Toolbay beside the official SDK, used raw, in both generations, and beside FastMCP, openai-agents, pydantic-ai
and nanobot. Every figure is made by `bench/peers.py` (see `bench/README.md`) from one run.

{facts["date"]}; {facts["machine"]}; {facts["system"]}; Python {facts["python"]} for all clients and servers; {versions}.

**How.** The shared harness in `../shared/bench`: each client in an environment of its own, called the way its own agent calls tools,
against one stub server on pipes and loopback. Within a part the clients take turns, round by round, so that a slow moment of the machine
meets them all; figures are medians over rounds. Compare figures within one table only. The floor is bare pipes and sockets with no MCP
library: what the machine can do. The raw SDK and FastMCP have no model in mind: they check and mend no arguments, shorten, mask and store
no results, ask nobody for approval, and leave deadlines, restarts and repeats to their users. All servers are on the machine itself: over
a network, waiting outweighs most of what is measured here.

## Where Toolbay is not the best

{where if behind else "In no figure on this page is another client more than 5 % better."}

{chr(10).join(behind)}
"""
