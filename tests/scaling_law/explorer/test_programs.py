"""The API and the MCP server answer what Python does, and no more is offered there."""

from __future__ import annotations

import asyncio
import json

import pytest

from tests.guides import DOCS, blocks


@pytest.fixture(scope="module")
def client(address):
    from gradio_client import Client

    return Client(address, verbose=False)


def test_the_api_has_three_endpoints_that_answer(client, published):
    assert sorted(client.view_api(return_format="dict")["named_endpoints"]) == ["/loss", "/optimal", "/plan"]
    found = client.predict(flops="1e22", memory="80GB", kv_tokens="16k", api_name="/optimal")
    table = published.optimal(1e22, memory=80e9, kv_tokens=16_384, integral=True)
    assert found["best"]["loss"] == table.best.loss
    assert found["warnings"] == list(table.warnings)
    made = client.predict(flops="1e21", experts="1,8", api_name="/plan")
    assert made["command"] == "scaling-law plan --flops 1e21 --experts 1,8 -o run.yaml"
    assert "d_model:" in made["yaml"]
    assert client.predict(flops="1e21", law="abnar", api_name="/plan")["yaml"].count("d_model:") == 1
    assert client.predict(n_active=1e9, tokens=2e10, experts=8, api_name="/loss")["trusted"]
    found = client.predict(hours="72", gpus="8", api_name="/optimal")
    table = published.optimal(hours=72, gpus=8, gpu="h100", integral=True)
    assert (found["best"]["loss"], found["budget"]["hours"]) == (table.best.loss, 72)


@pytest.mark.parametrize(
    ("question", "message"),
    [
        ({"flops": "1e22", "hours": "72"}, "flops='1e22', hours='72': give exactly one of them"),
        ({"flops": "1e22", "law": "/etc/passwd"}, r"law='/etc/passwd' is unknown; there are published"),
    ],
)
def test_what_cannot_be_asked_is_said(client, question, message):
    with pytest.raises(Exception, match=message):
        client.predict(**question, api_name="/optimal")


def test_an_assistant_finds_the_tools_and_asks_one(address, published):
    from mcp import ClientSession
    from mcp.client.streamable_http import streamable_http_client

    async def ask():
        async with (
            streamable_http_client(f"{address}gradio_api/mcp/") as (reading, writing, _),
            ClientSession(reading, writing) as session,
        ):
            await session.initialize()
            listed = (await session.list_tools()).tools
            answered = await session.call_tool(listed[0].name, {"flops": "1e22", "memory": "80GB"})
            return listed, json.loads(answered.content[0].text)

    listed, answered = asyncio.run(ask())
    assert [tool.name.rpartition("_")[2] for tool in listed] == ["optimal", "plan", "loss"]
    assert "how many experts" in listed[0].description
    assert listed[0].inputSchema["properties"]["memory"]["description"].startswith("Memory for weights")
    assert answered["best"]["loss"] == published.optimal(1e22, memory=80e9, integral=True).best.loss


def test_the_guides_program_runs(address, capsys, published):
    (code,) = blocks(DOCS / "explorer.md", "python")
    exec(code.replace("http://127.0.0.1:7860/", address), {})
    assert "8 2.1175" in capsys.readouterr().out
