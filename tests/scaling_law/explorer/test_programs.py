"""The API and the MCP server answer what Python does, and no more is offered there."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import subprocess
import urllib.request

import pytest

from scaling_law.explorer.programs import tools
from tests.guides import DOCS, blocks
from tests.test_questions import folder, questions  # noqa: F401


@pytest.fixture(scope="module")
def client(address):
    from gradio_client import Client

    return Client(address, verbose=False)


def test_the_api_has_endpoints_that_answer(client, published):
    offered = client.view_api(return_format="dict")["named_endpoints"]
    assert sorted(offered) == ["/describe", "/diagnose", "/fit", "/loss", "/optimal", "/plan", "/reach", "/speedup"]
    found = client.predict(flops="1e22", memory="80GB", kv_tokens="16k", api_name="/optimal")
    table = published.optimal(1e22, memory=80e9, kv_tokens=16_384, integral=True)
    assert found["best"]["loss"] == table.best.loss
    assert found["warnings"] == list(table.warnings)
    made = client.predict(flops="1e21", experts="1,8", api_name="/plan")
    assert made["command"] == "scaling-law plan --flops 1e21 --experts 1,8 -o run.yaml"
    assert "d_model:" in made["yaml"]
    assert client.predict(flops="1e21", law="abnar", api_name="/plan")["yaml"].count("d_model:") == 1
    assert client.predict(n_active=1e9, tokens=2e10, experts=8, api_name="/loss")["trusted"]
    found = client.predict(hours="72", gpus="8", gpu="h100", api_name="/optimal")
    table = published.optimal(hours=72, gpus=8, gpu="h100", integral=True)
    assert (found["best"]["loss"], found["budget"]["hours"]) == (table.best.loss, 72)


@pytest.mark.parametrize(
    ("question", "message"),
    [
        ({"gpus": "8"}, "flops"),
        ({"flops": "1e22", "hours": "72"}, "give exactly one of them"),
        ({"flops": "1e22", "law": "/etc/passwd"}, r"law='/etc/passwd' is unknown; there are published"),
        ({"flops": "1e22", "experts": ",".join(map(str, range(1, 3000)))}, "characters; at most 1,000 are read"),
    ],
)
def test_what_cannot_be_asked_is_said(client, question, message):
    with pytest.raises(Exception, match=message):
        client.predict(**question, api_name="/optimal")


def test_a_program_that_leaves_values_out_is_told_how_many_are_needed(address):
    begin = urllib.request.Request(
        f"{address}gradio_api/call/loss", b'{"data": []}', headers={"Content-Type": "application/json"}
    )
    event = json.load(urllib.request.urlopen(begin))["event_id"]
    answer = urllib.request.urlopen(f"{address}gradio_api/call/loss/{event}").read().decode()
    assert "(needed: 4, got: 0)" in answer


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not on PATH")
@pytest.mark.parametrize("place", [0, 1])
def test_the_lines_for_curl_answer(address, published, place):
    lines = [text for text in blocks(DOCS / "explorer.md", "bash") if "curl " in text][place]
    command = lines.replace("http://127.0.0.1:7860/", address)
    output = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True, timeout=60).stdout
    (loss,) = re.findall(r"loss\W+([0-9.]+)", output)
    assert float(loss) == pytest.approx(published.loss(1e9, 2e10, (8, 1)[place]))


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
    names = ["optimal", "plan", "loss", "reach", "speedup", "describe", "fit", "diagnose"]
    assert [tool.name.rpartition("_")[2] for tool in listed] == names
    for tool in listed:
        assert all(argument["description"] for argument in tool.inputSchema["properties"].values())
    assert "how many experts" in listed[0].description
    assert listed[0].inputSchema["properties"]["memory"]["description"].startswith("Memory for weights")
    assert answered["best"]["loss"] == published.optimal(1e22, memory=80e9, integral=True).best.loss


@pytest.mark.usefixtures("folder")
def test_an_assistant_asks_the_questions_by_the_schema(address, published):
    jsonschema = pytest.importorskip("jsonschema")
    from mcp import ClientSession
    from mcp.client.streamable_http import streamable_http_client

    own = {tool.__name__: tool for tool in tools({"published": published})}

    async def ask():
        async with (
            streamable_http_client(f"{address}gradio_api/mcp/") as (reading, writing, _),
            ClientSession(reading, writing) as session,
        ):
            await session.initialize()
            listed = {tool.name.rpartition("_")[2]: tool for tool in (await session.list_tools()).tools}
            answers = []
            for question in filter(lambda question: question.tool, questions()):
                name, _, text = question.tool.partition(" ")
                arguments = json.loads(text)
                jsonschema.validate(arguments, {**listed[name].inputSchema, "additionalProperties": False})
                answered = await session.call_tool(listed[name].name, arguments)
                answers.append((own[name](**arguments), json.loads(answered.content[0].text)))
            return answers

    for direct, answered in asyncio.run(ask()):
        assert answered == json.loads(json.dumps(direct))


def test_a_server_for_others_reads_no_files(published):
    names = [tool.__name__ for tool in tools({"published": published}, reads_files=False)]
    assert names == ["optimal", "plan", "loss", "reach", "speedup"]


def test_the_guides_program_runs(address, capsys, published):
    (code,) = (code for code in blocks(DOCS / "explorer.md", "python") if "Client" in code)
    exec(code.replace("http://127.0.0.1:7860/", address), {})
    assert "16 2.1148" in capsys.readouterr().out
