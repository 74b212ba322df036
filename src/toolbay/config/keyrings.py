"""Secrets from the operating system's keyring, through the `keyring` library (the extra `toolbay[keyring]`)."""

from __future__ import annotations


class NoSecret(Exception):
    """There is no such secret to be had. Its text is a clause: why, and the mend."""


def lookup(name: str) -> str:
    """The secret `SERVICE/USER`.

    Raises:
        NoSecret: the library is not installed, the keyring cannot be opened, or it holds no such entry.
    """
    service, slash, user = name.rpartition("/")
    if not slash or not service or not user:
        raise NoSecret("names no keyring entry: write ${keyring:SERVICE/USER}")
    try:
        # Loaded only where an entry asks for it: it looks for the desktop's services.
        import keyring  # noqa: PLC0415
        from keyring.errors import KeyringError  # noqa: PLC0415
    except ImportError:
        raise NoSecret("needs the keyring library: pip install 'toolbay[keyring]'") from None
    try:
        secret = keyring.get_password(service, user)
    except KeyringError:
        raise NoSecret(
            f"needs the keyring entry {service}/{user}, but the keyring cannot be opened here: unlock it, or use a variable"
        ) from None
    if not secret:
        raise NoSecret(f"needs the keyring entry {service}/{user}, which is not there: keyring set {service} {user}")
    return secret
