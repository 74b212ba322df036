"""The coats in which a secret comes, and where a text has one of them."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from functools import lru_cache
from urllib.parse import quote, quote_plus


@lru_cache(maxsize=256)
def forms(secret: str) -> frozenset[str]:
    """The coats in which a secret comes. Base64 also as a part of a longer text, at each of the three alignments."""
    raw = secret.encode("utf-8", "surrogatepass")
    found = {
        secret,
        quote(raw, safe=""),
        quote(raw),
        quote_plus(raw),
        json.dumps(secret)[1:-1],
        json.dumps(secret, ensure_ascii=False)[1:-1],
    }
    # As it stands in JSON that is a text within JSON: such as the arguments of a call that hold a document.
    found |= {json.dumps(form, ensure_ascii=False)[1:-1] for form in tuple(found)}
    found |= {re.sub(r"%[0-9A-F]{2}", lambda match: match[0].lower(), form) for form in tuple(found) if "%" in form}
    for shift in range(3):
        encoded = base64.b64encode(b"\0" * shift + raw).decode().rstrip("=")
        # The first characters mix with what stands before the secret, the last one with what follows it.
        core = encoded[(0, 2, 3)[shift] : len(encoded) - (1 if (len(raw) + shift) % 3 else 0)]
        if len(core) >= 6:
            found |= {core, core.replace("+", "-").replace("/", "_")}
    for whole in (base64.b64encode(raw).decode(), base64.urlsafe_b64encode(raw).decode()):
        found |= {whole, whole.rstrip("=")}
    return frozenset(found)


def covered(text: str, form: str) -> Iterator[tuple[int, int]]:
    """The stretches that occurrences of `form` cover, which may overlap. The work is linear, whoever chose the two.

    Occurrences that lie less than half its length apart are repetitions of the same piece, so that the last one of them is found
    at once; of others there are few.
    """
    size = len(form)
    begin = at = text.find(form)
    while at >= 0:
        following = text.find(form, at + 1)
        if at < following <= at + size // 2:
            at = _repeated(text, following + size, following - at) - size
            continue
        if not 0 <= following <= at + size:
            yield begin, at + size
            begin = following
        at = following


def _repeated(text: str, end: int, step: int) -> int:
    """Where the last `step` characters before `end` have been repeated as often as they are."""
    piece = text[end - step : end]
    while text.startswith(piece, end):
        end += len(piece)
        piece += piece
    while len(piece) > step:
        piece = piece[: len(piece) // 2]
        if text.startswith(piece, end):
            end += len(piece)
    return end
