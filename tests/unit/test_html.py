"""The html page: one closed file, whose texts are data; and in a browser, where there is one."""

from __future__ import annotations

import base64
import hashlib
import itertools
import json
import random
import re
import tempfile
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

import timeline
import timeline_export
from kit.browser import CHROMIUM, DRIVER, Browser
from kit.disks import QuickDisk

HOSTILE = [
    "</script><img src=x onerror=document.title='owned'>",
    "<!--<script>",
    "]]>&amp;<b>bold</b>",
    "\u2028\u2029\u202e\0\x1b[31m",
    "javascript:alert(1)",
    "${document.title='owned'}",
    "功能🚀 שלום עולם",
    "word " * 400,
]


class Parts(HTMLParser):
    """Elements with their attributes, and the text of those that hold code."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.code: dict[str, list[str]] = {"style": [], "script": []}
        self._inside = ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        self._inside = tag

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside in self.code:
            self.code[self._inside].append(data)


def told(folder: Path, count: int = 60) -> timeline.Database:
    """A conversation with branches, summaries, pins, an archived branch and hostile texts."""
    base = timeline.Database(str(folder / "db"), disk=QuickDisk(), clock=lambda: 1_700_000_000)
    base.run("create", {"title": HOSTILE[0]})
    for number in range(count):
        text = f"message {number} {HOSTILE[number % len(HOSTILE)]}"
        base.run("append", {"role": "user" if number % 2 else "assistant", "text": text})
    for at, name in ((5, "side </script>".replace("/", "|")), (20, "old idea"), (20, "third")):
        base.run("fork", {"node": f"n{at}", "name": name})
        for number in range(4):
            said = {"role": "user", "text": f"{name} {number}", "branch": name}
            base.run("append", said)
    base.run("summarize", {"from": "n2", "to": "n12", "summary": "what was said"})
    made = base.run("summarize", {"from": "n1", "to": "n20", "summary": "first"})["node"]
    base.run("summarize", {"from": "n1", "to": "n20", "summary": "better", "supersede": made})
    head = {row["name"]: row["head"] for row in base.run("branches")}["old idea"]
    own = f"n{int(head[1:]) - 3}"
    base.run("summarize", {"from": own, "to": head, "summary": HOSTILE[0]})
    base.run("archive_branch", {"branch": "old idea", "scope": "own"})
    base.run("pin", {"node": "n3"})
    base.run("exclude", {"node": "n4"})
    return base


def page_of(base: timeline.Database, **part: Any) -> str:
    return "".join(timeline_export.picture(base, 0, "html", **part).pieces)


def test_page_is_closed_and_its_code_is_known_by_hash(tmp_path: Path) -> None:
    page = page_of(told(tmp_path))
    parts = Parts(page)
    policy = next(
        each["content"] or ""
        for tag, each in parts.found
        if each.get("http-equiv") == "Content-Security-Policy"
    )
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == "'none'"
    scripts = [each for tag, each in parts.found if tag == "script"]
    assert [each.get("type") for each in scripts] == ["application/json", None]
    for kind, text in (("style", parts.code["style"][0]), ("script", parts.code["script"][-1])):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert rules[f"{kind}-src"] == f"'sha256-{digest}'"
    assert not [each for _, each in parts.found if {"src", "href", "style", "action"} & set(each)]
    assert not [name for _, each in parts.found for name in each if name.startswith("on")]
    assert not re.search(r"https?:|//[a-z]|url\(|@import|innerHTML|eval\(", page.split("DATA")[0])


def test_texts_are_data_and_come_back(tmp_path: Path) -> None:
    base = told(tmp_path)
    parts = Parts(page_of(base))
    assert not [tag for tag, _ in parts.found if tag in ("img", "b")]
    data = json.loads(parts.code["script"][0])
    assert data["title"] == HOSTILE[0]
    assert not re.search("[<>&\u2028\u2029]", parts.code["script"][0])
    for row in data["nodes"]:
        number, parent, role, tokens, _, marks, _, _, _, _, origin, text = row
        shown = base.run("node", {"node": f"n{number}"})
        assert (f"n{parent}", role, tokens, text) == (
            shown["parent"], shown["role"], shown["tokens"], shown["text"]
        )  # fmt: skip
        assert bool(marks & 1) == shown["pinned"]
        assert bool(marks & 2) == shown["excluded"]
        assert bool(marks & 4) == (shown["zone"] == "archive")
        assert origin == [shown["via"], "", "", "", ""]
    assert len(data["nodes"]) == len(base.store.rows)


def layout_of(page: str) -> tuple[list[int], dict[int, list[Any]], set[int]]:
    """(nodes in the order of rows, each node's row of data, summaries that nothing hangs on)."""
    data = json.loads(Parts(page).code["script"][0])
    return data["order"], {row[0]: row for row in data["nodes"]}, set(data["asides"])


def forked(folder: Path, branches: int) -> timeline.Database:
    """Branches forked from branches, which were written to in turns."""
    base = timeline.Database(str(folder / "db"), disk=QuickDisk())
    base.run("create")
    rng = random.Random(branches)
    names = ["main"]
    for number in range(3 * branches):
        name = rng.choice(names)
        base.run("append", {"role": "user", "text": f"{number}", "branch": name})
        if number % 3 == 2:
            names.append(f"b{number}")
            node = f"n{rng.randrange(1, number + 2)}"
            base.run("fork", {"node": node, "name": names[-1]})
    base.run("summarize", {"from": "n1", "to": "n1", "summary": "first"})
    base.run("switch", {"name": names[len(names) // 2]})
    return base


@pytest.mark.parametrize("branches", [2, 20, 100])
def test_no_two_branches_interleave_and_the_current_one_is_straight(
    tmp_path: Path, branches: int
) -> None:
    base = forked(tmp_path, branches)
    order, rows, asides = layout_of(page_of(base))
    assert sorted(order) == sorted(rows)
    at = {node: place for place, node in enumerate(order)}
    current = [int(each["node"][1:]) for each in base.run("context")]
    assert all(rows[node][6:8] == [0, 0] for node in current), "lane 0, run 0"
    assert len(asides) == 1
    for node in asides:
        assert order[at[node] - 1] == 1, "right under what it covers"
    runs: dict[int, list[int]] = {}
    for node in order:
        if node not in asides:
            runs.setdefault(rows[node][7], []).append(node)
    for run, nodes in runs.items():
        assert all(rows[b][1] == a for a, b in itertools.pairwise(nodes)), "one line"
        assert len({rows[node][6] for node in nodes}) == 1, "in one lane"
        first, last = at[nodes[0]], at[nodes[-1]]
        for other in order[first:last]:  # what stands between hangs on it, further out
            assert rows[other][7] == run or rows[other][6] > rows[nodes[0]][6] or other in asides


# ---- in a browser -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if DRIVER is None or CHROMIUM is None:
        pytest.skip("no chromium with chromedriver on this machine")
    with tempfile.TemporaryDirectory() as folder:
        opened = Browser(folder)
        try:
            yield opened
        finally:
            opened.close()


def shown(browser: Browser, base: timeline.Database, folder: Path) -> None:
    path = folder / "page.html"
    path.write_text(page_of(base), encoding="utf-8", newline="")
    browser.width(1280, 800)
    browser.open(path)


CONTRAST = """
const light = (c) => {
  const v = c.map((x) => (x /= 255) <= 0.03928 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4);
  return 0.2126 * v[0] + 0.7152 * v[1] + 0.0722 * v[2];
};
const parse = (text) => (text.match(/[\\d.]+/g) || []).map(Number);
const says = (element) => [...element.childNodes].some((n) => n.nodeType === 3 && n.data.trim());
const found = [];
for (const element of document.querySelectorAll("body *")) {
  if (!element.checkVisibility() || !says(element)) continue;
  let under = element, back = [];
  while (under) {
    back = parse(getComputedStyle(under).backgroundColor);
    if (back.length === 3 || back[3] > 0.99) break;
    under = under.parentElement;
  }
  const fore = parse(getComputedStyle(element).color);
  const [a, b] = [light(fore.slice(0, 3)), light(back.slice(0, 3))].sort((x, y) => y - x);
  const ratio = (a + 0.05) / (b + 0.05);
  if (ratio < 4.5) found.push([element.tagName, element.className, ratio]);
}
return found;
"""


def test_page_works_in_a_browser(browser: Browser, tmp_path: Path) -> None:
    base = told(tmp_path)
    shown(browser, base, tmp_path)
    run = browser.run
    assert run("return document.title") == timeline_export.one_line(HOSTILE[0]).replace("\\", "\\")
    assert run("return document.querySelectorAll('img').length") == 0
    # Search, and a click.
    find = "const q = document.getElementById('query'); q.value = arguments[0]; q.oninput();"
    run(find, "what was said")
    browser.wait("setTimeout(arguments[0], 300)")
    assert run("return document.getElementById('hits').textContent") == "1 hits"
    run("document.getElementById('next').click()")
    assert "what was said" in run("return document.querySelector('#detail .text').textContent")
    assert run("return document.querySelectorAll('#detail mark').length") == 1
    run(find, "")
    run("document.getElementById('jump').value = '5'; document.getElementById('jump').onchange()")
    text = run("return document.querySelector('#detail .text').textContent")
    assert text == base.run("node", {"node": "n5"})["text"]
    detail = run("return document.getElementById('detail').textContent")
    assert "A fork of 2" in detail
    assert "superseded" in detail
    # Archived parts are folded until they are opened.
    run("document.getElementById('jump').value = '20'; document.getElementById('jump').onchange()")
    run("document.getElementById('list').scrollTop = 20 * 34")
    browser.wait("setTimeout(arguments[0], 200)")
    assert run("return document.querySelectorAll('.row.fold').length") == 1
    run("document.querySelector('.row.fold').click()")
    assert run("return document.querySelectorAll('.row.fold').length") == 0
    # Two branches side by side.
    run("document.getElementById('compare').click()")
    sides = run("return [...document.querySelectorAll('.sides > div')].map((e) => e.textContent)")
    assert len(sides) == 2
    assert "They part at n5" in run("return document.getElementById('detail').textContent")
    assert run("return document.title") != "owned"
    assert [each for each in browser.log("browser") if each["level"] == "SEVERE"] == []
    asked = [
        message["params"]["request"]["url"]
        for each in browser.log("performance")
        if (message := json.loads(each["message"])["message"])["method"]
        == "Network.requestWillBeSent"
    ]
    assert [url for url in asked if not url.startswith(("file:", "data:", "chrome"))] == []


@pytest.mark.parametrize("dark", [False, True])
def test_texts_are_readable_in_both_themes_and_at_any_width(
    browser: Browser, tmp_path: Path, dark: bool
) -> None:
    shown(browser, told(tmp_path), tmp_path)
    theme = "document.documentElement.dataset.theme"
    if dark != (browser.run(f"return {theme}") == "dark"):
        browser.run("document.getElementById('theme').click()")
    assert browser.run(f"return {theme}") == ("dark" if dark else "light")
    for place in ("5", "20"):
        browser.run(
            "const j = document.getElementById('jump'); j.value = arguments[0]; j.onchange()", place
        )
        assert browser.run(CONTRAST) == []
    browser.run("document.getElementById('compare').click()")
    assert browser.run(CONTRAST) == []
    for width in (390, 768, 961, 1280):
        browser.width(width, 844)
        assert browser.run("return document.documentElement.scrollWidth <= innerWidth")


def test_every_control_is_reached_by_keyboard(browser: Browser, tmp_path: Path) -> None:
    shown(browser, told(tmp_path), tmp_path)
    controls = browser.run(
        "return [...document.querySelectorAll('button, input, select, [tabindex=\"0\"]')]"
        ".filter((e) => e.checkVisibility()).map((e) => [e.tabIndex, e.id,"
        " e.textContent.trim() || e.getAttribute('aria-label')])"
    )
    assert len(controls) > 7
    assert all(index == 0 and name for index, _, name in controls)
    press = (
        "document.getElementById(arguments[1]).dispatchEvent("
        "new KeyboardEvent('keydown', {key: arguments[0], bubbles: true}))"
    )
    heading = "return document.querySelector('#detail h2').firstChild.textContent"
    browser.run(press, "Home", "list")
    assert browser.run(heading).startswith("n1 ")
    for key, wanted in (
        ("ArrowDown", "n2"), ("ArrowUp", "n1"), ("ArrowDown", "n2"), ("ArrowDown", "n3"),
        ("ArrowDown", "n4"), ("ArrowDown", "n5"), ("ArrowDown", "n6"), ("]", "n61"),
        ("ArrowDown", "n62"), ("[", "n6"), ("ArrowLeft", "n64"), ("ArrowRight", "n6"),
    ):  # fmt: skip
        browser.run(press, key, "list")
        assert browser.run(heading).split(" ")[0] == wanted, key
    browser.run(press, "/", "list")
    assert browser.run("return document.activeElement.id") == "query"
    browser.run(press, "Escape", "query")
    assert browser.run("return document.activeElement.id") == "list"


def test_tab_reaches_every_control_and_keys_work_them(browser: Browser, tmp_path: Path) -> None:
    shown(browser, told(tmp_path), tmp_path)
    browser.run("document.activeElement.blur()")
    seen: list[str] = []
    ring = (
        "const s = getComputedStyle(document.activeElement); return s.outlineStyle + s.outlineWidth"
    )
    for _ in range(30):
        browser.press("Tab")
        here = browser.run(
            "const e = document.activeElement;"
            "return e === document.body ? '' : e.id || e.textContent"
        )
        if here == "" or here in seen:
            break
        assert browser.run(ring) == "solid2px", here
        seen.append(here)
    wanted = {"query", "before", "next", "jump", "compare", "theme", "list", "Context up to here"}
    assert wanted <= set(seen)
    theme = "return document.documentElement.dataset.theme"
    before = browser.run(theme)
    for key in ("Enter", "Space"):
        browser.run("document.getElementById('theme').focus()")
        browser.press(key)
    assert browser.run(theme) == before, "there and back"
    browser.run("document.getElementById('compare').focus()")
    browser.press("Enter")
    assert browser.run("return document.querySelectorAll('.sides > div').length") == 2
    browser.press("Escape")
    assert browser.run("return document.activeElement.id") == "list"


def test_print_shows_the_whole_path_in_black_on_white(browser: Browser, tmp_path: Path) -> None:
    base = told(tmp_path)
    shown(browser, base, tmp_path)
    browser.run("document.documentElement.dataset.theme = 'dark'")
    browser.cdp("Emulation.setEmulatedMedia", media="print")
    try:
        browser.run("window.dispatchEvent(new Event('beforeprint'))")
        assert browser.run("return getComputedStyle(document.body).backgroundColor") == (
            "rgb(255, 255, 255)"
        )
        assert browser.run(CONTRAST) == []
        printed = browser.run(
            "return [...document.querySelectorAll('#paper .text')].map((e) => e.textContent)"
        )
        assert printed == [
            base.run("node", {"node": f"n{number}"})["text"] for number in range(1, 61)
        ]
        assert browser.run("return document.querySelector('header').checkVisibility()") is False
    finally:
        browser.cdp("Emulation.setEmulatedMedia", media="")


def test_the_head_is_one_line_where_there_is_room(browser: Browser, tmp_path: Path) -> None:
    shown(browser, told(tmp_path), tmp_path)
    height = "return document.querySelector('header').offsetHeight"
    assert browser.run(height) < 70
    browser.width(1024, 768)
    assert browser.run(height) < 70


def test_code_is_in_type_of_one_width_and_metadata_is_shown(
    browser: Browser, tmp_path: Path
) -> None:
    base = timeline.Database(str(tmp_path / "db"), disk=QuickDisk(), clock=lambda: 1_700_000_000)
    base.run("create")
    text = "see\n```js\n<b>x</b> `y`\n```\nand ``` not\n~~~\nopen"
    base.run("append", {"role": "user", "text": text, "tokens": 5})
    base.run("append", {"role": "tool", "text": "log", "tokens": 7})
    shown(browser, base, tmp_path)
    font = "return getComputedStyle(document.querySelector(arguments[0])).fontFamily"
    assert "monospace" in browser.run(font, "#detail .text.tool")
    facts = browser.run("return document.querySelector('#detail dl').textContent")
    assert "7, 12 up to here" in facts
    assert "Branchmain" in facts
    browser.run(
        "document.getElementById('list').dispatchEvent("
        "new KeyboardEvent('keydown', {key: 'ArrowUp', bubbles: true}))"
    )
    assert browser.run("return document.querySelector('#detail .text').textContent") == text
    code = browser.run(
        "return [...document.querySelectorAll('#detail .code')].map((e) => e.textContent)"
    )
    assert code == ["```js\n<b>x</b> `y`\n```\n"]
    assert "monospace" in browser.run(font, "#detail .code")
