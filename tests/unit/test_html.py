"""The html page: one closed file, whose texts are data; and in a browser, where there is one."""

from __future__ import annotations

import base64
import hashlib
import json
import math
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
        number, parent, role, tokens, _, marks, _, _, _, _, prefix, via, source, text = row
        shown = base.run("node", {"node": f"n{number}"})
        assert (prefix, via, source) == (
            shown["prefix_tokens"], shown["via"], shown.get("source", 0)
        )  # fmt: skip
        assert (f"n{parent}", role, tokens, text) == (
            shown["parent"], shown["role"], shown["tokens"], shown["text"]
        )  # fmt: skip
        assert bool(marks & 1) == shown["pinned"]
        assert bool(marks & 2) == shown["excluded"]
        assert bool(marks & 4) == (shown["zone"] == "archive")
    assert len(data["nodes"]) == len(base.store.rows)


EARLY, ASIDE = timeline_export.EARLY, timeline_export.ASIDE


def rows_of(base: timeline.Database, **part: Any) -> list[dict[str, Any]]:
    """The rows of the page from top to bottom: id, parent, marks, lane, run."""
    nodes = json.loads(Parts(page_of(base, **part)).code["script"][0])["nodes"]
    return [
        {"id": row[0], "parent": row[1], "marks": row[5], "lane": row[6], "run": row[7]}
        for row in nodes
    ]


def check_layout(rows: list[dict[str, Any]], main: list[int]) -> None:
    """`main`: the path of the current branch."""
    at = {row["id"]: place for place, row in enumerate(rows)}
    tree = [row for row in rows if not row["marks"] & ASIDE]
    assert [row["id"] for row in tree if row["run"] == 0 and row["id"]] == main
    assert {row["run"] for row in tree if row["lane"] == 0} <= {0}
    ends: dict[int, tuple[int, int, int]] = {}  # run -> lane and the rows that need it
    for row in tree:
        place, above = at[row["id"]], at.get(row["parent"])
        lane, start, end = ends.get(row["run"], (row["lane"], place, place))
        assert lane == row["lane"], "a run changes its lane"
        if row["run"] not in ends and above is not None and row["id"]:
            if row["marks"] & EARLY:
                start = above + 1
            else:
                upper = rows[above]["run"]
                ends[upper] = (*ends[upper][:2], max(ends[upper][2], place - 1))
        ends[row["run"]] = (lane, start, max(end, place))
    taken: dict[tuple[int, int], int] = {}
    for run, (lane, start, end) in ends.items():
        for place in range(start, end + 1):
            assert taken.setdefault((lane, place), run) == run, "two runs in one lane at one row"
    # Depth first: a row hangs on the row above it, or on what that hangs on.
    open_above: list[int] = []
    for row in tree:
        while open_above and open_above[-1] != row["parent"] and row["parent"] in at:
            open_above.pop()
        assert row["parent"] not in at or open_above or not row["id"], "a subtree is torn apart"
        open_above.append(row["id"])


def current_path(base: timeline.Database) -> list[int]:
    now = next(row for row in base.run("branches") if row["current"])
    return [int(each["node"][1:]) for each in base.run("context", {"branch": now["name"]})]


def test_current_branch_keeps_lane_0_and_no_lane_holds_two_branches(tmp_path: Path) -> None:
    base = told(tmp_path)
    base.run("include", {"node": "n4"})  # a context leaves out what is excluded
    rows = rows_of(base)
    check_layout(rows, current_path(base))
    base.run("switch", {"name": "third"})
    check_layout(rows_of(base), current_path(base))
    assert {row["lane"] for row in rows_of(base, branch="third")} == {0, -1}


def test_summaries_are_listed_under_what_they_cover(tmp_path: Path) -> None:
    base = told(tmp_path)
    rows = rows_of(base)
    at = {row["id"]: place for place, row in enumerate(rows)}
    for node in base.run("summaries"):
        number = int(node["node"][1:])
        assert rows[at[number]]["lane"] == -1
        place = at[number] - 1
        while rows[place]["marks"] & ASIDE:
            place -= 1
        assert f"n{rows[place]['id']}" == node["to"]
    # One that a branch goes on from stands in the tree.
    made = base.run("summarize", {"from": "n30", "to": "n40", "summary": "go on"})["node"]
    base.run("fork", {"node": made, "name": "on"})
    row = next(row for row in rows_of(base) if f"n{row['id']}" == made)
    assert row["lane"] > 0 and not row["marks"] & ASIDE


