"""Diagrams, charts and transcripts: their form, their texts, and the files they go to."""

from __future__ import annotations

import json
import os
import random
import re
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest

import timeline
import timeline_cli
import timeline_export
from kit.disks import QuickDisk

HOSTILE = [
    "",
    "]]>",
    "\0",
    "\ufffe\uffff",
    "a\"b'c",
    "</script><img src=x onerror=alert(1)>",
    "&amp;&#10;\r\n\ttab",
    "\u2028\u2029\u202e gnp",
    "\x1b[31mred\x1b[0m",
    "```\nfence\n````\nmore",
    "功能🚀 שלום",
    "\\ud800",
    "#35; %% end --> n1; subgraph",
]


def database(folder: Path) -> timeline.Database:
    made = timeline.Database(str(folder / "db"), disk=QuickDisk(), clock=lambda: 1_700_000_000)
    made.run("create")
    return made


def grown(folder: Path, seed: int, size: int = 60) -> timeline.Database:
    """A random tree with summaries, placeholders, pins, archived branches and hostile texts."""
    rng = random.Random(seed)
    base = database(folder)
    branches, nodes = ["main"], ["n0"]
    for number in range(size):
        if rng.random() < 0.3:
            name = f"b{number} {rng.choice(HOSTILE[4:6])}".replace("/", "").strip()
            base.run("fork", {"node": rng.choice(nodes), "name": name})
            branches.append(name)
        text = f"{number} {rng.choice(HOSTILE)}"
        branch = rng.choice(branches)
        node = base.run("append", {"role": "user", "text": text, "branch": branch})["node"]
        nodes.append(node)
        if rng.random() < 0.2:
            path = [each["node"] for each in base.run("context", {"node": node})]
            interval = {"from": rng.choice(path), "to": node, "summary": rng.choice(HOSTILE)}
            made = base.run("summarize", interval)["node"]
            if rng.random() < 0.5:
                base.run("summarize", {**interval, "summary": "better", "supersede": made})
        if rng.random() < 0.1:
            base.run("pin", {"node": node})
    try:
        base.run("budget", {"max_tokens": 200})
    except timeline.BudgetInfeasible:
        pass
    return base


def written(base: timeline.Database, format: str, **part: Any) -> str:
    return "".join(timeline_export.picture(base, 0, format, **part).pieces)


# ---- drawio -------------------------------------------------------------------------------------


def check_drawio(base: timeline.Database, text: str, wanted: set[str]) -> None:
    """Well-formed; ids unique; edges have both ends; no boxes overlap; texts come back."""
    root = ElementTree.fromstring(text)
    boxes = {each.get("id", ""): each for each in root.iter("object")}
    cells = [each for each in root.iter("mxCell") if each.get("id") is not None]
    ids = [*boxes, *(each.get("id") for each in cells)]
    assert len(ids) == len(set(ids))
    assert set(boxes) - {"n0"} == wanted
    layers = {each.get("id"): each for each in cells if each.get("parent") == "0"}
    assert list(layers) == ["tree", "coverage", "versions", "dependencies"]
    assert [each.get("visible") for each in layers.values()] == [None, "0", "0", "0"]
    assert all(each.get("value") for each in layers.values())
    for edge in (each for each in cells if each.get("edge")):
        assert edge.get("source") in boxes
        assert edge.get("target") in boxes
        assert edge.get("parent") in layers
    spots = set()
    for node, box in boxes.items():
        geometry = next(box.iter("mxGeometry"))
        x, y, width, height = (float(geometry.get(name, "")) for name in
                               ("x", "y", "width", "height"))  # fmt: skip
        assert (width, height) == (timeline_export.BOX_WIDTH, timeline_export.BOX_HEIGHT)
        assert width < timeline_export.COLUMN_WIDTH
        assert height < timeline_export.LANE_HEIGHT
        assert x % timeline_export.COLUMN_WIDTH == y % timeline_export.LANE_HEIGHT == 0
        assert (x, y) not in spots
        spots.add((x, y))
        if node == "n0":
            continue
        shown = base.run("node", {"node": node})
        assert json.loads(box.get("text_json", "")) == shown["text"]
        assert box.get("role") == shown["role"]
        assert box.get("tokens") == str(shown["tokens"])
        assert box.get("zone") == shown["zone"]
        assert len(box.get("branches", "").split(", ")) >= len(shown["branches"])
        assert bool(box.get("branches")) == bool(shown["branches"])


