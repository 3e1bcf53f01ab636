"""The page: Gradio components around `explorer.answer`; nothing is computed here.

No request leaves the machine: Gradio's analytics are off, its fonts are the system's, Plotly comes with it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import astuple, fields, replace
from functools import partial, wraps
from html import escape
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

from hub.plain.units import parse_bytes, parse_count
from scaling_law.explorer.answer import answer
from scaling_law.explorer.programs import chosen, tools
from scaling_law.explorer.question import (
    FLOPS,
    GPU_NAMES,
    HOURS,
    PRESETS,
    PUBLISHED,
    VIEWS,
    YOURS,
    Question,
    of_log_bytes,
    of_log_flops,
    of_log_hours,
)
from scaling_law.explorer.uploads import ACTIONS, LAW_FILES, MAX_BYTES, TABLES, USE, read_upload
from scaling_law.figures.interactive import DARK, FONT, LIGHT
from scaling_law.formulas import Law
from scaling_law.formulas.shelf import SHELF
from scaling_law.paper.published import published_law

if TYPE_CHECKING:
    from gradio import Blocks

TITLE = "Joint MoE scaling laws"
INTRODUCTION = """# How many experts, how big, how many tokens?

A joint scaling law of dense and Mixture-of-Experts models
([Ludziejewski et al. 2025](https://arxiv.org/abs/2502.05172)) answers for a training budget and a memory limit.
Dashed lines lie outside the runs that a law was fitted to, bands are 95 % intervals, bars those of where the next E
takes over. The address of this page is a link to what it shows."""
FIELDS = [own.name for own in fields(Question)]  # in the order of their components
SLIDERS: dict[str, tuple[float, float, Callable[[float], str]]] = {  # field → its log10 from and to, and its text
    "flops": (17.0, 26.0, of_log_flops),
    "hours": (0.0, 4.0, of_log_hours),
    "memory": (9.0, 13.0, of_log_bytes),
}
STATE, SHOWN = len(FIELDS) + len(SLIDERS), 8  # components of a question; of its answer, with the link
SESSION_SECONDS = 3600  # that an uploaded law stays with its visitor
OPENED = "() => [location.search.slice(1), document.body.classList.contains('dark')]"
LINK = "(query) => { history.replaceState(null, '', query ? '?' + query : location.pathname); }"
CSS = """
.gradio-container { max-width: 1400px !important; margin: 0 auto !important; }
.problem { border-left: 4px solid #D55E00; padding: 0.5em 0.8em; }
.answer { font-size: 1.15em; }
.wide { overflow-x: auto; contain: inline-size; }
#problem:not(:has(p)), #said:has(.empty) { display: none; }
.gradio-container:has(#unit [value="hours"]:checked) .in-flops { display: none; }
.gradio-container:has(#unit [value="flops"]:checked) .in-hours { display: none; }
.wide :is(table, thead, tbody, tr) { border: 0 !important; }
.wide table { border-collapse: collapse; width: 100%; }
.wide table { font-variant-numeric: tabular-nums; white-space: nowrap; }
.wide :is(th, td) { border: 0; border-bottom: 1px solid var(--border-color-primary); padding: 0.45em 0.7em; }
.wide :is(th, td) + :is(th, td) { text-align: right; }
.wide tr.best { font-weight: bold; }
.cm-content, .cm-content * { color: var(--body-text-color) !important; }
"""


def offered_laws(own: Mapping[str, Law] | None = None) -> dict[str, Law]:
    """`own` laws by name, then the published ones that have an optimum; "published" is the paper's."""
    found: dict[str, Law] = {**(own or {}), PUBLISHED: published_law()}
    for name, entry in SHELF.items():
        law = entry.law() if entry.make else None
        if isinstance(law, Law) and "tokens" in law.variables and law != found[PUBLISHED]:
            found.setdefault(name, law)
    return found


def page(own: Mapping[str, Law] | None = None) -> Blocks:
    """The app, not yet served; it opens with the first of `own` laws, or the paper's."""
    import gradio as gr

    laws = offered_laws(own)
    first = Question.first(*next(iter(laws.items())))
    asked_first = _asked(laws, *astuple(first), False, None)  # in the page itself, so that it opens with its answer
    start = _shown(asked_first)
    quiet: dict[str, Any] = {"api_visibility": "private", "show_progress": "hidden"}
    with gr.Blocks(title=TITLE, analytics_enabled=False, delete_cache=(SESSION_SECONDS, SESSION_SECONDS)) as app:
        gr.Markdown(INTRODUCTION)
        query, dark = gr.Textbox(visible="hidden"), gr.Checkbox(visible="hidden")
        uploaded = gr.State(None, time_to_live=SESSION_SECONDS)
        with gr.Row():
            with gr.Column(scale=1, min_width=280):
                preset, asked, sliders = _inputs(laws, first)
                upload = _upload()
            with gr.Column(scale=3, min_width=320):
                asked["view"], results = _results(start)
        questions, shown = [asked[name] for name in FIELDS], [*results, query]
        state = [*questions, dark, uploaded]
        positions = [*sliders.values(), *shown]

        app.load(partial(_opened, laws, first), [query, dark], [*questions, *positions], js=OPENED, **quiet)
        preset.input(partial(_preset, laws), [preset, *state], [*questions, *positions], **quiet)
        for name, slider in sliders.items():
            slid, outputs = partial(_slid, laws, name), [asked[name], *shown]
            slider.input(slid, [slider, *state], outputs, trigger_mode="always_last", **quiet)
        texts = [text for text in questions if isinstance(text, gr.Textbox)]
        typed = [event for text in texts for event in (text.submit, text.blur)]
        gr.on(typed, partial(_typed, laws), [query, *state], positions, **quiet)
        picked = [asked[name].input for name in ("unit", "gpu", "law", "view")]
        gr.on(picked, partial(_asked, laws), state, shown, **quiet)
        query.change(None, query, None, js=LINK, **quiet)
        file, action, button, said = upload
        used = button.click(
            partial(_take, laws), [file, action, asked["law"]], [uploaded, said, file, asked["law"], results[0]],
            concurrency_limit=1, api_visibility="private",
        )  # fmt: skip
        used.then(partial(_asked, laws), state, shown, **quiet)
        for tool in tools(laws):
            gr.api(_told(tool), api_name=tool.__name__)
    return app


def _inputs(laws: Mapping[str, Law], first: Question) -> tuple[Any, dict[str, Any], dict[str, Any]]:
    """The presets, the components of a question but for its view, and its sliders, by field."""
    import gradio as gr

    asked: dict[str, Any] = {}
    sliders: dict[str, Any] = {}
    at = dict(zip(SLIDERS, _shown(_positions(first)), strict=True))

    def text(name: str, label: str, info: str, **options: Any) -> None:
        asked[name] = gr.Textbox(getattr(first, name), label=label, info=info, max_lines=1, elem_id=name, **options)

    def slider(name: str, label: str, **options: Any) -> None:
        low, high, _ = SLIDERS[name]
        sliders[name] = gr.Slider(low, high, at[name], step=0.05, label=label, **options)

    preset = gr.Dropdown(
        list(PRESETS), label="Start from a preset", value=None
    )  # what a link opens need not be one of them
    units = [("FLOPs", FLOPS), ("hours on GPUs", HOURS)]
    asked["unit"] = gr.Radio(units, label="Budget in", value=first.unit, elem_id="unit")
    text("flops", "Training budget (FLOPs)", "1e22, with those of serving", elem_classes="in-flops")
    slider("flops", "log₁₀ of the FLOPs", elem_classes="in-flops")
    text("hours", "Hours", "168 is a week; wall-clock time of training", elem_classes="in-hours")
    slider("hours", "log₁₀ of the hours", elem_classes="in-hours")
    text("gpus", "Number of GPUs", "8, which share the steps evenly", elem_classes="in-hours")
    asked["gpu"] = gr.Dropdown(list(GPU_NAMES), label="GPU", value=first.gpu, elem_classes="in-hours")
    text("memory", "Memory", "80GB for weights and KV cache; empty: no limit")
    slider("memory", "log₁₀ of the bytes")
    text("kv_tokens", "Tokens in the KV cache", "16k, over all sequences")
    text("inference_tokens", "Tokens served", "100B over the model's life; with FLOPs only")
    text("experts", "Numbers of experts", "1,2,4-8; empty: the law's own")
    asked["law"] = gr.Dropdown([*laws, YOURS], label="Law", value=first.law)
    return preset, asked, sliders


def _upload() -> tuple[Any, Any, Any, Any]:
    """The file, what to do with it, the button, and what came of it."""
    import gradio as gr

    with gr.Accordion("Your own law or runs", open=False):
        gr.Markdown(
            "A `scaling_law.json`, or a table of runs with columns `n_active`, `tokens`, `experts` and a loss. It is "
            f"read as data, at most {MAX_BYTES // 10**6} MB, and deleted; the law is forgotten with this session."
        )
        file = gr.File(label="File", file_types=[*LAW_FILES, *TABLES], height=120)
        action = gr.Radio(list(ACTIONS), label="What to do", value=USE)
        button = gr.Button("Go")
        said = gr.Code(
            label="What came of it",
            interactive=False,
            show_line_numbers=False,
            elem_id="said",
            elem_classes="wide",
            lines=3,
        )
    return file, action, button, said


def _results(start: list[Any]) -> tuple[Any, list[Any]]:
    """The choice of the figure; and what answers: problem, sentence, figure, table, notes, command, YAML."""
    import gradio as gr

    fixed: dict[str, Any] = {"interactive": False, "show_line_numbers": False, "elem_classes": "wide"}
    problem = gr.HTML(start[0], elem_id="problem")
    sentence = gr.Markdown(start[1], elem_classes="answer")
    view = gr.Radio([(label, name) for name, label in VIEWS.items()], label="Figure", value="memory")
    plot = gr.Plot(start[2], show_label=False)
    table = gr.HTML(start[3])
    notes = gr.Markdown(start[4])
    command = gr.Code(start[5], language="shell", label="The same in the shell", lines=1, wrap_lines=True, **fixed)
    with gr.Accordion("YAML of the plan, for train.py", open=False):
        configuration = gr.Code(start[6], language="yaml", show_label=False, **fixed)
    return view, [problem, sentence, plot, table, notes, command, configuration]


def _shown(values: list[Any]) -> list[Any]:
    """As values of new components: None where an event would leave its component alone."""
    import gradio as gr

    return [None if value == gr.skip() else value for value in values]


# ------------------------------------------------------------------ events: values of components in, values out


def _asked(laws: Mapping[str, Law], *state: Any) -> list[Any]:
    """The results for the values of the components."""
    import gradio as gr

    *texts, dark, uploaded = state
    question = Question(*texts)
    try:
        found = answer(question, _law(laws, question.law, uploaded), DARK if dark else LIGHT)
    except ValueError as error:
        return [_message(error), *[gr.skip()] * (SHOWN - 1)]
    return ["", *(getattr(found, own.name) for own in fields(found)), question.query()]


def _law(laws: Mapping[str, Law], name: str, uploaded: Law | None) -> Law:
    if name != YOURS:
        return chosen(laws, name)
    if uploaded is None:
        raise ValueError(f"law={name!r}: upload a law or a table of runs first")
    return uploaded


def _message(error: Exception) -> str:
    return f'<p class="problem" role="alert">{escape(str(error))}</p>'


def _typed(laws: Mapping[str, Law], query: str, *state: Any) -> list[Any]:
    """As `_asked`, with the positions of the sliders; nothing where nothing has changed."""
    import gradio as gr

    question = Question(*state[: len(FIELDS)])
    if question.query() == query:
        return [*[gr.skip()] * len(SLIDERS), "", *[gr.skip()] * (SHOWN - 1)]
    return [*_positions(question), *_asked(laws, *state)]


def _slid(laws: Mapping[str, Law], name: str, value: float, *state: Any) -> list[Any]:
    """As `_asked`, with the text of the slider that was moved."""
    i, (_, _, text_of) = FIELDS.index(name), SLIDERS[name]
    text = text_of(value)
    return [text, *_asked(laws, *state[:i], text, *state[i + 1 :])]


def _positions(question: Question) -> list[Any]:
    """log10 of what sliders stand for, within their ends; what cannot be read leaves its slider where it is."""
    import gradio as gr

    found: list[Any] = [gr.skip()] * len(SLIDERS)
    for i, (name, (low, high, _)) in enumerate(SLIDERS.items()):
        read = parse_bytes if name == "memory" else parse_count
        with suppress(ValueError):
            found[i] = round(min(max(math.log10(read(getattr(question, name), name)), low), high), 2)
    return found


def _opened(laws: Mapping[str, Law], first: Question, query: str, dark: bool) -> list[Any]:
    """Everything, for the question of the address; nothing where the page opens with it."""
    import gradio as gr

    if not query and not dark:
        return [gr.skip()] * (STATE + SHOWN)
    try:
        question = Question.of({"law": first.law, **dict(parse_qsl(query, keep_blank_values=True, max_num_fields=20))})
    except ValueError as error:
        return [*[gr.skip()] * STATE, _message(error), *[gr.skip()] * (SHOWN - 1)]
    return [*astuple(question), *_positions(question), *_asked(laws, *astuple(question), dark, None)]


def _preset(laws: Mapping[str, Law], name: str, *state: Any) -> list[Any]:
    """Everything, for a preset under the same law and view."""
    *_, law, view = state[: len(FIELDS)]
    question = replace(PRESETS[name], law=law, view=view)
    return [*astuple(question), *_positions(question), *_asked(laws, *astuple(question), *state[len(FIELDS) :])]


def _take(laws: Mapping[str, Law], file: str | None, action: str, name: str) -> list[Any]:
    """The law of an upload, which is deleted: the state, what is said of it, no file, its name, no problem."""
    import gradio as gr

    try:
        if file is None:
            raise ValueError("choose a file first")
        law, said = read_upload(Path(file), action, laws.get(name))
    except (ValueError, OSError) as error:
        return [gr.skip(), gr.skip(), None, gr.skip(), _message(error)]
    finally:
        if file is not None:
            Path(file).unlink(missing_ok=True)
    return [law, said, None, YOURS, ""]


def _told(tool: Callable[..., Any]) -> Callable[..., Any]:
    """As `tool`; callers are told what is wrong with their question, and of other errors nothing."""
    import gradio as gr

    @wraps(tool)
    def asked(*arguments: Any, **named: Any) -> Any:
        try:
            return tool(*arguments, **named)
        except ValueError as error:
            raise gr.Error(str(error), print_exception=False) from None

    return asked


# ------------------------------------------------------------------ serving


class MissingPackagesError(ModuleNotFoundError):
    """Packages of the extra [explorer] are not installed; the message says how to install them."""

    exit_status = 2


def check_packages() -> None:
    """MissingPackagesError unless the page can be made."""
    if missing := [name for name in ("gradio", "plotly") if find_spec(name) is None]:
        message = 'the explorer needs gradio and plotly: pip install "joint-moe-scaling-laws[explorer]"'
        raise MissingPackagesError(message, name=missing[0])


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
    address. `wait`: until interrupted. MissingPackagesError without the extra `[explorer]`.
    """
    check_packages()
    app = page(own)
    _, address, _ = app.launch(**settings(), server_name=host, server_port=port, inbrowser=browser, quiet=True)
    if wait:
        print(f"{address}\nMCP: {address.rstrip('/')}/gradio_api/mcp/  (Ctrl-C ends it)")
        app.block_thread()
    return str(address)


def settings() -> dict[str, Any]:
    """What every way of serving the page has in common."""
    import gradio as gr

    fonts = {"font": FONT.split(", "), "font_mono": ["ui-monospace", "monospace"]}
    return {
        "theme": gr.themes.Base(**fonts).set(
            body_text_color_subdued="*neutral_600",
            body_text_color_subdued_dark="*neutral_300",
            block_info_text_color="*neutral_600",
            block_info_text_color_dark="*neutral_300",
        ),
        "css": CSS,
        "head": _preloads(),
        "mcp_server": True,
        "max_file_size": MAX_BYTES,
        "footer_links": ["api"],
        "share": False,
        "ssr_mode": False,
        "prevent_thread_lock": True,
    }


def _preloads() -> str:
    """Links with which the browser fetches and compiles Plotly, a third of what opening takes, beside the rest.

    Gradio asks for it only when the figure is there; its file has another name in each release.
    """
    import gradio as gr

    assets = Path(gr.__file__).parent / "templates" / "frontend" / "assets"
    return "".join(
        f'<link rel="modulepreload" href="./assets/{file.name}">' for file in assets.glob("PlotlyPlot-*.js")
    )
