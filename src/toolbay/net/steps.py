"""The way to a server, walked one step at a time: the name, the verdict, the connection, TLS. For who looks for a fault.

It goes the way that requests go (`dial`), so nothing is dialled that the policy closes, and it says nothing to who answers.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import cast

import anyio
import httpcore2

from toolbay.errors import BlockedAddress
from toolbay.net import certificates
from toolbay.net.certificates import Certificate
from toolbay.net.dial import Dialler, close
from toolbay.net.guard import Policy, Target, check_addresses
from toolbay.net.http import ANYWHERE, CONNECT_TIMEOUT, MEND_PROXY, target, trust
from toolbay.net.proxy import Proxies
from toolbay.net.resolve import Resolver, SystemResolver


class Stage(StrEnum):
    DNS = "DNS"
    GUARD = "guard"
    TCP = "TCP"
    TLS = "TLS"


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """One step: how long it took, in seconds, and what came of it."""

    stage: Stage
    seconds: float
    said: str


@dataclass(kw_only=True, slots=True)
class Walk:
    """How far one came. `failed` is the stage that was not passed, with its `failure`."""

    proxy: str = ""
    """The proxy's URL, where one is in use: then the way leads to it, and no further."""
    addresses: tuple[str, ...] = ()
    steps: list[Step] = field(default_factory=list[Step])
    failed: Stage | None = None
    failure: BaseException | None = None
    certificate: Certificate | None = None


async def walk(
    goal: Target,
    policy: Policy,
    *,
    proxies: Proxies | None = None,
    resolver: Resolver | None = None,
    network: httpcore2.AsyncNetworkBackend | None = None,
    tls: ssl.SSLContext | None = None,
) -> Walk:
    """Go to `goal` as a request would, as far as it is possible; nothing is raised but cancellation. 10 s a step at the most."""
    made = Walk(proxy=(proxies or Proxies.from_environment()).choose(goal))
    if made.proxy:
        try:
            goal, policy = target(made.proxy), ANYWHERE
        except BlockedAddress as error:
            made.failed, made.failure = Stage.GUARD, BlockedAddress(f"{error.cause} (it is the proxy that is set)", MEND_PROXY)
            return made
    walker = _Walker(made, goal, policy, cast("httpcore2.AsyncNetworkBackend", network or httpcore2.AnyIOBackend()))
    await walker.go(resolver or SystemResolver(), tls or trust())
    return made


class _Walker:
    def __init__(self, made: Walk, goal: Target, policy: Policy, network: httpcore2.AsyncNetworkBackend) -> None:
        self._made = made
        self._goal = goal
        self._policy = policy
        self._network = network
        self._began = 0.0

    async def go(self, resolver: Resolver, tls: ssl.SSLContext) -> None:
        stage = Stage.DNS
        try:
            answers = await self._look_up(resolver)
            stage = Stage.GUARD
            self._begin()
            self._made.addresses = tuple(answers)
            checked = check_addresses(self._goal.host, answers, self._policy.toward(self._goal.host, self._goal.port))
            self._passed(stage, f"{', '.join(map(str, checked))} may be reached")
            stage = Stage.TCP
            stream = await self._connect(answers)
            if self._goal.scheme == "https":
                stage = Stage.TLS
                stream = await self._secure(stream, answers, tls)
            await close(stream)
        except (BlockedAddress, OSError, httpcore2.ConnectError, httpcore2.ConnectTimeout) as error:
            self._made.failed, self._made.failure = stage, error
            self._passed(stage, "failed")

    def _begin(self) -> None:
        self._began = anyio.current_time()

    def _passed(self, stage: Stage, said: str) -> None:
        self._made.steps.append(Step(stage=stage, seconds=anyio.current_time() - self._began, said=said))

    async def _look_up(self, resolver: Resolver) -> Sequence[str]:
        self._begin()
        if self._goal.literal is not None:
            return [self._goal.host]
        with anyio.fail_after(CONNECT_TIMEOUT):
            answers = await resolver(self._goal.host, self._goal.port)
        self._passed(Stage.DNS, f"{self._goal.host} is {', '.join(answers) or 'nowhere'}")
        return answers

    async def _connect(self, answers: Sequence[str]) -> httpcore2.AsyncNetworkStream:
        self._begin()
        stream = await self._dialled(answers)
        self._passed(Stage.TCP, f"port {self._goal.port} is open")
        return stream

    async def _dialled(self, answers: Sequence[str]) -> httpcore2.AsyncNetworkStream:
        async def known(_host: str, _port: int) -> Sequence[str]:
            return answers

        return await Dialler(self._policy, known, self._network).connect_tcp(self._goal.host, self._goal.port, CONNECT_TIMEOUT)

    async def _secure(
        self, stream: httpcore2.AsyncNetworkStream, answers: Sequence[str], tls: ssl.SSLContext
    ) -> httpcore2.AsyncNetworkStream:
        self._begin()
        try:
            secured = await stream.start_tls(tls, self._goal.host, CONNECT_TIMEOUT)
        except httpcore2.ConnectError as error:
            if refusal(error) is not None:
                self._made.certificate = await self._shown(answers)
            raise
        self._made.certificate = _certificate(secured)
        shown = self._made.certificate
        self._passed(Stage.TLS, f"the certificate of {shown.subject or shown.names} is good until {shown.ends:%Y-%m-%d}" if shown else "")
        return secured

    async def _shown(self, answers: Sequence[str]) -> Certificate | None:
        """The certificate that was not accepted: asked for once more, without judging it, and nothing is said over it."""
        blind = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        blind.check_hostname, blind.verify_mode = False, ssl.CERT_NONE
        try:
            stream = await (await self._dialled(answers)).start_tls(blind, self._goal.host, CONNECT_TIMEOUT)
        except (BlockedAddress, OSError, httpcore2.ConnectError, httpcore2.ConnectTimeout):
            return None
        try:
            return _certificate(stream)
        finally:
            await close(stream)


def refusal(failure: BaseException | None) -> ssl.SSLCertVerificationError | None:
    """Why a certificate was not accepted, where that is what happened."""
    return next((cause for cause in led_to(failure) if isinstance(cause, ssl.SSLCertVerificationError)), None)


def verdict(failure: BaseException | None) -> BlockedAddress | None:
    """What the network policy said, where that is what happened."""
    return next((cause for cause in led_to(failure) if isinstance(cause, BlockedAddress)), None)


def unknown_name(failure: BaseException | None) -> socket.gaierror | None:
    """Why a name has no address, where that is what happened."""
    return next((cause for cause in led_to(failure) if isinstance(cause, socket.gaierror)), None)


def led_to(failure: BaseException | None) -> Iterator[BaseException]:
    """`failure` and what led to it, from the outside in."""
    while failure is not None:
        yield failure
        failure = failure.__cause__ or failure.__context__


def _certificate(stream: httpcore2.AsyncNetworkStream) -> Certificate | None:
    secured = stream.get_extra_info("ssl_object")
    der = secured.getpeercert(binary_form=True) if secured is not None else None
    return certificates.read(der) if der else None
