"""Which model is used: what was said, else what is found, else the one without a network."""

from __future__ import annotations

import socket
from collections.abc import Generator

import anyio
import pytest

from support.openai_server import OpenAIServer
from toolbay.agent.local import choose, detect
from toolbay.agent.textcalls import TextCalls
from toolbay.errors import ModelError
from toolbay.testing import FakeModel
from toolbay.types import Message, Model, ModelRequest, Role

pytestmark = pytest.mark.anyio


def offline() -> Model:
    return FakeModel([], name="offline")


@pytest.fixture
def closed() -> Generator[str]:
    """An address on which nobody listens (it is bound, so that nobody else will)."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{bound.getsockname()[1]}/v1"


@pytest.fixture
def silent() -> Generator[str]:
    """An address that takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/v1"


async def test_the_first_server_in_order_that_has_a_chat_model_is_found(closed: str, silent: str) -> None:
    """RUN-5: those that refuse, hang, or have no model for conversations are passed over."""
    with OpenAIServer(models=["nomic-embed-text"]) as embeds, OpenAIServer(models=["bge-m3", "llama"]) as one, OpenAIServer() as two:
        with anyio.fail_after(8):
            found = await detect(addresses=[("A", closed), ("B", silent), ("C", embeds.base_url), ("D", one.base_url), ("E", two.base_url)])
    assert found is not None
    assert (found.name, found.base_url, found.models) == ("D", one.base_url, ("llama",))


async def test_where_no_server_answers_none_is_found(closed: str, silent: str) -> None:
    """RUN-5: and the search ends."""
    with anyio.fail_after(8):
        assert await detect(addresses=[("A", closed), ("B", silent)]) is None


@pytest.mark.parametrize("body", [b"<html>", b"[]", b'{"data": null}', b'{"data": [{"name": "x"}]}', b"\xff", b'"text"'])
async def test_what_answers_something_else_is_no_model_server(body: bytes) -> None:
    """RUN-5: port 8080 may be anything."""
    import httpx2

    client = httpx2.AsyncClient(transport=httpx2.MockTransport(lambda request: httpx2.Response(200, content=body)))
    async with client:
        assert await detect(client=client) is None


async def test_an_explicit_model_wins_over_everything() -> None:
    """RUN-5: the argument, then TOOLBAY_MODEL."""
    environ = {"OPENAI_API_KEY": "k", "TOOLBAY_MODEL": "openai:from-environment"}
    with OpenAIServer() as server:
        addresses = [("A", server.base_url)]
        assert (await choose("openai:said", environ=environ, offline=offline, addresses=addresses)).name == "openai:said"
        assert (await choose("", environ=environ, offline=offline, addresses=addresses)).name == "openai:from-environment"
        assert (await choose("offline", environ=environ, offline=offline, addresses=addresses)).name == "offline"
        assert (await choose("", environ={"TOOLBAY_MODEL": "offline"}, offline=offline, addresses=addresses)).name == "offline"
    assert server.headers == []


async def test_an_address_without_a_model_is_asked_for_its_first() -> None:
    """RUN-5: OPENAI_BASE_URL alone is enough; its key goes along."""
    with OpenAIServer(models=["text-embedding-3", "big-model", "other"]) as server:
        model = await choose("", environ={"OPENAI_BASE_URL": server.base_url, "OPENAI_API_KEY": "k"}, offline=offline)
    assert model.name == "openai:big-model"
    assert server.headers[0]["Authorization"] == "Bearer k"


async def test_an_address_that_was_given_and_does_not_answer_is_an_error(closed: str) -> None:
    """RUN-5: nobody is given another model than the one asked for."""
    with pytest.raises(ModelError, match="OPENAI_BASE_URL"):
        await choose("", environ={"OPENAI_BASE_URL": closed}, offline=offline)


async def test_a_local_server_is_used_and_never_sent_a_key() -> None:
    """RUN-5: what happens to listen on a port does not get the user's key."""
    with OpenAIServer(models=["llama"]) as server:
        model = await choose("", environ={"OPENAI_API_KEY": "canary-sk"}, offline=offline, addresses=[("A", server.base_url)])
        assert model.name == "openai:llama"
        with pytest.raises(ModelError):
            async for _ in model.stream(ModelRequest(instructions="", messages=(Message(role=Role.USER, text="hi"),))):
                pass
        assert isinstance(model, TextCalls)
        await model.aclose()
    assert "canary-sk" not in str(server.headers)
    assert len(server.headers) >= 2


async def test_without_any_model_the_offline_one_is_used(closed: str) -> None:
    """RUN-5: the last resort works without any network."""
    assert (await choose("", environ={}, offline=offline, addresses=[("A", closed)])).name == "offline"
