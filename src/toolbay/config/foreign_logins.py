"""How other clients write a login, in our words: `oauth` objects, keys beside them, and keys that are read from the environment.

What has no equivalent here is told. Seen in the files and documentation of Claude Code, Codex, Cursor, Gemini CLI, Kiro,
LibreChat, mcpproxy-go, opencode, Vibe and VS Code.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, cast

from toolbay.config import fields, logins
from toolbay.config.models import LoginConfig

_KEYS = {
    "clientid": "clientId",
    "clientsecret": "clientSecret",
    "scope": "scopes",
    "scopes": "scopes",
    "oauthscopes": "scopes",
    "callbackport": "callbackPort",
    "callbackurl": "callbackUrl",
    "redirecturi": "callbackUrl",
    "redirecturl": "callbackUrl",
    "issuer": "issuer",
}
"""Folded: lower case, without `_` and `-`."""
_ADDRESSES = "the authorization server says its addresses itself; where the server does not say which one that is, name it by `issuer`"
_CALLBACK = (
    "the browser comes back to this machine: allow http://127.0.0.1:8765/callback at the authorization server, and set `callbackPort: 8765`"
)
_WITHOUT_EFFECT = {
    "authorizationurl": _ADDRESSES,
    "tokenurl": _ADDRESSES,
    "registrationurl": _ADDRESSES,
    "authservermetadataurl": _ADDRESSES,
    "redirecturi": _CALLBACK,
    "redirecturl": _CALLBACK,
    "callbackurl": _CALLBACK,
    "pkceenabled": "the code is protected (PKCE) in any case",
}
_BESIDE = ("oauthScopes", "scopes")
"""What Kiro and Codex write beside the object."""
_OURS = frozenset({*fields.names(LoginConfig), *LoginConfig.model_fields})
_METADATA = re.compile(r"(https?://[^/?#]+)/\.well-known/(?:oauth-authorization-server|openid-configuration)(/[^?#]*)?")
_METADATA_BELOW = re.compile(r"(https?://[^?#]+)/\.well-known/openid-configuration")
_VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]*")
"""Narrower than what a variable may be called: a token that stands in its place must not be told as the name of one."""


def translated(entry: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Put a login of another client's words into `entry` as `auth` or `headers`; gives each key and what is to be said of it."""
    yield from _from_environment(entry)
    yield from _renamed(entry)
    auth = entry.get("auth")
    if isinstance(auth, Mapping):
        found = dict(cast("Mapping[str, Any]", auth))
        yield from _in_our_words(found, "auth")
        entry["auth"] = found
    yield from _beside(entry)


