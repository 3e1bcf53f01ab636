"""The picture of docs/explorer.md: `python -m tests.scaling_law.explorer.picture FILE`.

It needs playwright and a Chromium on PATH, or CHROMIUM=.
"""

from __future__ import annotations

import sys

from scaling_law import explore
from tests.scaling_law.explorer.chromium import started

WIDTH, HEIGHT = 1400, 1090


def main(path: str) -> None:
    address = explore(browser=False, wait=False)
    with started() as browser:
        page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT}, color_scheme="light")
        page.set_default_timeout(120_000)
        page.goto(address)
        page.wait_for_selector(".js-plotly-plot .main-svg")
        page.wait_for_timeout(1000)  # the figure takes the width of its column
        page.screenshot(path=path)


if __name__ == "__main__":
    main(*sys.argv[1:])
