"""`python -m tools.pages.figures MODEL`: draw the figures of `docs/`, parts of the pages that our own commands write.

It needs Chromium. MODEL: SmolLM2-135M-Instruct, on which it takes some minutes.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

from sinkscope.cli import main
from tools.pages import DOCS

FIGURES = DOCS / "figures"
COMMANDS = {  # what the pages around the figures show as well
    "measure": ("measure", "--samples", "20"),
    "intervene": ("intervene", "--samples", "24", "--corpus", "prose", "--raw-text"),
}
WIDTH = 1100
MAPS = 8  # of the head maps, at most so many


def draw(model: str, folder: Path) -> None:
    """Write the figures, from results under `folder`."""
    for name, (command, *options) in COMMANDS.items():
        if main([command, model, *options, "--out", str(folder / name)]):
            raise SystemExit(f"sinkscope {command} failed")
    with chromium() as browser:
        page = opened(browser, folder / "measure" / "figure.html")
        page.get_by_role("region", name="Sink rate, per position").screenshot(
            path=FIGURES / "sink_rate_per_position.png"
        )
        page.add_style_tag(content=f"#head-maps > :nth-child(n+{MAPS + 1}) {{ display: none }}")
        page.locator("#head-maps").screenshot(path=FIGURES / "head_maps.png")
        page.select_option("#strip-layer", index=page.locator("#strip-layer option").count() - 1)
        page.locator("#strip").screenshot(path=FIGURES / "token_strip.png")
        page = opened(browser, folder / "intervene" / "figure.html")
        page.locator("[data-figure]").first.screenshot(path=FIGURES / "intervention_and_controls.png")


@contextmanager
def chromium() -> Iterator[Any]:
    with sync_playwright() as playwright:
        arguments = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=arguments)
        yield browser
        browser.close()


def opened(browser: Any, path: Path) -> Any:
    context = browser.new_context(color_scheme="light", viewport={"width": WIDTH, "height": 900}, offline=True)
    page = context.new_page()
    page.goto(path.resolve().as_uri())
    page.wait_for_selector("html[data-drawn]", timeout=60_000)
    page.eval_on_selector_all("details.question", "questions => questions.forEach((each) => { each.open = true; })")
    page.wait_for_function("[...document.querySelectorAll('[data-figure]')].every((plot) => plot.querySelector('svg'))")
    return page


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    with tempfile.TemporaryDirectory() as temporary:
        draw(sys.argv[1], Path(temporary))
