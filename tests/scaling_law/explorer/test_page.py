"""The page in a real browser (`make test-browser`): what it shows is what Python says, and it asks nobody else."""

from __future__ import annotations

import multiprocessing
import os
import random
import re
import time
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

import numpy as np
import pytest

from scaling_law import Budget, ExtrapolationError
from scaling_law.explorer import app
from scaling_law.explorer.answer import POINTS, answer, best_models
from scaling_law.explorer.programs import LONGEST_LOG
from scaling_law.explorer.question import GPU_NAMES, PRESETS, PUBLISHED, UNITS, VIEWS, Question
from scaling_law.figures.curves import memory_curves
from scaling_law.figures.interactive import DARK
from tests.scaling_law.explorer.test_programs import LOG, RUN

pytestmark = pytest.mark.browser
NEEDED = ["n_active", "tokens", "experts", "loss"]
PATIENCE = 120_000  # milliseconds: of a busy machine
# Of Gradio 6.31's own markup, by axe-core's rule.
GRADIOS: dict[str, str] = {}


@pytest.fixture
def visit(browser, address):
    """Opens the page with a query; at its end nothing was asked of another host, and nothing failed in the console."""
    hosts, problems, contexts = set(), [], []

    def opened(query="", drawn=True, **options):
        context = browser.new_context(**options)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(PATIENCE)
        page.on("request", lambda request: hosts.add(urlsplit(request.url).hostname))
        page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.goto(address + query)
        if drawn:
            page.wait_for_selector(".js-plotly-plot .main-svg")
        return page

    yield opened
    for context in contexts:
        context.close()
    assert hosts - {None} <= {urlsplit(address).hostname}  # none where the test was skipped
    assert problems == []


def sentence(law, question):
    return best_models(question, law).verdict


# What the page shows at one moment: the fields, and all that has to follow from them.
SHOWN = """() => {
    const text = name => document.querySelector(`#${name} :is(input, textarea)`).value;
    const chosen = name => document.querySelector(`#${name} input:checked`).value;
    const plot = document.querySelector('.js-plotly-plot');
    const layout = plot && plot._fullLayout;
    return {
        fields: {unit: chosen('unit'), view: chosen('view'), ...Object.fromEntries(
            ['flops', 'hours', 'gpus', 'gpu', 'memory', 'kv_tokens', 'inference_tokens', 'experts', 'law']
            .map(name => [name, text(name)]))},
        sliders: [...document.querySelectorAll('input[type=range]')].map(slider => Number(slider.value)),
        problem: document.querySelector('[role=alert]')?.innerText ?? '',
        link: location.search.slice(1),
        answer: document.querySelector('.answer')?.innerText.trim(),
        command: document.querySelector('#command .cm-content')?.innerText.trim(),
        table: [...document.querySelectorAll('#table td')].map(cell => cell.innerText.trim()),
        traces: plot && plot.data.map(trace => trace.name),
        axes: layout && [layout.xaxis.title.text, layout.yaxis.range],
        star: plot && plot.data.filter(trace => trace.name === 'question').map(trace => Number(trace.x[0])),
        asking: document.body.classList.contains('asking'),
    }
}"""


def expected(shown, laws):
    """All that the fields of a page have to be shown with; beside what they cannot ask stays the link's answer."""
    asked, problem = Question(**shown["fields"]), ""
    at = app._slider_positions(asked)
    sliders = [round(at.get(name, was), 2) for name, was in zip(app.SLIDERS, shown["sliders"], strict=True)]
    try:
        found = answer(asked, laws[asked.law])
    except ValueError as error:
        # The page cannot force an answer, so it leaves that advice out.
        problem = error.reason if isinstance(error, ExtrapolationError) else str(error)
        asked = Question.of(dict(parse_qsl(shown["link"], keep_blank_values=True)))
        found = answer(asked, laws[asked.law])
    layout = found.figure.layout
    return {
        "sliders": sliders,
        "problem": problem,
        "link": asked.query(),
        "answer": found.headline.replace("**", ""),
        "command": found.command,
        "table": re.findall(r"<td.*?>(.*?)</td>", found.table),
        "traces": [trace.name for trace in found.figure.data],
        "axes": [layout.xaxis.title.text, layout.yaxis.range and list(layout.yaxis.range)],
        "star": [trace.x[0] for trace in found.figure.data if trace.name == "question"],
        "asking": False,
    }


