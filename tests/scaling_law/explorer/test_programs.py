"""The API and the MCP server answer what Python does, and no more is offered there."""

from __future__ import annotations

import asyncio
import inspect
import json
import re
import shutil
import subprocess
import urllib.request

import pytest

from scaling_law import diagnose, live
from scaling_law.explorer.programs import tools
from tests.guides import DOCS, blocks
from tests.test_questions import folder, questions  # noqa: F401

pytestmark = pytest.mark.usefixtures("shared_searches")

NAMES = ["optimal", "plan", "loss", "reach", "speedup", "describe", "fit", "diagnose", "live"]
# A run at the half of 24,000 steps, and what its log does not say.
LOG = "step,loss,lr\n" + "\n".join(f"{100 * i},{2.5 + 8 * (100 * i) ** -0.35:.4f},3e-4" for i in range(1, 121))
RUN = {"n_active": "400M", "batch": "0.5M", "tokens": "12B", "schedule": "wsd:0.2"}


@pytest.fixture(scope="module")
def client(address):
    from gradio_client import Client

    return Client(address, verbose=False)


def test_the_api_has_endpoints_that_answer(client, published):
    offered = client.view_api(return_format="dict")["named_endpoints"]
    assert sorted(offered) == sorted(f"/{name}" for name in NAMES)
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


@pytest.mark.parametrize(("name", "needed"), [("loss", 4), ("live", 10), ("diagnose", 12)])
def test_a_program_that_leaves_values_out_is_told_how_many_are_needed(address, name, needed):
    begin = urllib.request.Request(
        f"{address}gradio_api/call/{name}", b'{"data": []}', headers={"Content-Type": "application/json"}
    )
    event = json.load(urllib.request.urlopen(begin))["event_id"]
    answer = urllib.request.urlopen(f"{address}gradio_api/call/{name}/{event}").read().decode()
    assert f"(needed: {needed}, got: 0)" in answer


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not on PATH")
@pytest.mark.parametrize("place", range(4))
def test_the_lines_for_curl_answer(address, published, place):
    lines = [text for text in blocks(DOCS / "explorer.md", "bash") if "curl " in text][place]
    command = lines.replace("http://127.0.0.1:7860/", address)
    output = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True, timeout=60).stdout
    name, value = (
        ("loss", published.loss(1e9, 2e10, 8)),
        ("mfu", diagnose("qwen3-30b-a3b", gpu="h100", gpus=64, tokens_per_second="900K").mfu),
        ("share", 0.5),
        ("loss", published.loss(1e9, 2e10, 1)),
    )[place]
    number = re.search(rf"\b{name}\W+([0-9.]+)", output)
    assert float(number[1]) == pytest.approx(value)


def test_a_log_is_read_as_its_text_and_as_its_file(published, tmp_path):
    path = tmp_path / "log.csv"
    path.write_text(LOG)
    expected = live(path, **RUN).rows[0]
    lines = [line.split(",") for line in LOG.splitlines()[1:]]
    steps = [{"step": int(step), "loss": float(loss), "learning_rate": float(rate)} for step, loss, rate in lines]
    state = {"global_step": 12_000, "max_steps": 24_000, "log_history": steps}
    texts = [LOG, json.dumps(steps), "\n".join(map(json.dumps, steps)), json.dumps(state, indent=1)]
    of_mine = next(tool for tool in tools({"published": published}) if tool.__name__ == "live")
    of_others = next(tool for tool in tools({"published": published}, False) if tool.__name__ == "live")
    answers = [of_mine(str(path), **RUN), *(of_others(text, **RUN) for text in texts)]
    assert [answer["rows"][0] for answer in answers] == [dict(expected)] * 5


@pytest.mark.parametrize(
    ("log", "message"),
    [
        ("/etc/passwd", "log='/etc/passwd' must be the text of a log"),
        ("step,loss\n" + "1,2\n" * 500_000, "has 2,000,009 characters; at most 2,000,000 are read"),
        ("PAR1\nparquet", "log.csv: a parquet file"),
        ("\x80\x04cposix\nsystem\n.", "log.csv: "),
        ('{"log_history": [1]}', "trainer_state.json: no state of transformers' Trainer"),
        ('{"log_history": [', "trainer_state.json: not valid JSON"),
        ("[" * 5000, "log.json: nested deeper"),
        (LOG, "log: needed besides its log: batch=... (the tokens of a step), n_active"),
        (
            "run_id,step,loss\n" + "".join(f"{run},{step},3\n" for run in range(60) for step in (1, 2)),
            "log.csv: 60 runs; at most 50 are read",
        ),
        # Few characters, and a million cells and more: lines × columns.
        (",".join(map(str, range(1100))) + "\n1" * 1100, "log has more than 1,000,000 cells"),
        (json.dumps([{f"loss{i}": 1} for i in range(1100)]), "log has more than 1,000,000 cells"),
        ('{"log_history": []}', "log: the log has no lines yet"),
        ('{"log_history": [{}], "max_steps": null}', "log: the log has no lines yet"),
        ('{"log_history": [{"step": 1, "loss": 3.0}], "global_step": "x"}', "needed besides its log"),
    ],
)
def test_a_log_that_cannot_be_read_is_one_message(published, log, message):
    ask = next(tool for tool in tools({"published": published}, False) if tool.__name__ == "live")
    with pytest.raises(ValueError, match=re.escape(message)) as raised:
        ask(log)
    assert "\n" not in str(raised.value)
    assert len(str(raised.value)) < 600


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
    assert [tool.name.rpartition("_")[2] for tool in listed] == NAMES
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
    offered = {tool.__name__: tool for tool in tools({"published": published}, reads_files=False)}
    assert [*offered] == [name for name in NAMES if name != "fit"]
    assert not any("peers" in inspect.signature(tool).parameters for tool in offered.values())
    for name in ("describe", "diagnose"):
        values = {"gpu": "h100", "tokens_per_second": "1K"} if name == "diagnose" else {}
        assert offered[name](model="qwen3-30b-a3b", **values)
        with pytest.raises(ValueError, match="model='/etc/passwd' is unknown"):
            offered[name](model="/etc/passwd", **values)


def test_a_loss_is_compared_with_that_of_the_law(published):
    ask = next(tool for tool in tools({"published": published}) if tool.__name__ == "diagnose")
    speed = {"model": "qwen3-30b-a3b", "gpu": "h100", "gpus": 64, "tokens_per_second": "900K"}
    answer = ask(**speed, loss="2.2", tokens="1T")
    direct = diagnose(**speed, loss=2.2, tokens=1e12, law=published)
    assert answer["law_loss"] == direct.law_loss
    assert "its corpus, tokenizer and recipe, not the run's" in str(direct)


def test_the_guides_program_runs(address, capsys, published):
    (code,) = (code for code in blocks(DOCS / "explorer.md", "python") if "Client" in code)
    exec(code.replace("http://127.0.0.1:7860/", address), {})
    assert "16 2.1148" in capsys.readouterr().out
