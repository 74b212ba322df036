"""URI templates of resources (RFC 6570): which variables they have, and what they become.

The forms that servers use are read: `{a}`, `{+a}`, `{#a}`, `{/a}`, `{.a}`, `{;a}`, `{?a,b}`, `{&a}`, each with `*`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import quote

from toolbay.types import Json

_EXPRESSION = re.compile(r"\{([+#/.;?&]?)([A-Za-z0-9_.%]+\*?(?:,[A-Za-z0-9_.%]+\*?)*)\}")
_RESERVED = ":/?#[]@!$&'()*+,;="
_OPERATORS = {
    "": ("", ",", False, ""),
    "+": ("", ",", False, _RESERVED),
    "#": ("#", ",", False, _RESERVED),
    "/": ("/", "/", False, ""),
    ".": (".", ".", False, ""),
    ";": (";", ";", True, ""),
    "?": ("?", "&", True, ""),
    "&": ("&", "&", True, ""),
}
"""Operator: what comes first, what separates, whether names are written, which characters stay (RFC 6570, appendix A)."""


@dataclass(frozen=True, slots=True)
class Template:
    """A template that can be expanded. `required` are the variables without which it would name something else."""

    text: str
    variables: tuple[str, ...]
    required: tuple[str, ...]

    @property
    def schema(self) -> Json:
        """JSON Schema of what `expand` takes."""
        return {
            "type": "object",
            "properties": {name: {"type": "string", "description": f"`{name}` in {self.text}"} for name in self.variables},
            "required": list(self.required),
        }

    def expand(self, values: Json) -> str:
        """The URI. A variable without a value leaves nothing behind."""
        return _EXPRESSION.sub(lambda match: _expand(match, values), self.text)


def parse(text: str) -> Template | None:
    """Read a template; None where it has braces that are no expression."""
    expressions = _EXPRESSION.findall(text)
    if re.search(r"[{}]", _EXPRESSION.sub("", text)):
        return None
    found = [(operator, name.rstrip("*")) for operator, names in expressions for name in names.split(",")]
    variables = tuple(dict.fromkeys(name for _, name in found))
    needed = {name for operator, name in found if operator not in ("?", "&")}
    return Template(text, variables, tuple(name for name in variables if name in needed))


def _expand(match: re.Match[str], values: Json) -> str:
    first, separator, named, safe = _OPERATORS[match[1]]
    parts: list[str] = []
    for variable in match[2].split(","):
        name = variable.rstrip("*")
        value = values.get(name)
        if value is None:
            continue
        text = quote(str(value), safe=safe)
        if not named:
            parts.append(text)
        else:
            # Only the path style leaves the sign out where there is nothing to its right (section 3.2.7).
            parts.append(name if first == ";" and not text else f"{name}={text}")
    return first + separator.join(parts) if parts else ""