def differences(shown, wanted):
    """The names of the parts that differ; a range of the axis that Plotly chose is not compared."""
    if wanted["axes"][1] is None:
        wanted = wanted | {"axes": [wanted["axes"][0], shown["axes"] and shown["axes"][1]]}
    return [name for name, value in wanted.items() if shown[name] != value]


def settled(page, laws, patience=120.0):
    """Wait for what the page shows once it agrees with its fields, and a second later still does."""
    end, agreed = time.monotonic() + patience, 0
    while True:
        shown = page.evaluate(SHOWN)
        shown["star"] = [float(x) for x in shown["star"] or ()]  # which arrive as integers
        wanted = expected(shown, laws)
        agreed = 0 if (wrong := differences(shown, wanted)) else agreed + 1
        if agreed == 3:
            return shown
        if time.monotonic() > end:
            pytest.fail("\n".join(f"{name}: {shown[name]}, expected {wanted[name]}" for name in wrong))
        page.wait_for_timeout(500)


@contextmanager
def load(monkeypatch, chance):
    """A busy process, and answers that take up to 0.8 s longer than they need."""

    def slow(*arguments):
        time.sleep(chance.uniform(0.0, 0.8))
        return answer(*arguments)

    monkeypatch.setattr(app, "answer", slow)
    busy = multiprocessing.get_context("spawn").Process(target=_spin, daemon=True)
    busy.start()
    try:
        yield
    finally:
        busy.terminate()


def _spin():
    while True:
        pass


TEXTS = {
    "flops": ("1e20", "3e21", "1e22", "1e23", "much"),
    "hours": ("24", "168", "700"),
    "gpus": ("1", "8", "64"),
    "memory": ("10GB", "24GB", "80GB", "640GB", "", "a lot"),
    "kv_tokens": ("8k", "16k", ""),
    "inference_tokens": ("", "1T"),
    "experts": ("", "1,8", "1,2,4-8"),
}


def choose(page, name, value):
    """Choose from a list that drops down."""
    page.locator(f"#{name} input").click()
    page.locator("ul[role=listbox] li", has_text=re.compile(f"^\\W*{re.escape(value)}$")).first.click()


def change(page, chance):
    """One change at random, of what a visitor sees; without waiting for anything."""
    kind = chance.choice(["text", "text", "text", "slider", "unit", "view", "law", "gpu", "preset"])
    if kind == "text":
        name = chance.choice([name for name in TEXTS if field_of(page, name).is_visible()])
        field = field_of(page, name)
        field.fill(chance.choice(TEXTS[name]))
        field.press(chance.choice(["Enter", "Tab"]))
    elif kind == "slider":
        slider = chance.choice([s for s in page.locator("input[type=range]").all() if s.is_visible()])
        slider.focus()
        for _ in range(chance.randint(1, 4)):
            page.keyboard.press(chance.choice(["ArrowRight", "ArrowLeft"]))
    elif kind in ("unit", "view"):
        chance.choice(page.locator(f"#{kind} label").all()).click()
    elif kind == "gpu" and page.locator("#gpu").is_visible():
        choose(page, "gpu", chance.choice(GPU_NAMES))
    elif kind == "law":
        choose(page, "law", chance.choice([PUBLISHED, "abnar", "chinchilla"]))
    elif kind == "preset":
        page.locator("#introduction").get_by_role("link", name=chance.choice(list(PRESETS))).click()


@pytest.mark.timeout(1800)
def test_whatever_is_typed_and_clicked_the_page_agrees_with_its_fields(visit, monkeypatch, capsys):
    """A few changes at random, at random speed, under load; BURSTS times."""
    seed, bursts = int(os.environ.get("SEED", "1")), int(os.environ.get("BURSTS", "50"))
    chance, laws, page = random.Random(seed), app.offer_laws(), visit()
    changes, begun = 0, time.monotonic()
    with load(monkeypatch, random.Random(seed)):
        for _ in range(bursts):
            for _ in range(chance.randint(1, 4)):
                change(page, chance)
                page.wait_for_timeout(chance.choice([0, 0, 50, 300]))
                changes += 1
            settled(page, laws)
    with capsys.disabled():
        print(f"\nexplorer: {changes} changes in {bursts} bursts, {time.monotonic() - begun:.0f} s")


def field_of(page, name):
    return page.locator(f"#{name} :is(input, textarea)")


def wait_for_sentence(page, text):
    page.wait_for_function("text => document.querySelector('.answer')?.innerText.includes(text)", arg=text)


