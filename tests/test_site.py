"""The documentation as a site (`make docs`): it has every guide and public name, and asks no other host."""

from __future__ import annotations

import functools
import importlib
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from tests.guides import DOCS, ROOT, text_of

SITE = ROOT / "build" / "site"
PACKAGES = ("hub", "modeling_switch_moe", "scaling_law", "training")
REFERENCE = "\n".join(map(text_of, sorted((DOCS / "reference").glob("*.md"))))


@pytest.fixture(scope="module")
def pages() -> dict[Path, str]:
    """The HTML of every page of a fresh build, which has no warning."""
    pytest.importorskip("zensical")
    build = [sys.executable, "-m", "zensical", "build", "--strict", "--clean"]
    done = subprocess.run(build, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.strip()) == (0, "No issues found")
    return {path: text_of(path) for path in SITE.rglob("*.html") if path.name != "404.html"}


@pytest.mark.parametrize("package", PACKAGES)
def test_the_reference_has_what_a_user_imports(package):
    shown = re.findall(rf"^::: {package}\.(\w+)$", REFERENCE, flags=re.MULTILINE)
    assert sorted(shown) == sorted(importlib.import_module(package).__all__)


def test_every_page_is_in_the_navigation():
    listed = re.findall(r'= "([\w/]+\.md)"', text_of(ROOT / "zensical.toml"))
    assert sorted(listed) == sorted(str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md"))


@pytest.mark.slow
def test_links_and_pictures_of_the_site_lead_somewhere(pages):
    """Zensical does not look at pictures, at files that are no pages, and at the reference."""
    anchors = {page: set(re.findall(r'\bid="?([^">\s]+)', text)) for page, text in pages.items()}
    broken = []
    for page, text in pages.items():
        for link in re.findall(r'\b(?:href|src)="?([^">\s]+)', text):
            url = urlsplit(link)
            there = (page.parent / unquote(url.path)).resolve() if url.path else page
            found = there.is_file() and unquote(url.fragment) in {"", *anchors.get(there, ())}
            if not (url.scheme or url.netloc or found):
                broken.append(f"{page.relative_to(SITE)}: {link}")
    assert broken == []


@pytest.fixture
def address(pages) -> Iterator[str]:
    class Silent(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Silent, directory=SITE))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


# Tables wider than the column of a wide screen, by page: one of many columns.
WIDE_TABLES = {"benchmarks.html"}
CUT_TABLES = """() => [...document.querySelectorAll('.md-typeset__scrollwrap')]
    .filter(table => table.scrollWidth > table.clientWidth).length"""


@pytest.mark.browser
@pytest.mark.parametrize(("scheme", "widths"), [("light", (1400, 800)), ("dark", (390,))])
def test_in_a_browser(pages, address, browser, scheme, widths):
    """No page asks another host, fails in the console or is wider than the window; the search finds a name."""
    hosts, problems, wide, cut_tables = set(), [], [], set()
    page = browser.new_page(color_scheme=scheme)
    page.on("request", lambda request: hosts.add(urlsplit(request.url).hostname))
    page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: problems.append(str(error)))
    for path in pages:
        page.goto(f"{address}/{path.relative_to(SITE)}")
        for width in widths:
            page.set_viewport_size({"width": width, "height": 900})
            if page.evaluate("document.documentElement.scrollWidth") > width:
                wide.append((path.name, width))
            if width == 1400 and page.evaluate(CUT_TABLES):
                cut_tables.add(path.name)
    palette = "slate" if scheme == "dark" else "default"
    assert page.get_attribute("body", "data-md-color-scheme") == palette
    page.keyboard.press("Control+k")
    page.keyboard.type("memory_optimal")
    page.get_by_role("link", name=re.compile("memory_optimal")).locator("visible=true").first.wait_for()
    page.close()
    assert (hosts - {None}, problems, wide) == ({"127.0.0.1"}, [], [])
    assert cut_tables <= WIDE_TABLES
