"""The model of an App: the one that was given, or one that is found by its name when it is first wanted, and closed with the App."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial

from toolbay._aio import bounded
from toolbay._redact import trace
from toolbay.types import Model

CLOSING_SECONDS = 2.0
"""How long a model may take to close."""

_log = logging.getLogger("toolbay.app")


class ChosenModel:
    """`model` is one, or a name; empty: what the configuration says. `safe` takes the secrets out of what is logged.

    `lacking`: which servers are not there now, for a model that tells people so by itself.
    """

    def __init__(
        self,
        model: str | Model,
        *,
        environ: Mapping[str, str],
        safe: Callable[[str], str],
        lacking: Callable[[], Sequence[str]] = tuple,
    ) -> None:
        self._asked_for = model
        self._environ, self._safe, self._lacking = environ, safe, lacking
        self._chosen: Model | None = None
        self._ours: list[Model] = []

    @property
    def name(self) -> str:
        """The model in use; empty before one was wanted."""
        return self._chosen.name if self._chosen else ""

    def use(self, model: str | Model) -> None:
        """Take another one from now on."""
        self._asked_for, self._chosen = model, None

    async def get(self, configured: str) -> Model:
        """The model, where `configured` is the name in the configuration.

        Raises:
            ModelError: it cannot be used.
        """
        if self._chosen is None:
            self._chosen = await self._choose(configured)
        return self._chosen

    async def _choose(self, configured: str) -> Model:
        if not isinstance(self._asked_for, str):
            return self._asked_for
        from toolbay.agent.local import choose  # noqa: PLC0415 - those who only call tools need no agent
        from toolbay.agent.offline import OfflineModel  # noqa: PLC0415

        chosen = await choose(self._asked_for or configured, environ=self._environ, offline=partial(OfflineModel, self._lacking))
        self._own(chosen)
        return chosen

    def _own(self, model: Model) -> None:
        """It was chosen here, and is closed here."""
        self._ours.append(model)

    async def close(self) -> None:
        """Close what was chosen here, whatever goes wrong in it."""
        while self._ours:
            model = self._ours.pop()
            if (close := getattr(model, "aclose", None)) is not None:
                await self._close(model.name, close)

    async def _close(self, name: str, close: Callable[[], Awaitable[object]]) -> None:
        """Whatever goes wrong in a model costs nobody else."""
        try:
            if not await bounded(CLOSING_SECONDS, close):
                _log.warning("the model %s was not closed within %g s", name, CLOSING_SECONDS)
        except Exception as error:
            _log.error("the model %s could not be closed\n%s", name, trace(error, self._safe))