def drawn(page, name):
    """The largest y of the traces of this name, [points]: solid and dashed part of a curve together."""
    ys = page.evaluate(
        """name => document.querySelector('.js-plotly-plot')._fullData
             .filter(trace => trace.name === name && trace.mode === 'lines' && !trace.showlegend)
             .map(trace => Array.from(trace.y, y => Number.isFinite(y) ? y : -1))""",
        name,
    )
    return np.max(np.array(ys, float), axis=0)


def test_the_page_opens_with_the_answer_of_python(visit, published):
    page = visit()
    wait_for_sentence(page, sentence(published, Question()))  # Gradio may show its queue there for a moment
    assert page.inner_text("#table table").count("best") == 1
    sizes = {"kv_tokens": 16_384, "bytes_per_parameter": 2.0, "bytes_per_kv": 2.0}
    law = published.replace(draws=None)
    for curve in memory_curves(law, Budget(1e22), **sizes, points=POINTS, prefers_trusted=True).curves:
        name = "dense" if curve.experts == 1 else f"E = {curve.experts:g}"
        np.testing.assert_allclose(drawn(page, name), curve.loss, rtol=1e-6)


def test_a_link_restores_the_state(visit, published):
    question = Question(flops="1e21", memory="24GB", kv_tokens="8k", experts="1,8", view="tokens")
    page = visit(f"?{question.query()}")
    wait_for_sentence(page, sentence(published, question))
    assert field_of(page, "memory").input_value() == "24GB"
    assert page.get_by_label("Loss against tokens").is_checked()
    names = page.evaluate("() => document.querySelector('.js-plotly-plot').data.map(trace => trace.name)")
    assert {"dense", "E = 8"} == {name for name in names if name[:3] in ("den", "E =")}
    page.get_by_label("Best E over budget × memory").check()
    page.wait_for_url(re.compile("view=map"))
    page.wait_for_function("() => document.querySelector('.js-plotly-plot')?.data.some(t => t.name === 'models')")


CONTROLS = ":is(input, textarea):visible"
# Among a few radio buttons Tab reaches the one that is chosen.
MISSED = f"{CONTROLS}:not([type=radio]):not([data-reached])"
NOTE_REACHED = "() => document.addEventListener('focusin', event => { event.target.dataset.reached = ''; })"


def texts_of(page):
    """Every control's text, and whether it is chosen."""
    return page.locator(CONTROLS).evaluate_all("controls => controls.map(control => [control.value, control.checked])")


def check_untouched(page, texts):
    page.wait_for_timeout(300)
    assert page.locator(".error:visible, [role=alert]:visible").all_inner_texts() == []
    assert texts_of(page) == texts


@pytest.mark.parametrize("unit", UNITS)
def test_a_walk_through_every_control_without_a_choice_changes_nothing(visit, unit):
    """Go by Tab, then by click; lists that drop down are also left with a text that names none of their entries."""
    page = visit(f"?unit={unit}")
    page.wait_for_timeout(1000)
    texts = texts_of(page)
    page.evaluate(NOTE_REACHED)
    page.locator("#introduction a").last.focus()
    steps = 0
    while page.locator(MISSED).count() and steps < 100:
        page.keyboard.press("Tab")
        check_untouched(page, texts)
        steps += 1
    assert page.locator(MISSED).count() == 0

    heading = page.locator("h1").first
    for control in page.locator(CONTROLS).all():
        kind, is_list = control.get_attribute("type"), control.get_attribute("role") == "combobox"
        if kind in ("radio", "range"):  # where a click chooses
            continue
        for typed in ("", "zz") if is_list else ("",):
            control.click()
            page.keyboard.type(typed)
            heading.click()
            check_untouched(page, texts)


def test_a_slider_and_its_text_agree_and_its_right_end_is_no_limit(visit, published):
    page = visit()
    slider = page.locator("input[type=range]:visible").nth(1)
    assert float(slider.input_value()) == pytest.approx(10.9)
    slider.focus()
    page.keyboard.press("End")
    wait_for_sentence(page, sentence(published, Question(memory="")))
    assert field_of(page, "memory").input_value() == ""


def test_a_field_that_cannot_be_read_is_marked(visit):
    page = visit()
    frame = "field => getComputedStyle(field).boxShadow.includes('rgb(213, 94, 0)')"
    field = field_of(page, "memory")
    assert not field.evaluate(frame)
    field.fill("a lot")
    field.press("Tab")
    page.wait_for_selector("[role=alert]")
    assert field.evaluate(frame)
    assert not field_of(page, "kv_tokens").evaluate(frame)


