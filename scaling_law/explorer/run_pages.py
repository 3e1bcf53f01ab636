"""Pages about a run: a form of a tool's arguments, and its answer. A log is read by the browser and sent as text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from html import escape
from typing import Any, NamedTuple

from hub.base.commands import status_of
from hub.base.errors import redact
from hub.base.fields import meaning_of
from hub.base.tables import html
from hub.base.types import Fields
from scaling_law.explorer.programs import DIAGNOSE, LIVE, LONGEST_LOG, Form, Tool
from scaling_law.formulas.conditions import ExtrapolationError

# As gradio.skip(), which leaves a component alone.
SKIP: Fields = {"__type__": "update"}
# Labels of fields that their names do not say.
LABELS = {
    "n_active": "Active parameters",
    "gpu": "GPU",
    "gpus": "GPUs",
    "unit": "Budget in",
    "flops": "Training budget (FLOPs)",
    "memory": "Memory limit",
    "kv_tokens": "Tokens in the KV cache",
    "like": "Family",
    "law": "Law",
    "accuracy": "Downstream accuracy",
}
CHOOSE_LOG = '<label>Open a log <input type="file" id="log_file" accept=".csv,.tsv,.jsonl,.json,.txt,.log"></label>'
# One character too many is enough to be refused.
READ_LOG = f"""<script>addEventListener('change', async event => {{
    const [file] = event.target.id === 'log_file' ? event.target.files : [];
    const field = document.querySelector('#log textarea');
    if (file) {{
        field.value = await file.slice(0, {LONGEST_LOG + 1}).text();
        field.dispatchEvent(new Event('input'));
    }}
}})</script>"""
# On a phone the answer stands below the form.
SHOW_ANSWER = """() => setTimeout(() => {
    document.querySelector('#problem p, .answer').scrollIntoView({block: 'nearest'});
}, 200)"""


class RunPage(NamedTuple):
    """A page: the tool that it asks, what its button and the link to it say, and its headline."""

    tool: Tool
    action: str
    headline: str

    @property
    def path(self) -> str:
        return self.tool.answer.__name__


RUN_PAGES = (
    RunPage(LIVE, "Forecast a run", "What will my run reach?"),
    RunPage(DIAGNOSE, "Diagnose a run", "Is my run as fast as it should be?"),
)
RUN_FIELDS = {name for page in RUN_PAGES for name in Form({}, page.tool).arguments}


def fill_page(page: RunPage, form: Form) -> None:
    """Make the components of a page and its listener."""
    import gradio as gr

    gr.Markdown(f"# {page.headline}\n\n{page.tool.answer.__doc__}")
    with gr.Row():
        with gr.Column(scale=1, min_width=280, elem_classes=["question", "run"]):
            inputs = [_make_field(form, name) for name in form.arguments]
            button = gr.Button(page.action, variant="primary")
        with gr.Column(scale=3, min_width=320):
            problem = gr.HTML(elem_id="problem")
            sentence = gr.HTML(elem_classes=["answer", "result"])
            table = gr.HTML(elem_id="table", elem_classes="result")
    typed = [text.submit for text in inputs if isinstance(text, gr.Textbox)]
    quiet: Fields = {"api_visibility": "private", "show_progress": "minimal"}
    event = gr.on([button.click, *typed], partial(_answer_form, form), inputs, [problem, sentence, table], **quiet)
    event.then(None, js=SHOW_ANSWER)


def _make_field(form: Form, name: str) -> Any:
    """Make the component of an argument; an empty one has its default."""
    import gradio as gr

    argument = form.arguments[name]
    if name == "law":
        laws = [*form.laws]
        return gr.Dropdown(laws, value=laws[0], label="Law", info=meaning_of(argument.annotation), elem_id="law")
    if name == "log":
        gr.HTML(CHOOSE_LOG)
        return make_text(name, argument.annotation, lines=6, max_lines=6, elem_classes="broad")
    default = argument.default
    return make_text(name, argument.annotation, str(default) if isinstance(default, (str, int, float)) else "")


def make_text(name: str, kind: Any, default: str = "", **looks: Any) -> Any:
    """Make the text of a field with what it means; an empty one shows what it stands for."""
    import gradio as gr

    meaning, _, words = meaning_of(kind).partition(" [default: ")
    looks = {"max_lines": 1, "placeholder": default or words.removesuffix("]"), **looks}
    return gr.Textbox(label=label_of(name), info=meaning, elem_id=name, **looks)


def label_of(name: str) -> str:
    """Return the label of a field."""
    return LABELS.get(name, name.replace("_", " ").capitalize())


def _answer_form(form: Form, *values: Any) -> Sequence[Any]:
    """Return the problem, the verdict and the table; with a problem the last answer stays."""
    try:
        answer = form.answer(form.read(dict(zip(form.arguments, values, strict=True))))
    except Exception as error:
        return [describe_problem(error), SKIP, SKIP]
    verdict = escape(answer.verdict).replace("\n", "<br>")
    return ["", f'<p role="status">{verdict}</p>', html(replace(answer.summary(), title=None))]


def describe_refusal(error: Exception) -> str:
    """Return the message of an error that a user has caused; any other one is raised."""
    if status_of(error) is None and not isinstance(error, ValueError):
        raise error
    # The page cannot force an answer.
    return error.reason if isinstance(error, ExtrapolationError) else redact(str(error))


def describe_problem(error: Exception, kind: str = "problem unanswered") -> str:
    """Write a problem; `data-field` is the field that it begins with, if any."""
    message = describe_refusal(error)
    name = message.partition("=")[0]
    field = name if name.isidentifier() else ""
    return f'<p class="{kind}" role="alert" data-field="{field}">{escape(message)}</p>'