@pytest.mark.parametrize("seed", range(6))
def test_drawio_holds_every_node_once_and_gives_the_texts_back(tmp_path: Path, seed: int) -> None:
    base = grown(tmp_path, seed)
    nodes = {f"n{node}" for node in range(1, len(base.store.rows) + 1)}
    check_drawio(base, written(base, "drawio"), nodes)
    for branch in base.run("branches"):
        path = written(base, "drawio", branch=branch["name"])
        held = {each["node"] for each in base.run("context", {"branch": branch["name"]})}
        found = set(re.findall(r'<object id="(n\d+)"', path)) - {"n0"}
        assert held <= found
        check_drawio(base, path, found)


def test_drawio_siblings_keep_their_order(tmp_path: Path) -> None:
    base = database(tmp_path)
    base.run("append", {"role": "user", "text": "top"})
    for number in range(5):
        base.run("fork", {"node": "n1", "name": f"b{number}"})
        base.run("append", {"role": "user", "text": "x", "branch": f"b{number}"})
    root = ElementTree.fromstring(written(base, "drawio"))
    lanes = [
        float(next(box.iter("mxGeometry")).get("y", ""))
        for box in root.iter("object")
        if box.get("id") in ("n2", "n3", "n4", "n5", "n6")
    ]
    assert lanes == sorted(set(lanes))


def test_drawio_names_many_branches_by_their_number(tmp_path: Path) -> None:
    base = database(tmp_path)
    base.run("append", {"role": "user", "text": "top"})
    for number in range(timeline_export.BRANCHES_MAX + 10):
        base.run("fork", {"node": "n1", "name": f"b{number}"})
    assert ", +11&quot;" not in written(base, "drawio")
    assert ', b48, +11"' in written(base, "drawio")


# ---- mermaid ------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
def test_mermaid_labels_hold_nothing_the_language_knows(tmp_path: Path, seed: int) -> None:
    base = grown(tmp_path, seed)
    lines = written(base, "mermaid").splitlines()
    assert lines[0] == "flowchart LR"
    drawn = {}
    for line in lines[1:]:
        if "-->" in line or "-.->" in line:
            assert re.fullmatch(r"  n\d+ (-->|-\.->) n\d+", line)
            continue
        if line.startswith("  classDef "):
            continue
        found = re.fullmatch(r'  (n\d+)\["([^"]*)"\](:::[a-z]+)?', line)
        assert found, line
        drawn[found[1]] = found[2]
        label = found[2].replace("<br/>", "")
        assert not re.search(r"[<>`{}|\\%]|#(?!\d+;)", label), line
    for line in lines:
        if "-->" in line or "-.->" in line:
            assert set(re.findall(r"n\d+", line)) <= set(drawn)


def test_mermaid_refuses_more_than_renderers_take(tmp_path: Path) -> None:
    base = database(tmp_path)
    for number in range(timeline_export.MERMAID_NODES_MAX):
        base.run("append", {"role": "user", "text": str(number)})
    assert written(base, "mermaid").count(" --> ") == timeline_export.MERMAID_NODES_MAX
    base.run("append", {"role": "user", "text": "one more"})
    with pytest.raises(timeline.Refused, match="--from and --to") as caught:
        written(base, "mermaid")
    assert caught.value.data == {"nodes": 501, "max": 500}
    assert " --> " in written(base, "mermaid", first=2, last=501)


# ---- markdown -----------------------------------------------------------------------------------


