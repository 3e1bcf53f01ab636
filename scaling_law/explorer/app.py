"""The page: Gradio components around `explorer.answer`; nothing is computed here.

One listener (`_refresh`) writes the answer, the link, and the sliders that follow a text. The browser itself writes
the fields that follow a slider or a link, at once. Gradio drops or reorders changes that happen while it
answers, so each answer comes with the values that it is for (`answered`), and the browser asks again until they are
those of the fields. `turn` is a text that changes whenever a program has changed a field.

No request leaves the machine: Gradio's analytics are off, its fonts are the system's, Plotly comes with it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, astuple, fields
from functools import partial, wraps
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

from hub.base.errors import InputError
from hub.base.types import Fields
from hub.base.units import format_bytes, format_flops
from scaling_law.explorer.answer import answer
from scaling_law.explorer.programs import Form, pick_law, tools
from scaling_law.explorer.question import (
    BUDGET_FIELDS,
    CHOICES,
    FLOPS,
    HOURS,
    LAW_FILE,
    PRESETS,
    PUBLISHED,
    VIEWS,
    Question,
    parse_field,
    type_of,
)
from scaling_law.explorer.run_pages import (
    READ_LOG,
    RUN_FIELDS,
    RUN_PAGES,
    SKIP,
    describe_problem,
    describe_refusal,
    fill_page,
    label_of,
    make_text,
)
from scaling_law.figures.interactive import DARK, FONT, LIGHT
from scaling_law.law import JointLaw, Law
from scaling_law.law.shelf import SHELF
from scaling_law.law_files import law_to_json

if TYPE_CHECKING:
    from gradio import Blocks

# Names under which only this machine is reached.
LOCAL_HOSTS = ("127.0.0.1", "localhost", "::1")
TITLE = "Joint MoE scaling laws"
INTRODUCTION = """# How many experts, how big, how many tokens?