@pytest.mark.parametrize("shape", ["star", "chain", "heads", "random 1", "random 2", "random 3"])
def test_lanes_stay_few_with_500_branches(tmp_path: Path, shape: str) -> None:
    base = timeline.Database(str(tmp_path / "db"), disk=QuickDisk(), clock=lambda: 1_700_000_000)
    base.run("create")
    kind, _, seed = shape.partition(" ")
    chance = random.Random(seed)
    with base.importing() as tx:
        for number in range(40):
            tx.append(0, number, "user", f"{number}", 1, {})
        tx.move(0, "main", 40)
        at = 40
        for branch in range(500):
            fork = {
                "star": 20, "chain": max(20, at - 2), "heads": at, "random": chance.randint(1, at)
            }[kind]  # fmt: skip
            for step in range(chance.randint(1, 6)):
                at = tx.append(0, at if step else fork, "user", "x", 1, {})
            tx.branch(0, f"b{branch}", at)
    rows = rows_of(base)
    check_layout(rows, list(range(1, 41)))
    assert max(row["lane"] for row in rows) <= 1 + 2 * math.log2(len(rows))


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


def shown(browser: Browser, base: timeline.Database, folder: Path, **part: Any) -> None:
    path = folder / "page.html"
    path.write_text(page_of(base, **part), encoding="utf-8", newline="")
    browser.width(1280, 800)
    browser.open(path)


def go(browser: Browser, node: str) -> None:
    """Choose a node as the search box does."""
    browser.run(
        "const q = document.getElementById('query'); q.value = arguments[0];"
        "document.getElementById('next').click(); q.value = ''; q.oninput();"
        "document.getElementById('list').focus()",
        node,
    )
    browser.wait("setTimeout(arguments[0], 200)")


DETAIL = "return document.getElementById('detail').innerText"
HEADING = "return document.querySelector('#detail h2').firstChild.textContent.split(' ')[0]"
TEXT = "return document.querySelector('#detail .text').textContent"

# Texts whose colour stands out too little from what is painted below them.
CONTRAST = """
const pad = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
pad.canvas.width = pad.canvas.height = 1;
const light = (c) => {
  const v = [...c].map((x) => (x /= 255) <= 0.03928 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4);
  return 0.2126 * v[0] + 0.7152 * v[1] + 0.0722 * v[2];
};
const paint = (color) => { pad.fillStyle = color; pad.fillRect(0, 0, 1, 1); };
const seen = () => light(pad.getImageData(0, 0, 1, 1).data.slice(0, 3));
const says = (element) => [...element.childNodes].some((n) => n.nodeType === 3 && n.data.trim());
const found = [];
for (const element of document.querySelectorAll("body *")) {
  const isField = element.matches("input:placeholder-shown");
  if (!element.checkVisibility() || !(says(element) || isField)) continue;
  const under = [];
  for (let each = element; each; each = each.parentElement) under.unshift(each);
  paint("#fff");
  for (const each of under) paint(getComputedStyle(each).backgroundColor);
  const back = seen();
  paint(getComputedStyle(element, isField ? "::placeholder" : null).color);
  const [a, b] = [seen(), back].sort((x, y) => y - x);
  const ratio = (a + 0.05) / (b + 0.05);
  if (ratio < 4.5) found.push([element.tagName, element.className, element.textContent, ratio]);
}
return found;
"""


def test_page_works_in_a_browser(browser: Browser, tmp_path: Path) -> None:
    base = told(tmp_path)
    shown(browser, base, tmp_path)
    run = browser.run
    assert run("return document.title") == timeline_export.one_line(HOSTILE[0])
    assert run("return document.querySelectorAll('img').length") == 0
    # Search, and a click.
    find = "const q = document.getElementById('query'); q.value = arguments[0]; q.oninput();"
    run(find, "what was said")
    browser.wait("setTimeout(arguments[0], 300)")
    assert run("return document.getElementById('hits').textContent") == "1 hit"
    run("document.getElementById('next').click()")
    assert "what was said" in run(TEXT)
    assert run("return document.querySelectorAll('#detail mark').length") == 1
    assert run("return document.querySelectorAll('.row.hit mark').length") == 1
    go(browser, "n5")
    assert run(TEXT) == base.run("node", {"node": "n5"})["text"]
    assert "A fork of 2" in run(DETAIL)
    # Archived parts are folded until they are opened.
    go(browser, "n20")
    assert run("return document.querySelectorAll('.row.fold').length") == 1
    run("document.querySelector('.row.fold').click()")
    assert run("return document.querySelectorAll('.row.fold').length") == 0
    # Two branches side by side.
    run("document.getElementById('compare').click()")
    assert run("return document.querySelectorAll('.sides > div').length") == 2
    run(
        "const s = document.getElementById('right');"
        "s.selectedIndex = [...s.options].findIndex((each) => each.text.startsWith('side'));"
        "s.onchange()"
    )
    assert "They part at n5" in run(DETAIL)
    assert run("return document.activeElement.id") == "right"
    assert run("return document.title") != "owned"
    assert [each for each in browser.log("browser") if each["level"] == "SEVERE"] == []
    asked = [
        message["params"]["request"]["url"]
        for each in browser.log("performance")
        if (message := json.loads(each["message"])["message"])["method"]
        == "Network.requestWillBeSent"
    ]
    assert [url for url in asked if not url.startswith(("file:", "data:", "chrome"))] == []