def test_the_address_is_a_link_to_what_the_page_shows(visit):
    page = visit()
    page.wait_for_url(re.compile("memory=80GB"))
    assert Question.of(dict(parse_qsl(urlsplit(page.url).query))) == Question()
    clips = "parts => parts.map(part => part.getAttribute('clip-path'))"
    found = page.locator(".js-plotly-plot [clip-path]").evaluate_all(clips)
    assert found
    assert all(clip.startswith("url(#") for clip in found)  # else the curves leave their figure with the address


def test_a_link_without_an_answer_shows_none(visit):
    page = visit("?flops=1e22&memory=1MB", color_scheme="dark", drawn=False)
    page.wait_for_selector("#problem .unanswered")
    assert page.locator(":is(.result, .plan):visible").count() == 0
    field_of(page, "memory").fill("80GB")
    field_of(page, "memory").press("Tab")
    page.wait_for_selector("#table table")
    page.wait_for_selector(".js-plotly-plot .main-svg")
    assert page.evaluate("() => document.querySelector('.js-plotly-plot').layout.paper_bgcolor") == DARK.paper


def test_a_link_of_something_else_says_so(visit):
    page = visit("?view=<script>alert(1)</script>")
    page.wait_for_selector("[role=alert]")
    assert "view='<script>alert(1)</script>' is unknown" in page.inner_text("[role=alert]")


# Each thing that a reader could not read, and each field without a name.
UNREADABLE = """() => {
    const page = document.documentElement, found = [];
    if (page.scrollWidth > page.clientWidth) found.push(`the page is ${page.scrollWidth} wide`);
    const isShown = part => part.checkVisibility({visibilityProperty: true, opacityProperty: true});
    const name = part => part.closest('[id]').id + ': ' + (part.value ?? part.innerText);
    for (const field of [...document.querySelectorAll('input, textarea')].filter(isShown)) {
        if (!field.labels.length && !field.ariaLabel) found.push('no label ' + name(field));
        const isText = !['range', 'radio', 'checkbox'].includes(field.type);
        if (isText && field.scrollWidth > field.clientWidth + 1) found.push('cut off ' + name(field));
    }
    const cuts = part => getComputedStyle(part).overflowX !== 'visible' && part.scrollWidth > part.clientWidth + 1;
    for (const part of [...document.querySelectorAll('.gradio-container *')].filter(isShown)) {
        const hasText = [...part.childNodes].some(node => node.nodeType === 3 && node.data.trim());
        if (hasText && part.clientWidth > 1 && cuts(part)) found.push('cut off ' + name(part));
    }
    const plot = document.querySelector('.js-plotly-plot'), frame = plot?.getBoundingClientRect();
    const texts = [...plot?.querySelectorAll('text') ?? []]
        .map(text => [text.textContent, text.getBoundingClientRect()])
        .filter(([text, box]) => text.trim() && box.width > 0);
    texts.forEach(([text, box], i) => {
        if (box.left < frame.left || box.right > frame.right || box.top < frame.top || box.bottom > frame.bottom)
            found.push('outside of the figure: ' + text);
        for (const [other, at] of texts.slice(i + 1)) {
            const width = Math.min(box.right, at.right) - Math.max(box.left, at.left);
            const height = Math.min(box.bottom, at.bottom) - Math.max(box.top, at.top);
            if (width > 2 && height > 3) found.push(`over each other: ${text}, ${other}`);
        }
    });
    return found;
}"""
# Questions, and the figures that are looked at; the form and the table are the same beside each.
ALL_FIELDS = Question(
    flops="1e24",
    memory="640GB",
    kv_tokens="1M",
    inference_tokens="10T",
    experts="1,2,4,8,16,32,64",
    sequence_length="4k",
    batch="0:1024,100B:2048",
    accuracy="arc_easy, hellaswag",
)
STATES = {
    "all fields": (ALL_FIELDS, [*VIEWS]),
    "a budget of hours": (Question(UNITS[1], memory="24GB", kv_tokens="8k"), ["memory"]),
}


@pytest.mark.parametrize("state", STATES)
def test_everything_can_be_read_at_every_width(visit, state):
    question, views = STATES[state]
    page = visit(f"?{question.query()}")
    unreadable = {}
    for view in views:
        page.get_by_label(VIEWS[view]).check()
        page.wait_for_url(re.compile(f"view={view}"))
        page.wait_for_function("() => !document.body.classList.contains('asking')")
        for width in (1400, 800, 390):
            page.set_viewport_size({"width": width, "height": 900})
            page.wait_for_timeout(500)
            if found := page.evaluate(UNREADABLE):
                unreadable[view, width] = found
            if folder := os.environ.get("SCREENSHOTS"):
                page.screenshot(path=Path(folder) / f"{state} {view} {width}.png", full_page=True)
    assert unreadable == {}


