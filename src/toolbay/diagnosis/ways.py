"""What it means that the way to an address ended at some step: the name, the guard, the connection, TLS. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from toolbay._redact import url as shown_url
from toolbay.config.models import ServerConfig
from toolbay.diagnosis.findings import Notes
from toolbay.errors import BlockedAddress
from toolbay.net import http
from toolbay.net.addresses import AS_OF
from toolbay.net.guard import Policy, check_addresses
from toolbay.net.steps import Stage, Walk, led_to, refusal, unknown_name, verdict


def tell(config: ServerConfig, walked: Walk, policy: Policy, notes: Notes) -> None:
    """Put into `notes` at which step a walk ended, why, and what helps."""
    goal = http.target(config.url)
    through = f"through the proxy {shown_url(walked.proxy)} " if walked.proxy else ""
    where = shown_url(walked.proxy) if walked.proxy else goal.origin
    if walked.failed is Stage.GUARD or verdict(walked.failure) is not None:
        _tell_verdict(config, walked, policy, notes)
    elif walked.failed is Stage.DNS:
        unknown = unknown_name(walked.failure)
        why = f"DNS does not know its name ({unknown.strerror})" if unknown else "DNS did not answer in time"
        mend = "check the proxy's address" if walked.proxy else "check the name in `url`, and whether a VPN is needed"
        notes.error(f"{where} was not found", why, mend)
    elif walked.failed is Stage.TCP:
        refused = any(isinstance(cause, ConnectionRefusedError) for cause in led_to(walked.failure))
        why = (
            "the connection was refused: nothing listens there"
            if refused
            else "no connection came about in time, or the network has no way"
        )
        mend = "check the proxy" if walked.proxy else "start the server, and check host and port in `url`"
        notes.error(f"{where} could not be reached {through}".rstrip(), why, mend)
    else:
        _tell_tls(goal.host, goal.port, walked, notes)


def _tell_verdict(config: ServerConfig, walked: Walk, policy: Policy, notes: Notes) -> None:
    """Which of the addresses is closed, by which rule, and what would open it: the guard itself says all three."""
    goal = http.target(config.url)
    known = [] if goal.literal else [f"{goal.host} is {', '.join(walked.addresses)}"]
    shown = [*known, f"the guard's tables are of {AS_OF}"]
    for address in walked.addresses:
        try:
            check_addresses(goal.host, [address], policy.toward(goal.host, goal.port))
        except BlockedAddress as error:
            tell_closed(error, notes, shown)
            return
    if (error := verdict(walked.failure)) is not None:
        tell_closed(error, notes)


def tell_closed(error: BlockedAddress, notes: Notes, shown: Sequence[str] = ()) -> None:
    """Put into `notes` what the guard said of an address on the way, and its mend alone: a second one would be no help."""
    notes.error("the network guard closes the way to its address", error.cause, error.mend or "correct `url`", shown)


def _tell_tls(host: str, port: int, walked: Walk, notes: Notes) -> None:
    refused, shown = refusal(walked.failure), walked.certificate
    if refused is None:
        why = f"what answers on port {port} does not speak TLS as expected"
        notes.error(f"no secure connection to {host} came about", why, "check the port in `url`, and whether it should begin with http://")
        return
    lines: list[str] = []
    if shown is not None:
        names = f" for {', '.join(shown.names[:5])}" if shown.names else ""
        lines = [
            f"certificate of {shown.subject or '(no name)'}{names}, issued by {shown.issuer}",
            f"good until {shown.ends:%Y-%m-%d %H:%M} UTC",
        ]
    if shown is not None and shown.ends < datetime.now(UTC):
        mend = "have whoever runs the server renew it; where it is new, check this machine's clock"
    elif "match" in refused.verify_message or "not valid for" in refused.verify_message:
        mend = "write the name into `url` that the certificate is for"
    else:
        mend = "where it is a company's or your own, name its authority: SSL_CERT_FILE=/path/to/authority.pem"
    notes.error(f"the certificate of {host} was not accepted", refused.verify_message, mend, lines)
