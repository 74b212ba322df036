"""Requests with a token: it goes to the server's own origin only, and never in clear through a network (RFC 6750, 5.3).

One that is refused is renewed, and the request sent once more. A session belongs to one login: what was begun by one person goes
on with no token of another's.

`Authorized` sits between `Faults` and what dials. A refusal says that the request was not carried out (RFC 6750, 3.1), and so does
the ledger while another token is fetched.
"""

from __future__ import annotations

import httpx2

from toolbay.auth.challenges import bearer
from toolbay.auth.trust import private
from toolbay.errors import Refused
from toolbay.net.guard import Target, within
from toolbay.net.http import leads_to
from toolbay.upstream.engine import Credentials
from toolbay.upstream.faults import WORKS_FOR, read_error
from toolbay.upstream.ledger import Ledger
from toolbay.upstream.statuses import MEND

CHALLENGE = "www-authenticate"
_OF_THE_BODY = frozenset({"content-length", "transfer-encoding"})


class Authorized(httpx2.AsyncBaseTransport):
    """Wraps the transport that dials; `home` is the server's own origin."""

    def __init__(self, inner: httpx2.AsyncBaseTransport, credentials: Credentials, *, home: Target, ledger: Ledger) -> None:
        self._inner = inner
        self._credentials = credentials
        self._home = home
        self._ledger = ledger
        self._whose = ""

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """The answer, of two the second. Whatever is sent again has a body that is there as a whole: messages are encoded before.

        Raises:
            httpx2.ConnectError: a token had to be renewed, and who does that could not be reached, or the login is another one by now;
                its cause is the `Refused`.
        """
        if not (private(self._home) and within(self._home, leads_to(request.url))):
            return await self._inner.handle_async_request(request)
        try:
            used = await self._token()
            response = await self._send(request, used)
            if not _refuses_token(response):
                return response
            response = await self._put_aside(request, response)
            if not await self._credentials.renew(used, status=response.status_code, challenge=_challenge(response)):
                return self._with_mend(response)
            another = await self._token()
        except Refused as refused:
            raise httpx2.ConnectError(str(refused), request=request) from refused
        if another in ("", used):
            return self._with_mend(response)
        response = await self._send(request, another)
        return self._with_mend(response) if _refuses_token(response) else response

    async def _token(self) -> str:
        token = await self._credentials.token()
        whose = self._credentials.whose
        if self._whose and whose not in ("", self._whose):
            raise Refused("another login has come since its session began")
        self._whose = self._whose or whose
        return token

    async def _send(self, request: httpx2.Request, token: str) -> httpx2.Response:
        if token:
            request.headers["Authorization"] = f"Bearer {token}"
        return await self._inner.handle_async_request(request)

    async def _put_aside(self, request: httpx2.Request, response: httpx2.Response) -> httpx2.Response:
        """A refusal with what there is of its body, so that its connection is free, and nothing counts as sent while a token is fetched."""
        try:
            body = await read_error(response)
        finally:
            await response.aclose()
        if request.method == "POST":
            self._ledger.unsent(request.extensions.get(WORKS_FOR))
        headers = [(name, value) for name, value in response.headers.multi_items() if name.lower() not in _OF_THE_BODY]
        return httpx2.Response(response.status_code, headers=headers, content=body, request=request)

    def _with_mend(self, response: httpx2.Response) -> httpx2.Response:
        """The refusal that stands, with what is known here of its reason (`statuses.MEND`)."""
        response.extensions[MEND] = self._credentials.mend(status=response.status_code, challenge=_challenge(response))
        return response

    async def aclose(self) -> None:
        await self._inner.aclose()


def _challenge(response: httpx2.Response) -> str:
    """What it says with the refusal; several headers are one list (RFC 9110, 5.3)."""
    return response.headers.get(CHALLENGE, "")


def _refuses_token(response: httpx2.Response) -> bool:
    """Whether another token may be let through: 401, and 403 for a scope that is missing (RFC 6750, 3.1)."""
    if response.status_code != 403:
        return response.status_code == 401
    found = bearer(_challenge(response))
    return found is not None and found.error == "insufficient_scope"