def test_the_learning_rate_is_in_sight_and_the_answer_near_the_top_of_a_phone(visit):
    in_sight = """() => {
        const table = document.querySelector('#table [role=region]').getBoundingClientRect();
        const header = [...document.querySelectorAll('#table th')].find(cell => cell.innerText === 'peak LR');
        return header.getBoundingClientRect().right <= table.right + 1;
    }"""
    assert visit(viewport={"width": 1400, "height": 900}).evaluate(in_sight)
    page = visit(viewport={"width": 390, "height": 844})
    assert page.evaluate("() => document.querySelector('.answer').getBoundingClientRect().top") < 844


def test_a_printed_figure_is_as_wide_as_its_sheet(visit):
    page = visit(viewport={"width": 1400, "height": 900})
    page.evaluate("() => dispatchEvent(new Event('beforeprint'))")
    page.emulate_media(media="print")
    widths = page.evaluate("""() => ['.js-plotly-plot', '.js-plotly-plot .main-svg'].map(
        part => document.querySelector(part).getBoundingClientRect().width)""")
    sheet, figure = widths
    assert figure == pytest.approx(sheet, abs=2)
    assert sheet > 1200  # the form is not printed


# The fields of each page about a run, its button, and what answers.
RUN_PAGES = {
    "live": ({"log": LOG, **RUN}, "Forecast a run", "final loss"),
    "diagnose": (
        {"model": "qwen3-30b-a3b", "gpu": "h100", "gpus": "64", "layout": "ep=8", "tokens_per_second": "900K"},
        "Diagnose a run",
        "normal: ",
    ),
}


@pytest.mark.parametrize("name", RUN_PAGES)
def test_a_page_about_a_run_answers_by_keyboard_and_can_be_read(visit, name):
    values, button, verdict = RUN_PAGES[name]
    page = visit(name, drawn=False, viewport={"width": 390, "height": 844})
    page.wait_for_selector("#law")
    first, *others = values
    for field in others:
        field_of(page, field).fill(values[field])
    page.get_by_role("button", name=button).press("Enter")
    page.wait_for_selector(f"#problem [data-field={first}]")
    assert "is needed" in page.inner_text("[role=alert]")
    assert page.locator(".result:visible").count() == 0
    if name == "live":
        log = {"name": "any.csv", "mimeType": "text/csv", "buffer": values[first].encode()}
        page.set_input_files("#log_file", log)
    else:
        field_of(page, first).fill(values[first])
    # The field after it is reached by Tab, and Enter in it asks.
    field_of(page, first).focus()
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    page.wait_for_selector("#table table")
    assert verdict in page.inner_text(".answer [role=status]")
    page.wait_for_timeout(500)
    box = page.locator(".answer [role=status]").bounding_box()
    assert 0 <= box["y"] < 844 - box["height"]
    for width in (390, 800, 1400):
        page.set_viewport_size({"width": width, "height": 844})
        assert page.evaluate(UNREADABLE) == []


def test_no_more_of_a_file_is_read_than_a_log_may_have(visit):
    page = visit("live", drawn=False)
    page.wait_for_selector("#log_file")
    large = b"step,loss\n" + b"1,2\n" * LONGEST_LOG
    page.set_input_files("#log_file", {"name": "log.csv", "mimeType": "text/csv", "buffer": large})
    page.wait_for_function("n => document.querySelector('#log textarea').value.length === n", arg=LONGEST_LOG + 1)
    page.get_by_role("button", name="Forecast a run").click()
    page.wait_for_selector("#problem [data-field=log]")
    assert "at most 2,000,000 are read" in page.inner_text("[role=alert]")


@pytest.mark.parametrize("path", ["", *RUN_PAGES])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_accessibility(visit, scheme, path):
    axe = Path(os.environ.get("AXE", "build/axe/package/axe.min.js"))
    if not axe.is_file():
        pytest.skip(f"no axe-core at {axe}: `make test-browser` fetches it with npm")
    page = visit(path, drawn=not path, color_scheme=scheme)
    page.wait_for_selector("#law")
    page.evaluate(axe.read_text(encoding="utf-8"))
    found = page.evaluate("() => axe.run()")["violations"]
    serious = {
        rule["id"]: [node["html"][:160] for node in rule["nodes"]]
        for rule in found
        if rule["impact"] in ("serious", "critical") and rule["id"] not in GRADIOS
    }
    assert serious == {}
