"""Arguments of a call: judged by the tool's own schema, mended where that is plain, before anything is sent.

Order for a caller: `restore` (names that were changed for the model), `repair`, `check`.
"""

from __future__ import annotations

from toolbay.arguments.repairs import repair, restore
from toolbay.arguments.validator import BadSchema, Validator, check, compile  # noqa: A004  # `arguments.compile` reads as it should

__all__ = ["BadSchema", "Validator", "check", "compile", "repair", "restore"]