def test_markdown_fences_hold_whatever_is_in_them(tmp_path: Path) -> None:
    base = database(tmp_path)
    for text in HOSTILE:
        base.run("append", {"role": "user", "text": text})
    base.run("summarize", {"from": "n1", "to": "n2", "summary": "# no heading\n<b>in short"})
    lines = written(base, "markdown").split("\n")
    texts, fence = [], ""
    for line in lines:
        if fence and line == fence:
            fence = ""
        elif fence:
            texts[-1].append(line)
        elif re.fullmatch("`{3,}text", line):
            fence = line.removesuffix("text")
            texts.append([])
    assert not fence
    assert len(texts) == len(HOSTILE)
    for text, found in zip(HOSTILE, texts, strict=True):
        shown = "\n".join(found)
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f]", shown)
        if text.isprintable():
            assert shown == text
    assert "> \\# no heading" in lines
    assert "> \\<b\\>in short" in lines


def test_markdown_is_of_the_current_branch(tmp_path: Path) -> None:
    base = database(tmp_path)
    base.run("append", {"role": "user", "text": "first"})
    base.run("fork", {"node": "n1", "name": "other"})
    base.run("append", {"role": "user", "text": "on main"})
    base.run("append", {"role": "user", "text": "elsewhere", "branch": "other"})
    assert "on main" in written(base, "markdown")
    assert "elsewhere" not in written(base, "markdown")
    base.run("switch", {"name": "other"})
    assert "on main" not in written(base, "markdown")
    assert "on main" in written(base, "markdown", branch="main")


# ---- width and folds ----------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("width", [40, 60, 100])
def test_lines_keep_within_their_width_unless_marks_are_wider(
    tmp_path: Path, seed: int, width: int
) -> None:
    base = grown(tmp_path, seed)
    free = timeline_export.ascii_tree(base, 0)
    for line, whole in zip(timeline_export.ascii_tree(base, 0, width=width), free, strict=True):
        if timeline_export.columns(line) > width:
            assert '"..."' in line or '""' in line
        if timeline_export.columns(whole) <= width:
            assert line == whole
        assert line.split(' "')[0] == whole.split(' "')[0]


def test_wide_characters_take_two_columns() -> None:
    assert timeline_export.columns("a功能🚀") == 7
    assert timeline_export.columns("e\u0301") == 1
    assert timeline_export.shortened("功能功能功能", 8) == "功能..."
    assert timeline_export.shortened("abc\\x1bdefgh", 8) == "abc..."
    assert timeline_export.shortened("a\\\\\\\\bcdefg", 8) == "a\\\\\\\\..."
    assert timeline_export.shortened("short", 5) == "short"
    assert timeline_export.shortened("longer", 1) == "..."


def test_long_runs_and_many_children_are_folded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timeline_export, "FOLD_LINES", 100)
    base = database(tmp_path)
    for number in range(40):
        base.run("append", {"role": "user", "text": f"m{number}"})
    base.run("pin", {"node": "n20"})
    for number in range(100):
        base.run("fork", {"node": "n40", "name": f"b{number}"})
        base.run("append", {"role": "user", "text": "kid", "branch": f"b{number}"})
        if number != 50:
            base.run("drop_branch", {"name": f"b{number}"})
    lines = list(timeline_export.ascii_tree(base, 0, fold=True))
    assert ": 17 messages n2..n18" in lines
    assert [line for line in lines if line.endswith(" more")] == [": 30 more", ": 29 more"]
    assert '+-- [n91 user] "kid" [HEAD "b50"]' in lines
    assert '[n20 user PIN] "m19"' in lines
    unfolded = list(timeline_export.ascii_tree(base, 0))
    assert len(unfolded) > len(lines)
    assert {line for line in lines if "[" in line} <= set(unfolded)


# ---- files --------------------------------------------------------------------------------------


