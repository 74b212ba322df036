"""`nullable`, which providers take, said in plain JSON Schema: so that a translation can be judged by."""

from __future__ import annotations

from typing import Any, cast

from toolbay import _schemas
from toolbay._schemas import Node
from toolbay.types import Json


def denullable(parameters: Json) -> Json:
    """What `parameters` mean in plain JSON Schema: `nullable: true` as a union with null."""

    def change(node: Any) -> Any:
        if not isinstance(node, dict):
            return node
        out = _schemas.rebuilt(cast("Node", node), change)
        if out.pop("nullable", False) is not True:
            return out
        return {"anyOf": [out, {"type": "null"}]}

    return cast("Json", change(parameters))