def _renamed(entry: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """`oauth`: an object, or whether there is such a login at all."""
    given = entry.pop("oauth", None)
    if given is None:
        return
    if not isinstance(given, bool | Mapping):
        yield "oauth", "The key `oauth` is ignored, for it is neither an object nor true or false: write `auth`."
    elif entry.get("auth") not in (None, True, "oauth"):
        yield "oauth", "The key `oauth` is ignored, for `auth` is there too: remove one of them."
    elif isinstance(given, bool):
        entry["auth"] = "oauth" if given else "none"
        yield "oauth", f"The key `oauth` is read as `auth: {entry['auth']}`: better write that."
    else:
        found = dict(cast("Mapping[str, Any]", given))
        told = [*_port(found), *_in_our_words(found, "oauth")]
        entry["auth"] = {"type": "oauth", **found}
        yield "oauth", "The key `oauth` is read as `auth`: better write `auth`."
        yield from told


def _port(login: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Claude Code's port is that of `localhost`, and clients are registered with that."""
    port = login.get("callbackPort")
    if isinstance(port, int) and logins.is_callback(url := f"http://localhost:{port}/callback") and not login.get("callbackUrl"):
        del login["callbackPort"]
        login["callbackUrl"] = url
        yield "oauth.callbackPort", f"The key `callbackPort` is read as `callbackUrl: {url}`: better write that."


def _in_our_words(login: dict[str, Any], where: str) -> Iterator[tuple[str, str]]:
    """The keys of a login's object. Our own word wins over another's for the same."""
    for key in [key for key in login if key not in _OURS and not fields.is_note(key)]:
        ours, value = _meant(key, login[key])
        if login[key] is None:
            del login[key]
        elif ours and login.get(ours) is not None:
            del login[key]
            yield f"{where}.{key}", f"The key `{key}` is ignored, for `{ours}` is there too: remove one of them."
        elif ours:
            del login[key]
            login[ours] = value
            yield f"{where}.{key}", f"The key `{key}` is read as `{ours}`: better write `{ours}`."
        elif _folded(key) == "enabled" and isinstance(login[key], bool):
            enabled = login.pop(key)
            if not enabled:
                login["type"] = "none"
            yield f"{where}.{key}", f"The key `{key}` is read as `type: {'oauth' if enabled else 'none'}`: better write that."
        elif why := _WITHOUT_EFFECT.get(_folded(key), "" if where == "auth" else "there is nothing like it here"):
            del login[key]
            yield f"{where}.{key}", f"The key `{key}` has no effect: {why}."


def _meant(key: str, value: Any) -> tuple[str, Any]:
    """Our word for a key of another client, and the value for it; empty where there is none."""
    folded = _folded(key)
    if folded == "authservermetadataurl" and isinstance(value, str):
        if found := _METADATA.fullmatch(value):
            return "issuer", found[1] + (found[2] or "")
        return ("issuer", below[1]) if (below := _METADATA_BELOW.fullmatch(value)) else ("", None)
    if folded in {"redirecturi", "redirecturl", "callbackurl"}:
        return ("callbackUrl", value) if isinstance(value, str) and logins.is_callback(value) else ("", None)
    if folded in {"granttype", "flow"}:
        return ("type", value) if value == "client_credentials" else ("", None)
    return _KEYS.get(folded, ""), value


def _beside(entry: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for key in _BESIDE:
        scopes = entry.pop(key, None)
        if scopes is None:
            continue
        auth: Any = entry.get("auth")
        login: Any = {"type": "oauth"} if auth in (None, True, "oauth") else auth
        if isinstance(login, Mapping) and "scopes" not in login:
            entry["auth"] = {**cast("Mapping[str, Any]", login), "scopes": scopes}
            yield key, f"The key `{key}` is read as `auth: {{scopes: ...}}`: better write that."
        else:
            yield key, f"The key `{key}` is ignored, for `auth` says what is asked for: remove it."


def _from_environment(entry: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """A token that is named by its variable goes into `headers`, where the variable is replaced as any other."""
    variable = entry.pop("bearer_token_env_var", None)
    if variable is not None:
        yield "bearer_token_env_var", _as_header(entry, "bearer_token_env_var", {"api_key_env": variable})
    auth: Any = entry.get("auth")
    if isinstance(auth, Mapping) and "api_key_env" in auth:
        del entry["auth"]
        yield "auth", _as_header(entry, "auth", cast("Mapping[str, Any]", auth))


def _as_header(entry: dict[str, Any], key: str, static: Mapping[str, Any]) -> str:
    """Vibe's words for a header, and what it takes where they are missing."""
    variable, name, form = (
        static["api_key_env"],
        static.get("api_key_header", "Authorization"),
        static.get("api_key_format", "Bearer {token}"),
    )
    headers: Any = entry.get("headers") or {}
    if not (isinstance(variable, str) and _VARIABLE.fullmatch(variable) and isinstance(name, str) and isinstance(form, str)):
        return f"The key `{key}` has no effect, for it names no environment variable: write the token into `headers`, as ${{NAME}}."
    if not isinstance(headers, Mapping) or any(str(given).lower() == name.lower() for given in cast("Mapping[str, Any]", headers)):
        return f"The key `{key}` is ignored, for `headers` has it too: remove one of them."
    entry["headers"] = {**cast("Mapping[str, Any]", headers), name: form.replace("{token}", f"${{{variable}}}")}
    return f"The key `{key}` is read as one of `headers` with ${{{variable}}} in it: better write that."


def _folded(key: str) -> str:
    return key.replace("_", "").replace("-", "").lower()