@pytest.mark.slow
def test_parts_of_a_path_and_next_to_nothing_open_too(browser: Browser, tmp_path: Path) -> None:
    empty = timeline.Database(str(tmp_path / "empty"), disk=QuickDisk())
    empty.run("create", {"title": "empty"})
    shown(browser, empty, tmp_path)
    browser.run("document.getElementById('list').focus()")
    browser.keys("Down", "Up", "Left", "Right", "]", "s", "c", "Escape", "b", "Escape", "Enter")
    base = told(tmp_path)
    for part, first, last in (
        ({"branch": "third"}, "n1", "n72"), ({"first": 10, "last": 40}, "n10", "n40"),
        ({"first": 7, "last": 7}, "n7", "n7"),
    ):  # fmt: skip
        shown(browser, base, tmp_path, **part)
        browser.run("document.getElementById('list').focus()")
        browser.keys("Home")
        assert browser.run(HEADING) == first
        assert "Tokens" in browser.run(DETAIL)
        browser.keys("End")
        assert browser.run(HEADING) == last
        browser.keys("s", "c", "Escape", "b", "Escape", "Left", "Right", "]", "[")
    assert [each for each in browser.log("browser") if each["level"] == "SEVERE"] == []


@pytest.mark.slow
def test_a_summary_is_a_row_of_its_own_and_no_fork(browser: Browser, tmp_path: Path) -> None:
    base = told(tmp_path)
    shown(browser, base, tmp_path)
    made = base.run("summaries")
    go(browser, "n12")
    assert "A fork" not in browser.run(DETAIL)
    rows = browser.run(
        "return [...document.querySelectorAll('.row')]"
        ".sort((a, b) => parseFloat(a.style.top) - parseFloat(b.style.top)).map((e) => e.id)"
    )
    listed = next(each["node"][1:] for each in made if each["to"] == "n12")
    assert rows.index(f"row{listed}") == rows.index("row12") + 1
    # A click on what it covers tells all versions with their state.
    go(browser, "n3")
    over = browser.run(
        "return [...document.querySelectorAll('#detail .link')].map((e) => e.innerText)"
        ".filter((text) => text.includes('n1–'))"
    )
    first, second = (each["node"] for each in made if (each["from"], each["to"]) == ("n1", "n20"))
    assert [line.replace("\n", " ") for line in over] == [
        f"{second} v2 · n1–n20 better in use",
        f"{first} v1 · n1–n20 first superseded by {second}",
    ]


