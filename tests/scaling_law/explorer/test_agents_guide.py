"""docs/agents.md: its ten questions, asked from Python, a shell and an MCP client, have one answer."""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from scaling_law import question_schema
from scaling_law.commands.cli import app as shell
from tests.answers import is_same_text
from tests.guides import DOCS, blocks, run_python

PAGE = DOCS / "agents.md"
QUESTIONS = [row["question"] for row in json.loads(blocks(PAGE, "json")[0])]
# What an answer is compared by.
NUMBERS = ("experts", "d_model", "n_active", "tokens", "loss")


def best_of(law, question):
    """The numbers of the best row, None where there is no answer."""
    try:
        answer = law.optimal(**question, integral=True).to_dict()
    except ValueError:
        return None
    return numbers_of(answer)


def numbers_of(answer):
    return [answer["best"][name] for name in NUMBERS]


@pytest.fixture(scope="module")
def answers(published):
    return [best_of(published, question) for question in QUESTIONS]


def test_ten_questions_follow_the_schema_and_have_answers(answers):
    jsonschema = pytest.importorskip("jsonschema")
    schema = question_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    for question in QUESTIONS:
        jsonschema.validate(question, schema)
    for wrong in (
        {},
        {"flops": 1e22, "hours": 3},
        {"flops": 1e22, "ram": "1GB"},
        {"flops": 1e22, "gpus": "8 of them"},
    ):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(wrong, schema)
    assert [answer is None for answer in answers] == [False] * 9 + [True]
    assert answers[0][0] == 16
    assert answers[2][0] == 1


def test_a_shell_answers_the_same(answers):
    for question, answer in zip(QUESTIONS, answers, strict=True):
        options = [word for name, value in question.items() for word in (f"--{name.replace('_', '-')}", str(value))]
        done = CliRunner().invoke(shell, ["optimal", *options, "--integral", "--json"])
        if answer is None:
            assert isinstance(done.exception, ValueError) or done.exit_code == 2
        else:
            assert numbers_of(json.loads(done.stdout)) == answer


def test_an_mcp_client_is_answered_the_same(address, answers):
    pytest.importorskip("mcp")
    from mcp import ClientSession
    from mcp.client.streamable_http import streamable_http_client

    async def ask():
        async with (
            streamable_http_client(f"{address}gradio_api/mcp/") as (reading, writing, _),
            ClientSession(reading, writing) as session,
        ):
            await session.initialize()
            name = next(tool.name for tool in (await session.list_tools()).tools if tool.name.endswith("optimal"))
            texts = [{key: str(value) for key, value in question.items()} for question in QUESTIONS]
            return [await session.call_tool(name, question) for question in texts]

    *answered, refused = asyncio.run(ask())
    assert [numbers_of(json.loads(result.content[0].text)) for result in answered] == answers[:-1]
    assert refused.isError
    assert "nothing fits" in refused.content[0].text


def test_the_schema_shown_is_the_one_there_is(capsys):
    run_python(PAGE, without="trackio")
    assert is_same_text(blocks(PAGE, "text")[0], capsys.readouterr().out)


def test_an_answer_of_the_law_is_logged_to_trackio(published, tmp_path):
    pytest.importorskip("trackio")
    code = next(code for code in blocks(PAGE, "python") if "trackio" in code)
    environment = {**os.environ, "TRACKIO_DIR": str(tmp_path), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (page,) = tmp_path.rglob("*.html")
    assert "memory limit" in page.read_text(encoding="utf-8")
    with sqlite3.connect(tmp_path / "my-sweep.db") as connection:
        ((metrics,),) = connection.execute("select metrics from metrics").fetchall()
    logged = json.loads(metrics)
    answer = published.optimal(1e22, memory="80GB", kv_tokens="16k")
    rows = logged["best model of each E"]["_value"]
    assert [row["experts"] for row in rows] == [row.experts for row in answer]
    assert logged["answer"]["_value"] == answer.verdict