@pytest.fixture
def tl(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    db = str(tmp_path / "t.db")

    def run(*words: str) -> tuple[int, Any]:
        code = timeline_cli.main([*words, "--db", db])
        shown = capsys.readouterr()
        text = shown.err if code else shown.out
        try:
            return code, json.loads(text)
        except ValueError:
            return code, text

    run("create")
    run("append", "--role", "user", "--text", "hello")
    return run


def test_export_writes_a_file_and_says_what_is_in_it(tl: Any, tmp_path: Path) -> None:
    target = tmp_path / "a.drawio"
    code, answer = tl("export", "--format", "drawio", "--output", str(target))
    assert code == 0
    assert answer == {
        "format": "drawio", "timeline_id": "tl0", "output": str(target), "nodes": 1, "edges": 1,
    }  # fmt: skip
    ElementTree.parse(target)
    assert os.listdir(tmp_path).count("a.drawio") == 1
    assert not [name for name in os.listdir(tmp_path) if name.endswith(".tmp")]
    assert tl("export") == tl("tree")
    assert tl("export", "--idempotency-key", "k")[0] == 2
    assert tl("export", "--format", "drawio")[0] == 2


def test_existing_output_is_kept_unless_forced(tl: Any, tmp_path: Path) -> None:
    target = tmp_path / "a.md"
    target.write_bytes(b"mine")
    code, answer = tl("export", "--format", "markdown", "--output", str(target))
    assert code == 1
    assert "--force" in answer["error"]
    assert target.read_bytes() == b"mine"
    assert tl("export", "--format", "markdown", "--output", str(target), "--force")[0] == 0
    assert b"hello" in target.read_bytes()


@pytest.mark.skipif(sys.platform == "win32", reason="links need rights there")
def test_link_is_refused_and_named(tl: Any, tmp_path: Path) -> None:
    target = tmp_path / "real.md"
    (tmp_path / "link.md").symlink_to(target)
    for force in ((), ("--force",)):
        output = str(tmp_path / "link.md")
        code, answer = tl("export", "--format", "markdown", "--output", output, *force)
        assert code == 1
        assert str(target) in answer["error"]
    assert not target.exists()


def test_missing_folder_and_a_folder_are_refused(tl: Any, tmp_path: Path) -> None:
    assert tl("export", "--output", str(tmp_path / "no" / "a.txt"))[0] == 1
    assert tl("export", "--output", str(tmp_path))[0] == 1
    assert not (tmp_path / "no").exists()


def test_failure_leaves_nothing_half_written(
    tl: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = set(os.listdir(tmp_path))

    def full(self: timeline.Disk, file: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(timeline.Disk, "fsync", full)
    code, answer = tl("export", "--output", str(tmp_path / "a.txt"))
    assert code == 5
    assert "No space left" in answer["error"]
    assert set(os.listdir(tmp_path)) == before


def test_a_picture_never_replaces_the_database_or_what_is_beside_it(
    tl: Any, tmp_path: Path
) -> None:
    for number in range(timeline.CHECKPOINT_COMMITS):
        timeline.Database(str(tmp_path / "t.db"), disk=QuickDisk()).run(
            "append", {"role": "user", "text": f"{number}"}
        )
    (tmp_path / "sub").mkdir()
    targets = ["t.db", "sub/../t.db", "t.db.lock", "t.db.torn", "t.db.index/state", "t.db.tmp"]
    if sys.platform != "win32":
        (tmp_path / "here").symlink_to(tmp_path, target_is_directory=True)
        os.link(tmp_path / "t.db", tmp_path / "other name")
        targets += ["here/t.db", "other name"]
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    for name in targets:
        for format in timeline.EXPORT_FORMATS:
            code, answer = tl(
                "export", "--format", format, "--output", str(tmp_path / name), "--force"
            )
            assert code == 1, name
            assert "belongs to the database" in answer["error"]
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_pictures_tell_when_it_was_said_not_when_it_was_imported(tmp_path: Path) -> None:
    import timeline_import

    file = tmp_path / "talk.jsonl"
    file.write_text('{"role":"user","text":"Hi","time":1000000000}\n', encoding="utf-8")
    base = timeline.Database(str(tmp_path / "t.db"), via="import")
    timeline_import.import_paths(base, [str(file)])
    pictures = {
        format: "".join(timeline_export.picture(base, 0, format).pieces)
        for format in ("markdown", "html", "drawio")
    }
    base.close()
    assert "2001-09-09T01:46:40Z" in pictures["markdown"]
    assert ',"user",' in pictures["html"]
    assert ",1000000000," in pictures["html"]
    assert 'said_at="2001-09-09T01:46:40Z"' in pictures["drawio"]