@pytest.mark.slow
def test_many_branches_are_folded_and_listed(browser: Browser, tmp_path: Path) -> None:
    base = timeline.Database(str(tmp_path / "db"), disk=QuickDisk(), clock=lambda: 1_700_000_000)
    base.run("create")
    with base.importing() as tx:
        for number in range(10):
            tx.append(0, number, "user", f"{number}", 1, {})
        tx.move(0, "main", 10)
        for branch in range(500):
            first = tx.append(0, 5, "user", f"branch {branch}", 1, {})
            tx.branch(0, f"b{branch}", tx.append(0, first, "user", f"end {branch}", 1, {}))
    for width in (1280, 390):
        shown(browser, base, tmp_path)
        browser.width(width, 844)
        rows = "return document.querySelector('.row').ariaSetSize"
        assert browser.run(rows) == "510"
        assert "▸ 2 messages: branch " in browser.run("return document.body.innerText")
        # What is looked for is unfolded, and so is what the keys lead to; the rest stays.
        go(browser, "n14")
        assert browser.run(TEXT) == "end 1"
        assert browser.run(rows) == "511"
        browser.keys("]")
        assert browser.run(HEADING) == "n15"
        assert browser.run(rows) == "512"
        browser.keys("b")
        assert "501 branches" in browser.run(DETAIL)
        listed = "return document.querySelectorAll('#detail .pair').length"
        assert browser.run(listed) == 200
        browser.keys(*"b321")
        assert browser.run(listed) == 1
        browser.keys("Tab", "Tab", "Enter")  # where it begins
        assert browser.run(HEADING) == "n5"
        assert "A fork of 501" in browser.run(DETAIL)
        browser.keys("b", *"b321")
        browser.keys("Tab", "Enter")
        assert browser.run(TEXT) == "end 321"
        assert browser.run("return document.documentElement.scrollWidth <= innerWidth")
        browser.keys("Escape")
        start = browser.run(
            "return Math.max(...[...document.querySelectorAll('.row')]"
            ".map((e) => parseFloat(e.style.paddingLeft)))"
        )
        assert start < 120, "texts begin near the lanes"


@pytest.mark.slow
def test_all_that_is_known_of_a_message_is_told(browser: Browser, tmp_path: Path) -> None:
    base = timeline.Database(str(tmp_path / "db"), disk=QuickDisk(), clock=lambda: 1_700_000_000)
    base.run("create")
    source = {"format": "claude-code", "session": "c0ffee", "id": "u-1", "time": "2026-01-02"}
    with base.importing() as tx:
        tx.append(0, 0, "user", "one", 7, source)
        tx.append(0, 1, "assistant", "two", 5, source)
        tx.move(0, "main", 2)
        tx.branch(0, "other", 1)
    base.run("pin", {"node": "n2"})
    shown(browser, base, tmp_path)
    go(browser, "n2")
    facts = browser.run(
        "const all = {}; for (const e of document.querySelectorAll('#detail dt'))"
        " all[e.textContent] = e.nextSibling.innerText; return all"
    )
    assert facts["Tokens"] == "5, 12 up to here"
    assert facts["Via"] == "import"
    assert facts["Source"] == "claude-code\nsession: c0ffee\nid: u-1\ntime: 2026-01-02"
    assert facts["Zone"] == "hot"
    assert facts["Pinned"].startswith("yes")
    assert facts["Excluded"] == "no"
    assert facts["Branch"] == "main"
    assert "2023" in facts["Time"]
    go(browser, "n1")
    names = "return [...document.querySelectorAll('#detail .names button')].map((e) => e.innerText)"
    assert browser.run(names) == ["main", "other"]
    # A time that no calendar reaches is told as the number it is.
    late = tmp_path / "late"
    late.mkdir()
    base = timeline.Database(str(late / "db"), disk=QuickDisk(), clock=lambda: 1 << 50)
    base.run("create")
    base.run("append", {"role": "user", "text": "late"})
    shown(browser, base, late)
    assert str(1 << 50) in browser.run(DETAIL)


CODED = """Words `inline` and

```python
<b>if x:</b>
```
more

    indented

1. point

    not code
~~~
never closed"""


@pytest.mark.slow
def test_code_is_monospace_and_the_text_is_whole(browser: Browser, tmp_path: Path) -> None:
    base = timeline.Database(str(tmp_path / "db"), disk=QuickDisk())
    base.run("create")
    base.run("append", {"role": "assistant", "text": CODED})
    base.run("append", {"role": "tool", "text": "$ ls\na  b"})
    shown(browser, base, tmp_path)
    blocks = "return [...document.querySelectorAll('#detail code.block')].map((e) => e.textContent)"
    assert browser.run(blocks) == ["$ ls\na  b"]
    go(browser, "n1")
    assert browser.run(TEXT) == CODED
    assert browser.run(blocks) == [
        "```python\n<b>if x:</b>\n```\n", "    indented\n\n", "~~~\nnever closed"
    ]  # fmt: skip
    fonts = browser.run(
        "return [...document.querySelectorAll('#detail code')]"
        ".map((e) => getComputedStyle(e).fontFamily.includes('monospace'))"
    )
    assert fonts == [True] * 4


