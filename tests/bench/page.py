"""How soon the html picture is there, and how smoothly it scrolls, in headless Chromium.

    python tests/bench/page.py

Pages of 10, 1,000 and 10,000 messages: milliseconds to the first paint and to the end of loading,
and the median and the longest of 120 frames while 900 pixels are scrolled in each.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import kit
from kit import timeline

# The module `kit` of this folder hides the package of the tests, whose browser is wanted too.
sys.path.append(str(Path(__file__).resolve().parents[1] / "kit"))

SCROLL = """
const done = arguments[0], list = document.getElementById("list"), times = [];
let last = performance.now(), n = 0;
list.scrollTop = 0;
const tick = (now) => {
  times.push(now - last);
  last = now;
  list.scrollTop += 900;
  if (++n < 120) requestAnimationFrame(tick); else done(times.sort((a, b) => a - b));
};
requestAnimationFrame(tick);
"""
PAINT = """
return [Math.max(...performance.getEntriesByType("paint").map((e) => e.startTime)),
  performance.timing.loadEventEnd - performance.timing.navigationStart];
"""


def page(folder: Path, count: int) -> Path:
    import timeline_export

    texts = kit.pool()
    base = timeline.Database(str(folder / f"{count}.db"))
    base.run("create")
    with base.importing() as tx:
        for number in range(count):
            text = kit.text_of(texts, number)
            tx.append(0, number if number % 50 else max(0, number - 40), "user", text, 9, {})
        tx.move(0, "main", count)
    path = folder / f"{count}.html"
    pieces = timeline_export.picture(base, 0, "html").pieces
    path.write_text("".join(pieces), encoding="utf-8", newline="")
    return path


def main() -> None:
    kit.machine()
    import browser  # type: ignore[import-not-found]

    rows = []
    with tempfile.TemporaryDirectory() as folder:
        chromium = browser.Browser(folder + "/profile")
        try:
            for count in (10, 1_000, 10_000):
                chromium.open(page(Path(folder), count))
                chromium.wait("const done = arguments[0]; setTimeout(done, 500)")  # painted by then
                paint, loaded = chromium.run(PAINT)
                frames = chromium.wait(SCROLL)
                rows.append((f"{count:,}", paint, loaded, frames[60], frames[-1]))
        finally:
            chromium.close()
    kit.table("html, ms", ("messages", "paint", "loaded", "frame", "longest"), rows)


if __name__ == "__main__":
    main()