A scaling law picks them for a budget and a memory limit: by default the joint law of
[Ludziejewski et al. 2025](https://arxiv.org/abs/2502.05172)."""
# The fields, in the order of their components.
FIELDS = [field.name for field in fields(Question)]
# Those as wide as the form on a narrow page.
BROAD = ("unit", "accuracy")
# Field → its log10 from and to, and its text.
SLIDERS: dict[str, tuple[float, float, Callable[[float], str]]] = {
    "flops": (17.0, 26.0, format_flops),
    "hours": (0.0, 4.0, "{:.3g}".format),
    "memory": (9.0, 13.0, lambda size: format_bytes(size).replace(" ", "")),
}
# Step of a slider, and those whose right end is an empty text, no limit.
STEP = 0.05
UNLIMITED = ("memory",)
# Components of an answer: those of `_results`, and the link.
SHOWN = 8
TURN = "String(performance.now() + Math.random())"
# What an answer is for, against the fields: while they differ the answer is dimmed, and asked for once more.
DIFFER = "document.body.classList.toggle('asking', JSON.parse(answered).slice(1).some((v, i) => v !== values[i]))"
ASK = f"(answered, turn, ...values) => {{ {DIFFER}; return [answered, turn, ...values]; }}"
# Undefined writes nothing.
ASK_AGAIN = f"(answered, ...values) => {DIFFER} ? {TURN} : document.body.classList.remove('opening')"
# Results of a page whose link asks what has no answer: none, as it has not had any other question yet.
NOTHING = ["", None, "", "", ""]
# Where a page has a <base>, Plotly writes the page's address into what clips a figure, which is then lost when the
# address changes. Gradio's own means the same as none.
NO_BASE = """<script>document.querySelector('base[href="./"]')?.remove()</script>"""
# A printed figure is as wide as its sheet, not as its window: Plotly's pictures have a fixed size, but no view box.
FIT_PRINT = """<script>addEventListener('beforeprint', () => {
    for (const picture of document.querySelectorAll('.js-plotly-plot .main-svg')) {
        const [width, height] = [picture.getAttribute('width'), picture.getAttribute('height')];
        picture.setAttribute('viewBox', `0 0 ${width} ${height}`);
    }
})</script>"""
# Gradio applies the rules of CSS for narrow windows to what is inside the page, not to what is around it.
NARROW = """<style>@media (max-width: 640px) {
    .gradio-container.gradio-container > .main { padding: 0.5em 1em !important; }
    .nav-holder { padding: 0 !important; }
    .nav-holder nav { flex-wrap: nowrap !important; gap: 0 !important; padding: 0 1em !important; }
    .nav-holder nav a { padding: 0.3em 0.5em !important; font-size: 0.875em !important; }
}</style>"""
LINK = "(query) => { history.replaceState(null, '', query ? '?' + query : location.pathname); }"
SAVE = f"""(text) => {{
    const link = document.createElement('a');
    link.href = URL.createObjectURL(new Blob([text], {{type: 'application/json'}}));
    link.download = '{LAW_FILE}';
    link.click();
}}"""
CSS = """
.gradio-container { max-width: 1400px !important; margin: 0 auto !important; }
.gradio-container > .main { max-width: none !important; padding: 1em 1.5em !important; }
.question { flex: 0 0 290px !important; }
.question.run { flex: 0 0 480px !important; }
.question.run .form { display: grid; grid-template-columns: 1fr 1fr; align-items: end; }
.run .form { background: var(--block-background-fill); }
.run .form > .broad { grid-column: 1 / -1 !important; }
#problem p, .answer { scroll-margin-bottom: 60vh; }
.problem { border-left: 4px solid #D55E00; padding: 0.5em 0.8em; }
.answer { font-size: 1.15em; }
.wide { overflow-x: auto; contain: inline-size; }
#problem:not(:has(p)) { display: none; }
.result { transition: opacity 0.2s; }
.opening.dark .js-plotly-plot { visibility: hidden; }
:is(input:not([type=radio], [role=combobox]), textarea, [role=region]):focus-visible {
    outline: 2px solid #3b82f6 !important;
}
.wrap:has(> .wrap-inner [role=combobox]:focus-visible) { outline: 2px solid #3b82f6; }
label:has(:focus-visible[type=radio]) { outline: 2px solid #3b82f6; outline-offset: 1px; }
.modebar-container { top: auto !important; bottom: 0; height: 2em !important; }
.modebar-btn:not([data-title^="Download"]) { display: none !important; }
.asking :is(.result, .plan) { opacity: 0.55; transition-delay: 0.5s; }
.gradio-container:has(#problem .unanswered) :is(.result, .plan) { opacity: 0.55; }
.result .result { opacity: 1 !important; }
.gradio-container:has(#unit [value="hours"]:checked) .in-flops { display: none; }
.gradio-container:has(#unit [value="flops"]:checked) .in-hours { display: none; }
#table table { border-collapse: collapse; width: 100%; font-size: 0.875em; font-variant-numeric: tabular-nums; }
#table :is(table, tbody, tr) { border: 0 !important; color: inherit !important; }
#table :is(th, td) { border: 0; border-bottom: 1px solid var(--border-color-primary); padding: 0.45em 0.5em; }
#table :is(th, td) { white-space: nowrap !important; }
#table .html-container { padding: 0; }
#table p { margin: 0.6em 0; }
#table small { font-size: inherit; }
#table [role=region] {
    contain: inline-size;
    --page: var(--body-background-fill);
    --shade: rgb(128 128 128 / 0.4);
    background:
        linear-gradient(to right, var(--page) 40%, transparent) left / 2em 100% no-repeat local,
        linear-gradient(to left, var(--page) 40%, transparent) right / 2em 100% no-repeat local,
        linear-gradient(to right, var(--shade), transparent) left / 0.7em 100% no-repeat scroll,
        linear-gradient(to left, var(--shade), transparent) right / 0.7em 100% no-repeat scroll;
}
.cm-content, .cm-content * { color: var(--body-text-color) !important; }
.cm-gutters { display: none !important; }
#yaml .cm-content { padding-right: 4.5em; }
footer .divider { display: none; }
.gradio-container:not(:has(#table table)) :is(.result, .plan, #view) { display: none; }
.slider :is(.head, .min_value, .max_value) { display: none; }
.question .form > .slider { overflow: visible !important; }
input[type=range]::-webkit-slider-thumb { box-shadow: 0 0 0 1px var(--neutral-500) !important; }
@media (max-width: 960px) {
    .question, .question.run { flex: 1 0 100% !important; }
    .question .form { display: grid; grid-template-columns: repeat(4, 1fr); align-items: end; }
    .question .form { background: var(--block-background-fill); }
    .question .form > .block { min-width: 0 !important; padding: 0.25em 0.8em; }
    .question .form > .broad { grid-column: span 2; }
}
@media (max-width: 640px) {
    h1 { font-size: 1.15em !important; }
    .question .form { grid-template-columns: 1fr 1fr; }
    .question:not(.run) .info-text { display: none; }
    .question .form > .block:not(.slider) { padding: 0.1em 0.6em !important; }
    .question [data-testid="block-info"] { font-size: 0.8125rem; }
    .question :is(input, textarea) { padding-inline: 0.4em !important; }
    #view .wrap { display: grid; grid-template-columns: 1fr 1fr; }
    #view label { font-size: 0.875em; padding: 0.4em 0.6em; }
}
@media print {
    .question, .plan, #view, button { display: none !important; }
    #table [role=region] { overflow: visible !important; contain: none; }
    #table table { font-size: 0.6em; }
    .js-plotly-plot :is(.svg-container, .main-svg) { width: 100% !important; height: auto !important; }
    .js-plotly-plot .main-svg:first-child { position: static !important; }
}
"""
# The field that a problem names has a frame: a text, or a choice as a whole.
CSS += "".join(
    f'.gradio-container:has(#problem [data-field="{name}"])'
    f" :is(#{name} :is(input:not([type=radio]), textarea), fieldset#{name})"
    " { box-shadow: inset 0 0 0 2px #D55E00 !important; }\n"
    for name in [*FIELDS, *RUN_FIELDS]
)


def offer_laws(own_laws: Mapping[str, Law] | None = None) -> dict[str, Law]:
    """Offer `own_laws` by name, then the published ones that have an optimum; "published" is the paper's."""
    laws: dict[str, Law] = {**(own_laws or {}), PUBLISHED: JointLaw.published()}
    for name, entry in SHELF.items():
        if entry.has_optimum:
            law = entry.law()
            if law != laws[PUBLISHED]:
                laws.setdefault(name, law)
    return laws


def page(own_laws: Mapping[str, Law] | None = None, reads_files: bool = True) -> Blocks:
    """Make the app, not yet served; it opens with the first of `own_laws`, or the paper's.

    Only if it `reads_files` has it the tools that read files of this machine and repositories of the Hub.
    """
    import gradio as gr

    laws = offer_laws(own_laws)
    first = Question.first(*next(iter(laws.items())))
    # The page itself has its first answer, so that it opens with it.
    start = [None if value == SKIP else value for value in _answer_components(laws, first, False)]
    quiet: Fields = {"api_visibility": "private", "show_progress": "hidden"}

    class Page(gr.Blocks):
        """Blocks that tell a program when values are missing, where Gradio answers with no message."""

        def validate_inputs(self, *arguments: Any) -> None:
            try:
                super().validate_inputs(*arguments)
            except ValueError as error:
                raise gr.Error(str(error).partition("\n")[0], print_exception=False) from None

    with Page(title=TITLE, analytics_enabled=False) as app:
        links = [f"[{name}](?{question.query()})" for name, question in PRESETS.items()]
        gr.Markdown(f"{INTRODUCTION}\n\nStart from {' · '.join(links)}", elem_id="introduction")
        link, turn, law_text = (gr.Textbox("", visible="hidden") for _ in range(3))
        opening = _echo("", astuple(first))
        answered = gr.Textbox(opening, visible="hidden")
        dark = gr.Checkbox(visible="hidden")
        with gr.Row():
            with gr.Column(scale=1, min_width=280, elem_classes="question"):
                inputs, sliders = _inputs(laws, first)
            with gr.Column(scale=3, min_width=320):
                inputs["view"], results, save = _results(start)
        questions = [inputs[name] for name in FIELDS]
        positions = [*sliders.values()]
        state = [answered, turn, *questions]
        values = [*questions, turn]
        texts = [text for text in questions if isinstance(text, gr.Textbox)]
        typed = [*(text.submit for text in texts), *(text.blur for text in texts)]
        picked = [inputs[name].input for name in ("unit", "gpu", "law", "view")]
        gr.on(
            [*typed, *picked, turn.change], partial(_refresh, laws, opening), [*state, *positions, link, dark],
            [*positions, *results, save, link, answered], js=ASK, trigger_mode="always_last", **quiet,
        )  # fmt: skip
        answered.change(None, [answered, *questions], turn, js=ASK_AGAIN)
        link.change(None, link, None, js=LINK)
        app.load(None, None, [*values, link, dark], js=_opening_script(laws, first))
        for name, slider in sliders.items():
            slider.input(None, [slider, inputs[name]], [inputs[name], turn], js=_slider_script(name))

        saved = save.click(partial(_law_text, laws), [inputs["law"]], law_text, **quiet)
        saved.success(None, law_text, None, js=SAVE)
        for tool in tools(laws, reads_files):
            gr.api(_with_messages(tool), api_name=tool.__name__)
    for run_page in RUN_PAGES:
        with app.route(run_page.action, run_page.path):
            fill_page(run_page, Form(laws, run_page.tool, reads_files))
    return app


def _inputs(laws: Mapping[str, Law], first: Question) -> tuple[Fields, Fields]:
    """Make the components of a question but for its view, and its sliders."""
    import gradio as gr

    inputs: Fields = {}
    sliders: Fields = {}
    positions = _slider_positions(first)
    choices: Fields = {"unit": [("FLOPs", FLOPS), ("hours on GPUs", HOURS)], "gpu": [*CHOICES["gpu"]], "law": [*laws]}
    for name in FIELDS:
        classes = [f"in-{unit}" for unit, names in BUDGET_FIELDS.items() if name in names]
        looks: Fields = {"value": getattr(first, name), "elem_classes": ["broad"] if name in BROAD else classes}
        if name in choices:
            make = gr.Radio if name == "unit" else gr.Dropdown
            inputs[name] = make(choices[name], label=label_of(name), elem_id=name, **looks)
        elif name != "view":
            inputs[name] = make_text(name, type_of(name), **looks)
        if name in SLIDERS:
            low, high, _ = SLIDERS[name]
            label = f"log₁₀ of {label_of(name)}"
            position = positions.get(name)
            sliders[name] = gr.Slider(low, high, position, step=STEP, label=label, elem_classes=["slider", *classes])
    return inputs, sliders


def _results(start: list[Any]) -> tuple[Any, list[Any], Any]:
    """Make the choice of the figure, a button, and what answers: sentence, figure, table and code."""
    import gradio as gr

    fixed: Fields = {"interactive": False, "show_line_numbers": False, "elem_classes": ["wide", "result"]}
    problem = gr.HTML(start[0], elem_id="problem")
    sentence = gr.Markdown(start[1], elem_classes=["answer", "result"])
    view = gr.Radio([(label, name) for name, label in VIEWS.items()], label="Figure", value="memory", elem_id="view")
    plot = gr.Plot(start[2], show_label=False, elem_classes="result")
    table = gr.HTML(start[3], elem_id="table", elem_classes="result")
    shell = {"language": "shell", "label": "The same in the shell", "lines": 1, "wrap_lines": True}
    command = gr.Code(start[4], elem_id="command", **shell, **fixed)
    with gr.Accordion("YAML of the plan, for train.py", open=False, elem_classes="plan"):
        yaml = {"language": "yaml", "show_label": False, "wrap_lines": True}
        configuration = gr.Code(start[5], elem_id="yaml", **yaml, **fixed)
    save = gr.Button(f"Save this law ({LAW_FILE})", visible=bool(start[6] and start[6]["visible"]), size="sm")
    return view, [problem, sentence, plot, table, command, configuration], save


# ------------------------------------------------------------------ events: values of components in, values out


def _refresh(laws: Mapping[str, Law], opening: str, answered: str, turn: str, *state: Any) -> list[Any]:
    """Return sliders, results, link, and the values they are for; nothing where the page shows these.

    `opening`: the values of the answer that the page opens with.
    """
    count = len(FIELDS)
    texts = state[:count]
    old_positions = state[count : count + len(SLIDERS)]
    link, dark = state[-2:]
    echo = _echo(turn, texts)
    if echo == answered:
        return [SKIP] * (len(SLIDERS) + SHOWN + 1)
    question = Question(*texts)
    positions = _slider_positions(question)
    sliders = []
    for name, old_position in zip(SLIDERS, old_positions, strict=True):
        position = positions.get(name, old_position)
        sliders.append(SKIP if position == old_position else position)
    problem, *results = _answer_components(laws, question, dark)
    # The page has answered nothing but what it opened with, and its link asks something else.
    if problem and answered == opening and link != Question(*json.loads(opening)[1:]).query():
        results[: len(NOTHING)] = NOTHING
    try:
        Question.of(dict(parse_qsl(link, keep_blank_values=True, max_num_fields=20)))
    # The link asked for what no field could take.
    except ValueError as error:
        problem = describe_problem(error, "problem") + problem
    return [*sliders, problem, *results, echo]


def _echo(turn: str, texts: Sequence[str]) -> str:
    return json.dumps([turn, *texts])


def _answer_components(laws: Mapping[str, Law], question: Question, dark: bool) -> list[Any]:
    """Return the results, and the link; or what is wrong with the question, and earlier results stay."""
    try:
        results = answer(question, pick_law(laws, question.law), DARK if dark else LIGHT)
    except ValueError as error:
        return [describe_problem(error), *[SKIP] * (SHOWN - 1)]
    save = {**SKIP, "visible": question.law not in (PUBLISHED, *SHELF)}
    return ["", *(getattr(results, field.name) for field in fields(results)), save, question.query()]


def _slider_positions(question: Question) -> dict[str, float]:
    """Return the steps nearest to what the texts say, within the ends of the sliders, as far as they can be read."""
    positions = {}
    for name, (low, high, _) in SLIDERS.items():
        text = getattr(question, name)
        if name in UNLIMITED and not text:
            positions[name] = high
            continue
        with suppress(ValueError):
            position = math.log10(parse_field(name, text))
            step = round((min(max(position, low), high) - low) / STEP)
            positions[name] = round(low + STEP * step, 2)
    return positions


def _slider_script(name: str) -> str:
    """Write JavaScript: the text of a slider's position, or the old text where it has none; and a turn."""
    low, high, text_of = SLIDERS[name]
    texts = [text_of(10.0 ** (low + STEP * i)) for i in range(round((high - low) / STEP) + 1)]
    if name in UNLIMITED:
        texts[-1] = ""
    index = f"typeof position === 'number' ? Math.round((position - {low}) / {STEP}) : -1"
    return f"(position, text) => [{json.dumps(texts)}[{index}] ?? text, {TURN}]"


def _opening_script(laws: Mapping[str, Law], first: Question) -> str:
    """Write JavaScript: the fields that the page's address has values for, a turn, the link, and dark or not."""
    offered = {**CHOICES, "law": (*laws,)}
    linked = asdict(Question(law=first.law))
    return f"""() => {{
        const query = location.search.slice(1), asked = new URLSearchParams(query), offered = {json.dumps(offered)};
        const dark = document.body.classList.contains('dark');
        const start = query ? {json.dumps(linked)} : {json.dumps(asdict(first))};
        const values = Object.entries(start).map(([name, value]) =>
            asked.has(name) && (offered[name]?.includes(asked.get(name)) ?? true) ? asked.get(name) : value);
        document.body.classList.add('opening');
        return [...values, query || dark ? {TURN} : '', query || {json.dumps(first.query())}, dark];
    }}"""


def _law_text(laws: Mapping[str, Law], name: str) -> str:
    """Return the file of a law, for the browser to save."""
    return law_to_json(pick_law(laws, name)).decode()


def _with_messages(tool: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap `tool` so that callers see what is wrong with their question, and nothing of bugs."""
    import gradio as gr

    @wraps(tool)
    def checked(*arguments: Any, **keywords: Any) -> Any:
        try:
            return tool(*arguments, **keywords)
        except Exception as error:
            raise gr.Error(describe_refusal(error), print_exception=False) from None

    return checked


# ------------------------------------------------------------------ serving


def explore(
    own: Mapping[str, Law] | None = None,
    *,
    host: str = "127.0.0.1",
    port: int | None = None,
    browser: bool = True,
    wait: bool = True,
) -> str:
    """Serve the page, its API and its MCP server, and open it in the browser; returns its address.

    `own` laws, by name, stand before the published ones. Nobody but this machine can reach it unless `host` is another
    address. `wait`: until interrupted. InputError without the extra `[explorer]`.
    """
    if find_spec("gradio") is None or find_spec("plotly") is None:
        raise InputError('the explorer needs gradio and plotly: pip install "joint-moe-scaling-laws[explorer]"')
    from mcp.types import TextContent

    app = page(own, reads_files=host in LOCAL_HOSTS)
    _, address, _ = app.launch(**settings(), server_name=host, server_port=port, inbrowser=browser, quiet=True)
    # Gradio writes what tools return as Python, not as JSON.
    app.mcp_server_obj.postprocess_output_data = lambda data, _: [
        TextContent(type="text", text=json.dumps(item)) for item in data
    ]
    if wait:
        print(f"{address}\nMCP: {address.rstrip('/')}/gradio_api/mcp/  (Ctrl-C ends it)")
        app.block_thread()
    return str(address)


def settings() -> Fields:
    """Return the settings of every way of serving the page."""
    import gradio as gr

    fonts = {"font": FONT.split(", "), "font_mono": ["ui-monospace", "monospace"]}
    # The browser fetches and compiles Plotly, a third of what opening takes, beside the rest: Gradio asks for it only
    # when the figure is there. Its file has another name in each release.
    plotly = (Path(gr.__file__).parent / "templates" / "frontend" / "assets").glob("PlotlyPlot-*.js")
    preloads = [f'<link rel="modulepreload" href="./assets/{file.name}">' for file in plotly]
    return {
        "theme": gr.themes.Base(**fonts).set(
            button_primary_background_fill="*primary_600",
            body_text_color_subdued="*neutral_600",
            body_text_color_subdued_dark="*neutral_300",
            block_info_text_color="*neutral_600",
            block_info_text_color_dark="*neutral_300",
        ),
        "css": CSS,
        "head": "".join([*preloads, NO_BASE, FIT_PRINT, NARROW, READ_LOG]),
        "mcp_server": True,
        "footer_links": ["api"],
        "share": False,
        "ssr_mode": False,
        # Each question to the API is a session of 200 kB, of which Gradio keeps the last; the page needs none.
        "state_session_capacity": 100,
        "prevent_thread_lock": True,
    }