@pytest.mark.parametrize("dark", [pytest.param(False, marks=pytest.mark.slow), True])
def test_texts_are_readable_in_both_themes_and_at_any_width(
    browser: Browser, tmp_path: Path, dark: bool
) -> None:
    media = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
    browser.cdp("Emulation.setEmulatedMedia", media="", features=media)
    shown(browser, told(tmp_path), tmp_path)
    theme = "return document.documentElement.dataset.theme"
    assert browser.run(theme) == ("dark" if dark else "light")
    for node in ("n5", "n20"):
        go(browser, node)
        assert node in browser.run(DETAIL)
        assert browser.run(CONTRAST) == []
    browser.run("const q = document.getElementById('query'); q.value = 'message'; q.oninput()")
    browser.wait("setTimeout(arguments[0], 200)")
    for panel in ("compare", "branches"):
        browser.run("document.getElementById(arguments[0]).click()", panel)
        assert browser.run(CONTRAST) == []
        for width in (390, 768, 961, 1280):
            browser.width(width, 844)
            assert browser.run("return document.documentElement.scrollWidth <= innerWidth")
            assert browser.run(
                "const d = document.getElementById('detail'); return d.scrollWidth <= d.clientWidth"
            )
    # One line where there is room, though the title is long.
    for width in (1280, 1024, 800):
        browser.width(width, 800)
        tops = browser.run(
            "return [...document.querySelectorAll('header button, header input')]"
            ".map((e) => e.getBoundingClientRect().top)"
        )
        assert len(set(tops)) == 1, width
        assert browser.run("return document.querySelector('header').offsetHeight") < 64


@pytest.mark.slow
def test_arrow_keys_follow_the_line_of_the_chosen_message(browser: Browser, tmp_path: Path) -> None:
    base = told(tmp_path)
    shown(browser, base, tmp_path)
    heads = {row["name"]: row["head"] for row in base.run("branches")}
    browser.run("document.getElementById('list').focus()")
    assert browser.run(HEADING) == heads["main"]
    listed = {each["to"]: each["node"] for each in base.run("summaries")}
    third = f"n{int(heads['third'][1:]) - 3}"
    for key, wanted in (
        ("Home", "n1"), ("Down", "n2"), ("Down", "n3"), ("Up", "n2"), ("End", heads["main"]),
        ("Home", "n1"), ("Down", "n2"), ("Down", "n3"), ("Down", "n4"), ("Down", "n5"),
        # Main goes on at the fork; right goes into what begins there, and stays in it.
        ("Down", "n6"), ("Left", "n5"), ("Right", "n61"), ("Down", "n62"), ("End", "n64"),
        ("Down", "n64"), ("Up", "n63"), ("Home", "n1"), ("End", "n64"), ("Up", "n63"),
        ("Up", "n62"), ("Up", "n61"), ("Left", "n5"), ("Down", "n6"),
        ("]", "n61"), ("[", "n6"), ("Down", "n7"), ("]", "n61"), ("[", "n6"),
        ("PageDown", "n18"), ("Down", "n19"), ("Down", "n20"), ("]", "n20"), ("Down", "n21"),
        ("]", "n65"), ("]", third), ("[", "n65"), ("[", "n21"), ("PageUp", "n9"),
        ("s", listed["n12"]), ("Up", "n12"), ("s", listed["n12"]), ("Down", "n13"),
    ):  # fmt: skip
        if (key, wanted) != ("]", "n20"):
            browser.keys(key)
            assert browser.run(HEADING) == wanted, key
    assert browser.run("return document.activeElement.id") == "list"
    active = "return document.getElementById('list').getAttribute('aria-activedescendant')"
    assert browser.run(active) == "row13"
    assert browser.run("return document.getElementById('row13').ariaSelected") == "true"


RING = """
const e = document.activeElement, style = getComputedStyle(e);
return [e.id || e.textContent, e.matches(":focus-visible"), style.outlineStyle,
  parseFloat(style.outlineWidth), style.outlineColor];
"""


