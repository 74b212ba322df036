"""raw_server.py behind a gate: it starts once the file GATE is there. `gated.py GATE [ARGUMENT...]`

What stands in the file, a list in JSON, are further arguments: so one and the same launch can become another server; `--strange`
is one that answers every message with a version of the protocol that nobody knows. The file GATE.knocked tells that somebody has
started it.
"""

from __future__ import annotations

import json
import runpy
import sys
import time
from pathlib import Path

gate = Path(sys.argv[1])
gate.with_name(gate.name + ".knocked").touch()
while not gate.exists():
    time.sleep(0.01)
further = json.loads(gate.read_text(encoding="utf-8") or "[]")
if further == ["--strange"]:
    for line in sys.stdin:
        result = {"protocolVersion": "1999-01-01", "capabilities": {}, "serverInfo": {"name": "strange", "version": "0"}}
        print(json.dumps({"jsonrpc": "2.0", "id": json.loads(line)["id"], "result": result}), flush=True)
    sys.exit(0)
sys.argv[1:] = [*sys.argv[2:], *further]
runpy.run_path(str(Path(__file__).with_name("raw_server.py")), run_name="__main__")