def test_every_control_is_reached_and_used_by_keyboard(browser: Browser, tmp_path: Path) -> None:
    shown(browser, told(tmp_path), tmp_path)
    controls = browser.run(
        "return [...document.querySelectorAll('button, input, select, [tabindex=\"0\"]')]"
        ".filter((e) => e.checkVisibility() && !e.disabled).map((e) => [e.tabIndex,"
        " e.id || e.textContent, e.textContent.trim() || e.getAttribute('aria-label')])"
    )
    assert len(controls) > 8
    assert all(index == 0 and name for index, _, name in controls)
    reached = []
    for _ in controls:
        browser.keys("Tab")
        name, visible, style, width, color = browser.run(RING)
        reached.append(name)
        assert visible and style != "none" and width >= 2 and color, name
    assert reached == [name for _, name, _ in controls]

    def press(control: str, key: str) -> None:
        browser.run("document.getElementById(arguments[0]).focus()", control)
        browser.keys(key)

    panel, focus = "return document.querySelector('#detail h2').textContent", RING
    for key in ("Enter", "Space"):
        press("branches", key)
        assert browser.run(panel) == "4 branches"
        assert browser.run(focus)[0] == "filter"
        browser.keys(*"third")
        browser.keys("Tab", key)
        assert "third" in browser.run(panel)
        assert browser.run(focus)[0] == "list"
        browser.keys("Home")
        press("compare", key)
        assert browser.run(panel) == "Two branches"
        assert browser.run(focus)[0] == "left"
        browser.keys("Shift+Tab", key)  # the fork at which they part
        assert browser.run(HEADING) == "n20"
        press("compare", key)
        press("close", key)
        assert browser.run(HEADING) == "n20"
        browser.keys("Home")
        before = browser.run("return document.documentElement.dataset.theme")
        press("theme", key)
        assert browser.run("return document.documentElement.dataset.theme") != before
        press("list", key)
        assert browser.run(focus)[0] == "detail"
        browser.keys("Tab", key)  # the first link of the message
        assert browser.run(HEADING) != "n1"
        browser.keys("Escape")
        press("list", "/")
        browser.keys("Shift+Left", *"first")
        browser.keys("Enter")
        assert "first" in browser.run(TEXT)
        press("next", key)
        press("before", key)
        press("query", "Escape")
        assert browser.run("return document.getElementById('query').value") == ""
        assert browser.run(focus)[0] == "list"
        browser.keys("Home")


@pytest.mark.parametrize("dark", [pytest.param(False, marks=pytest.mark.slow), True])
def test_print_is_black_on_white_and_whole(browser: Browser, tmp_path: Path, dark: bool) -> None:
    base = timeline.Database(str(tmp_path / "db"), disk=QuickDisk())
    base.run("create", {"title": "printed"})
    base.run("append", {"role": "user", "text": "before"})
    code = f"```\n{'wide ' * 200}\n```\n"
    base.run("append", {"role": "assistant", "text": "word " * 5_000 + code + "the end"})
    media = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
    browser.cdp("Emulation.setEmulatedMedia", media="", features=media)
    shown(browser, base, tmp_path)
    browser.cdp("Emulation.setEmulatedMedia", media="print", features=media)
    try:
        browser.wait("setTimeout(arguments[0], 200)")
        texts = "return [...document.querySelectorAll('#paper .text')].map((e) => e.textContent)"
        assert browser.run(texts) == [
            "before", base.run("node", {"node": "n2"})["text"].rstrip("\n")
        ]  # fmt: skip
        assert not browser.run(
            "return [...document.querySelectorAll('header, main')].some((e) => e.checkVisibility())"
        )
        colors = browser.run(
            "return [...document.querySelectorAll('#paper .text, #paper code, #paper h1')]"
            ".map((e) => [getComputedStyle(e).color, getComputedStyle(e).backgroundColor])"
        )
        assert {color for color, _ in colors} == {"rgb(0, 0, 0)"}
        assert {back for _, back in colors} <= {"rgb(255, 255, 255)", "rgba(0, 0, 0, 0)"}
        back = "return getComputedStyle(document.body).backgroundColor"
        assert browser.run(back) == "rgb(255, 255, 255)"
        # Nothing is cut: no box hides what does not fit.
        assert browser.run(
            "return [...document.querySelectorAll('#paper, #paper *')].every((e) =>"
            " e.scrollWidth <= e.clientWidth + 1 || getComputedStyle(e).display === 'inline')"
        )
        assert browser.run(
            "return document.documentElement.scrollHeight"
            " >= document.getElementById('paper').offsetHeight"
        )
        assert browser.run(CONTRAST) == []
    finally:
        browser.cdp("Emulation.setEmulatedMedia", media="", features=[])
    # A printer's pages: they are made of the same, and the screen is as before.
    made = browser.cdp("Page.printToPDF", printBackground=False)
    paper = base64.b64decode(made["data"])
    assert paper.startswith(b"%PDF") and paper.count(b"/Type /Page\n") > 2
    assert browser.run("return document.getElementById('paper').childNodes.length") == 0
