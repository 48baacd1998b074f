"""`export --format json` and the import of it: shape, mapping, what is known, what is refused."""

from __future__ import annotations

import copy
import io
import json
import random
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import timeline
import timeline_cli
import timeline_export
import timeline_import as ti
from kit.disks import QuickDisk
from kit.documents import brought, exported, inverted, plain, save
from kit.transcripts import CLAUDE, Session

Json = dict[str, Any]
Open = Callable[[], timeline.Database]
NOW = 1_780_000_000


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[Open]:
    """Makes a new database at each call; every one is whole at the end."""
    made: list[timeline.Database] = []

    def new() -> timeline.Database:
        folder = tmp_path / f"db{len(made)}"
        folder.mkdir()
        path = str(folder / "t.json")
        made.append(timeline.Database(path, clock=lambda: NOW, disk=QuickDisk()))
        return made[-1]

    yield new
    for base in made:
        if Path(base.path).exists():
            assert base.run("doctor")["ok"] is True
        base.close()


def talk(base: timeline.Database) -> timeline.Database:
    """Eight messages on two branches, a tool unit, summaries of two versions, all marks."""
    run = base.run
    run("create", {"title": "talk"})
    for role, text in (("user", "one"), ("assistant", "two"), ("tool", "three"), ("user", "four")):
        run("append", {"role": role, "text": text, "intent": {"tag": "t", "note": text}})
    run("pin", {"node": "n1"})
    run("summarize", {"from": "n1", "to": "n3", "summary": "first", "derived_from": ["n4"]})
    run("summarize", {"from": "n1", "to": "n3", "summary": "second", "supersede": "n5"})
    run("fork", {"node": "n2", "name": "side"})
    run("append", {"role": "user", "text": "eight " * 50, "branch": "side"})
    run("append", {"role": "user", "text": "nine", "branch": "side"})
    run("exclude", {"node": "n3"})
    run("fork", {"node": "n6", "name": "behind"})
    run("append", {"role": "user", "text": "ten", "branch": "behind"})
    run("drop_branch", {"name": "behind"})
    run("budget", {"branch": "side", "max_tokens": 45})
    run("pin", {"node": "n4"})
    return base


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The document of `talk`."""
    folder = tmp_path_factory.mktemp("talk")
    base = talk(timeline.Database(str(folder / "t.json"), clock=lambda: NOW, disk=QuickDisk()))
    text = exported(base)
    base.close()
    return text


def content_of(base: timeline.Database) -> bytes:
    return Path(base.path).read_bytes()


def document_of(base: timeline.Database, path: Path, **part: Any) -> str:
    return save(exported(base, **part), path)


# ---- shape --------------------------------------------------------------------------------------


def test_document_holds_all_of_a_timeline_a_node_a_line(fresh: Open) -> None:
    text = exported(talk(fresh()))
    document = json.loads(text)
    assert list(document) == ["timeline_json", "log_id", "timeline", "nodes", "branches"]
    assert document["timeline_json"] == 1
    assert [each["node"] for each in document["nodes"]] == [f"n{n}" for n in range(1, 11)]
    lines = text.split("\n")
    assert [json.loads(line.rstrip(",")) for line in lines[2:12]] == document["nodes"]
    first, second, tool = document["nodes"][0], document["nodes"][5], document["nodes"][2]
    assert first["pinned"] and first["held"] and first["sealed"] and not first["excluded"]
    assert document["nodes"][3]["pinned"] and "held" not in document["nodes"][3]
    assert first["intent"] == {"tag": "t", "note": "one"} and first["via"] == "cli"
    assert second["summary"] == {
        "from": "n1", "to": "n3", "kind": "real", "version": 2, "supersedes": "n5",
        "superseded_by": None, "derived_from": [], "stale": False,
    }  # fmt: skip
    assert document["nodes"][4]["summary"]["derived_from"] == ["n4"]
    assert document["nodes"][9]["summary"] == {"from": "n7", "to": "n7", "kind": "placeholder"}
    assert tool["excluded"] and document["nodes"][1]["excluded"]
    status = [(each["name"], each["head"], each["status"]) for each in document["branches"]]
    assert status == [("main", "n4", "live"), ("side", "n8", "live"), ("behind", "n9", "dropped")]


def test_sealed_is_the_watermark_of_the_model(fresh: Open) -> None:
    base = talk(fresh())
    sealed = [each["node"] for each in json.loads(exported(base))["nodes"] if each["sealed"]]
    assert sealed == ["n1", "n2", "n3", "n5", "n6", "n7", "n10"]
    part = json.loads(exported(base, first=2, last=8))
    assert [each["node"] for each in part["nodes"] if each["sealed"]] == ["n2", "n7"]


@pytest.fixture
def tl(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    """Runs a command line on a database of its own and returns (exit code, stdout, stderr)."""

    def run(*words: str, db: str = "db.json") -> tuple[int, str, str]:
        code = timeline_cli.main([*words, "--db", str(tmp_path / db)])
        out, err = capsys.readouterr()
        return code, out, err

    return run


def test_commands_write_the_document_and_read_it_in(tl: Any, tmp_path: Path) -> None:
    talk(timeline.Database(str(tmp_path / "db.json"), disk=QuickDisk())).close()
    code, out, _ = tl("export", "--format", "json")
    assert code == 0 and json.loads(out)["timeline_json"] == 1
    file, ids = str(tmp_path / "talk.json"), tmp_path / "ids.json"
    code, told, _ = tl("export", "--format", "json", "--output", file)
    assert code == 0
    assert json.loads(told) == {
        "format": "json", "timeline_id": "tl0", "output": file, "nodes": 10, "edges": 10,
    }  # fmt: skip
    assert Path(file).read_text(encoding="utf-8") == out
    tl("create", db="other.json")
    tl("append", "--role", "user", "--text", "here", db="other.json")
    code, told, _ = tl("import", file, "--ids", str(ids), db="other.json")
    assert code == 0 and json.loads(told)["timelines"][0]["added"] == 10
    assert json.loads(ids.read_bytes()) == {f"n{n}": f"n{n + 1}" for n in range(1, 11)}
    code, _, err = tl("import", file, "--ids", str(ids), db="other.json")
    assert code == 1 and "exists" in json.loads(err)["error"]
    # The map can be had again: nothing is added, and all is known.
    again = tmp_path / "again.json"
    code, told, _ = tl("import", file, "--ids", str(again), db="other.json")
    assert code == 0 and json.loads(told)["timelines"][0]["added"] == 0
    assert again.read_bytes() == ids.read_bytes()


def test_a_map_of_ids_is_of_one_document(tl: Any, tmp_path: Path) -> None:
    plain_file = tmp_path / "m.jsonl"
    plain_file.write_text('{"role":"user","text":"hi"}\n', encoding="utf-8")
    ids = str(tmp_path / "ids.json")
    for words in (
        ["import", str(plain_file)],
        ["import", str(plain_file), "--dry-run"],
        ["import", str(plain_file), "--idempotency-key", "k"],
    ):
        code, _, err = tl(*words, "--ids", ids)
        assert code == 2 and "ids" in json.loads(err)["error"]
    code, _, err = tl("import", str(plain_file), "--ids", str(tmp_path / "db.json"))
    assert code == 1 and "belongs to the database" in json.loads(err)["error"]
    assert not Path(ids).exists() and not (tmp_path / "db.json").exists()


# ---- mapping ------------------------------------------------------------------------------------


def test_numbers_are_the_same_in_an_empty_database(fresh: Open, tmp_path: Path) -> None:
    source, target = talk(fresh()), fresh()
    row, ids = brought(target, document_of(source, tmp_path / "d.json"))
    assert (row["added"], row["branches"], row["summaries"]) == (10, 3, 2)
    assert all(there == here for there, here in ids.items())
    assert plain(exported(target)) == plain(exported(source))
    node = target.run("node", {"node": "n3"})
    assert node["source"] == {
        "format": "timeline-json", "session": row["session"], "id": "n3", "time": NOW,
    }  # fmt: skip
    assert (
        target.run("node", {"node": "n10"})["text"] == source.run("node", {"node": "n10"})["text"]
    )


def test_ids_are_mapped_and_placeholders_say_the_new_ones(fresh: Open, tmp_path: Path) -> None:
    source, target = talk(fresh()), fresh()
    target.run("create", {})
    for _ in range(5):
        target.run("append", {"role": "user", "text": "before"})
    row, ids = brought(target, document_of(source, tmp_path / "d.json"))
    assert row["timeline_id"] == "tl1" and ids["n1"] == "n6"
    found = plain(exported(target, 1), inverted(ids))
    assert found == plain(exported(source))
    assert "n12..n12." in target.run("node", {"node": "n15"})["text"]


def test_held_pin_stays_held_and_the_other_does_not(fresh: Open, tmp_path: Path) -> None:
    source, target = talk(fresh()), fresh()
    brought(target, document_of(source, tmp_path / "d.json"))
    rows = json.loads(exported(target))["nodes"]
    assert [row["node"] for row in rows if row.get("held")] == ["n1"]
    assert [row["node"] for row in rows if row["pinned"]] == ["n1", "n4"]


def test_an_import_with_held_pins_is_one_write_or_nothing(
    fresh: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, target = document_of(talk(fresh()), tmp_path / "d.json"), fresh()
    target.run("create", {})
    before = content_of(target)
    sizes: list[int] = []
    append = QuickDisk.append

    def counted(disk: Any, file: int, data: bytes) -> None:
        sizes.append(len(data))
        append(disk, file, data[: len(data) // 2])
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(QuickDisk, "append", counted)
        with pytest.raises(timeline.WriteFailed):
            brought(target, path)
    assert len(sizes) == 1 and content_of(target) == before
    assert brought(target, path)[0]["added"] == 10
    assert len(content_of(target)) - len(before) == sizes[0]


@pytest.mark.parametrize("cut", range(1, 24))
def test_an_import_that_was_cut_off_is_completed(fresh: Open, tmp_path: Path, cut: int) -> None:
    source, target = talk(fresh()), fresh()
    path = document_of(source, tmp_path / "d.json")
    brought(target, path)
    whole = content_of(target)
    target.close()
    # What a power cut may leave of the write: whole lines, so maybe the first transaction.
    lines = whole.split(b"\n")[:-1]
    Path(target.path).write_bytes(b"".join(line + b"\n" for line in lines[:cut]))
    brought(target, path)
    assert plain(exported(target)) == plain(exported(source))


def test_branches_that_share_a_name_or_took_mains(fresh: Open, tmp_path: Path) -> None:
    base, target = fresh(), fresh()
    run = base.run
    run("create", {})
    run("append", {"role": "user", "text": "one"})
    run("rename", {"branch": "main", "to": "trunk"})
    for _ in range(2):
        run("fork", {"node": "n1", "name": "x"})
        run("drop_branch", {"name": "x"})
    run("fork", {"node": "n1", "name": "main"})
    run("switch", {"name": "main"})
    run("drop_branch", {"name": "trunk"})
    run("fork", {"node": "n1", "name": "x"})
    run("fork", {"node": "n0", "name": "y"})
    run("rename", {"branch": "x", "to": "trunk"})
    row, _ = brought(target, document_of(base, tmp_path / "d.json"))
    assert row["branches"] == 6
    assert plain(exported(target)) == plain(exported(base))


def test_a_branch_that_had_the_name_of_main_for_a_while(fresh: Open, tmp_path: Path) -> None:
    base, target = fresh(), fresh()
    run = base.run
    run("create", {})
    run("append", {"role": "user", "text": "one"})
    run("rename", {"branch": "main", "to": "x"})
    run("fork", {"node": "n1", "name": "main"})
    run("drop_branch", {"name": "main"})
    run("rename", {"branch": "x", "to": "main"})
    brought(target, document_of(base, tmp_path / "d.json"))
    assert plain(exported(target)) == plain(exported(base))


def test_archived_branches_and_a_fork_at_a_summary_in_one(fresh: Open, tmp_path: Path) -> None:
    base, target = fresh(), fresh()
    run = base.run
    run("create", {})
    run("append", {"role": "user", "text": "one"})
    run("fork", {"node": "n1", "name": "old"})
    for text in ("two", "three"):
        run("append", {"role": "user", "text": text, "branch": "old"})
    run("summarize", {"from": "n1", "to": "n2", "summary": "s"})
    run("fork", {"node": "n4", "name": "on"})
    run("append", {"role": "user", "text": "five", "branch": "on"})
    run("summarize", {"from": "n4", "to": "n5", "summary": "t"})
    run("summarize", {"from": "n1", "to": "n3", "summary": "u"})
    for name in ("on", "old"):
        run("archive_branch", {"branch": name, "scope": "own"})
    run("fork", {"node": "n4", "name": "later"})
    document = exported(base)
    zones = {each["node"]: each["zone"] for each in json.loads(document)["nodes"]}
    assert [node for node, zone in zones.items() if zone == "archive"] == ["n2", "n3", "n5"]
    brought(target, save(document, tmp_path / "d.json"))
    assert plain(exported(target)) == plain(document)
    target.run("thaw", {"name": "old"})
    assert target.run("node", {"node": "n2"})["zone"] == "hot"
    assert target.run("node", {"node": "n5"})["zone"] == "archive"


def test_purged_nodes_stay_purged(fresh: Open, tmp_path: Path) -> None:
    base, target = talk(fresh()), fresh()
    base.run("compact", {"purge": ["n1", "n6"]})
    brought(target, document_of(base, tmp_path / "d.json"))
    assert plain(exported(target)) == plain(exported(base))
    assert target.run("context")[0]["purged"] is True


def test_any_layout_of_the_json_is_read(fresh: Open, tmp_path: Path) -> None:
    base = talk(fresh())
    document = json.loads(exported(base))
    shapes = [
        json.dumps(document),
        json.dumps(document, indent=2, ensure_ascii=False),
        "\ufeff" + exported(base),
        exported(base).replace("\n", "\r\n"),
    ]
    for number, shape in enumerate(shapes):
        target = fresh()
        row, _ = brought(target, save(shape, tmp_path / f"{number}.any"))
        assert row["format"] == "timeline-json"
        assert plain(exported(target)) == plain(exported(base))
    # Keys in another order are no mark to tell the format by, but can be read.
    odd = save(json.dumps(document, sort_keys=True), tmp_path / "sorted.json")
    with pytest.raises(timeline.InvalidArgument, match="no transcript that can be read"):
        brought(fresh(), odd)
    assert brought(fresh(), odd, format="timeline-json")[0]["added"] == 10


def test_documents_lie_in_archives_among_transcripts(
    fresh: Open, tmp_path: Path, written: str
) -> None:
    packed = tmp_path / "all.zip"
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as out:
        out.writestr("talk.json", written)
        out.writestr("session.jsonl", (CLAUDE / "compact-twice.jsonl").read_bytes())
    rows = ti.import_paths(fresh(), [str(packed)])["timelines"]
    assert [(row["format"], row["added"]) for row in rows] == [
        ("claude-code", 10), ("timeline-json", 10),
    ]  # fmt: skip


def test_notes_of_another_database_are_not_taken_over(
    fresh: Open, tmp_path: Path, written: str
) -> None:
    document, target = json.loads(written), fresh()
    forged = {"session": f"timeline-json\0{'a' * 32}/tl0", "branch": 0, "node": "n1"}
    document["timeline"]["sessions"] = [forged, {**forged, "session": "claude-code\0s"}]
    brought(target, save(laid_out(document), tmp_path / "d.json"))
    sessions = target.store.state.timelines[0].sessions
    assert forged["session"] not in sessions and sessions["claude-code\0s"] == [0, 1]


# ---- known already ------------------------------------------------------------------------------


def test_again_adds_nothing_and_writes_nothing(fresh: Open, tmp_path: Path) -> None:
    empty = fresh()
    empty.run("create", {})
    for base in (talk(fresh()), empty):
        target = fresh()
        path = document_of(base, tmp_path / "d.json")
        row, ids = brought(target, path)
        before = content_of(target)
        again, same = brought(target, path)
        assert (again["added"], again["known"], again["branches"]) == (0, row["records"], 0)
        assert same == ids and content_of(target) == before
        assert len(target.run("list")) == 1
        # Into the database it is of as well.
        before = content_of(base)
        assert brought(base, path)[0]["added"] == 0
        assert content_of(base) == before


def test_a_dry_run_says_the_same_and_writes_nothing(fresh: Open, tmp_path: Path) -> None:
    target, path = fresh(), document_of(talk(fresh()), tmp_path / "d.json")
    (told,) = ti.import_paths(target, [path], dry_run=True)["timelines"]
    assert told["timeline_id"] is None and not Path(target.path).exists()
    row, _ = brought(target, path)
    assert {**told, "timeline_id": "tl0"} == row


def test_a_newer_export_adds_what_is_new(fresh: Open, tmp_path: Path) -> None:
    source, target = talk(fresh()), fresh()
    brought(target, document_of(source, tmp_path / "1.json"))
    run = source.run
    run("append", {"role": "user", "text": "more"})
    run("summarize", {"from": "n1", "to": "n4", "summary": "wide"})
    run("pin", {"node": "n11"})
    run("fork", {"node": "n11", "name": "new"})
    run("append", {"role": "user", "text": "on it", "branch": "new"})
    run("drop_branch", {"name": "side"})
    row, ids = brought(target, document_of(source, tmp_path / "2.json"))
    assert (row["added"], row["known"], row["branches"]) == (3, 10, 1)
    assert plain(exported(target), inverted(ids)) == plain(exported(source))
    before = content_of(target)
    assert brought(target, str(tmp_path / "2.json"))[0]["added"] == 0
    # The older one knows less, and takes nothing back.
    assert brought(target, str(tmp_path / "1.json"))[0]["added"] == 0
    assert content_of(target) == before


def test_work_done_here_is_kept(fresh: Open, tmp_path: Path) -> None:
    source, target = talk(fresh()), fresh()
    path = document_of(source, tmp_path / "1.json")
    brought(target, path)
    run = target.run
    run("append", {"role": "user", "text": "written here"})
    run("drop_branch", {"name": "side"})
    run("fork", {"node": "n4", "name": "own"})
    before = content_of(target)
    row, _ = brought(target, path)
    assert (row["added"], row["warnings"]) == (0, []) and content_of(target) == before
    source.run("append", {"role": "user", "text": "written there"})
    row, ids = brought(target, document_of(source, tmp_path / "2.json"))
    assert row["added"] == 1 and "went another way here" in row["warnings"][0]
    heads = {each["name"]: each["head"] for each in target.run("branches")}
    assert heads == {"main": "n11", "own": "n4", "main (2)": ids["n11"]}
    source.run("append", {"role": "user", "text": "and more"})
    row, ids = brought(target, document_of(source, tmp_path / "3.json"))
    heads = {each["name"]: each["head"] for each in target.run("branches")}
    assert heads == {"main": "n11", "own": "n4", "main (2)": ids["n12"]}
    before = content_of(target)
    brought(target, str(tmp_path / "3.json"))
    assert content_of(target) == before


def test_what_is_archived_here_stays_so_until_it_is_needed(fresh: Open, tmp_path: Path) -> None:
    source, target = fresh(), fresh()
    run = source.run
    run("create", {})
    run("append", {"role": "user", "text": "one"})
    run("fork", {"node": "n1", "name": "side"})
    run("append", {"role": "user", "text": "two", "branch": "side"})
    run("summarize", {"from": "n1", "to": "n2", "summary": "s"})
    path = document_of(source, tmp_path / "1.json")
    brought(target, path)
    target.run("archive_branch", {"branch": "side", "scope": "own"})
    before = content_of(target)
    assert brought(target, path)[0]["added"] == 0 and content_of(target) == before
    run("fork", {"node": "n2", "name": "late"})
    brought(target, document_of(source, tmp_path / "2.json"))
    assert target.run("node", {"node": "n2"})["zone"] == "hot"
    assert {each["name"] for each in target.run("branches")} == {"main", "late"}


def test_what_was_thawed_and_archived_anew_there_is_thawed_here_first(
    fresh: Open, tmp_path: Path
) -> None:
    source, target = fresh(), fresh()
    run = source.run
    run("create", {})
    run("append", {"role": "user", "text": "one"})
    run("fork", {"node": "n1", "name": "old"})
    for text in ("two", "three"):
        run("append", {"role": "user", "text": text, "branch": "old"})
    run("summarize", {"from": "n1", "to": "n3", "summary": "s"})
    run("archive_branch", {"branch": "old", "scope": "own"})
    brought(target, document_of(source, tmp_path / "1.json"))
    run("thaw", {"node": "n3"})
    run("fork", {"node": "n3", "name": "again"})
    run("archive_branch", {"branch": "again", "scope": "own"})
    brought(target, document_of(source, tmp_path / "2.json"))
    assert plain(exported(target)) == plain(exported(source))
    report = target.run("doctor", {"repair_to": str(tmp_path / "repaired.json")})
    assert report["left_out"] == []


def test_a_tree_goes_out_grows_and_comes_home(fresh: Open, tmp_path: Path) -> None:
    home, away = talk(fresh()), fresh()
    away.run("create", {})
    away.run("append", {"role": "user", "text": "here"})
    _, ids = brought(away, document_of(home, tmp_path / "out.json"))
    node = away.run("append", {"role": "user", "text": "grown", "timeline_id": "tl1"})["node"]
    row, back = brought(home, document_of(away, tmp_path / "back.json", tl=1))
    assert (row["timeline_id"], row["added"]) == ("tl0", 1)
    assert back[node] == "n11" and back[ids["n7"]] == "n7"
    assert home.run("context")[-1]["text"] == "grown"
    before = content_of(home)
    assert brought(home, str(tmp_path / "back.json"))[0]["added"] == 0
    assert content_of(home) == before


def test_a_copy_of_the_file_that_went_its_own_way_comes_back(fresh: Open, tmp_path: Path) -> None:
    base = talk(fresh())
    twin = timeline.Database(str(tmp_path / "twin.json"), clock=lambda: NOW, disk=QuickDisk())
    Path(twin.path).write_bytes(content_of(base))
    for each, text in ((base, "here"), (twin, "there")):
        each.run("append", {"role": "user", "text": text})
        each.run("append", {"role": "user", "text": "both"})
    row, ids = brought(base, document_of(twin, tmp_path / "d.json"))
    assert (row["added"], row["known"], row["timeline_id"]) == (2, 10, "tl0")
    assert (ids["n11"], ids["n12"]) == ("n13", "n14")
    heads = {each["name"]: each["head"] for each in base.run("branches")}
    assert heads == {"main": "n12", "main (2)": "n14", "side": "n8"}
    before = content_of(base)
    assert brought(base, str(tmp_path / "d.json"))[1] == ids and content_of(base) == before
    twin.close()


def test_into_a_timeline_that_has_its_own(fresh: Open, tmp_path: Path) -> None:
    target, path = fresh(), document_of(talk(fresh()), tmp_path / "d.json")
    for _ in range(2):
        target.run("create", {"title": "mine"})
        target.run("append", {"role": "user", "text": "mine", "timeline_id": "tl0"})
    row, _ = brought(target, path, into=0)
    assert row["timeline_id"] == "tl0"
    heads = {each["name"]: each["head"] for each in target.run("branches")}
    assert heads == {"main": "n2", "main (2)": "n6", "side": "n10"}
    with pytest.raises(timeline.Refused, match="is in tl0"):
        brought(target, path, into=1)
    with pytest.raises(timeline.NotFound):
        brought(target, path, into=7)
    # An empty one is taken as it stands.
    small = fresh()
    small.run("create", {})
    small.run("append", {"role": "user", "text": "small"})
    brought(target, document_of(small, tmp_path / "e.json"), into=1)
    (branch,) = target.run("branches", {"timeline_id": "tl1"})
    assert (branch["name"], branch["head"]) == ("main", "n13")


def test_title_follows_until_it_is_given_here(fresh: Open, tmp_path: Path) -> None:
    source, target = talk(fresh()), fresh()
    brought(target, document_of(source, tmp_path / "d.json"))
    source.run("rename", {"title": "better"})
    brought(target, document_of(source, tmp_path / "d.json"))
    assert target.run("list")[0]["title"] == "better"
    target.run("rename", {"title": "mine"})
    source.run("rename", {"title": "best"})
    brought(target, document_of(source, tmp_path / "d.json"))
    assert target.run("list")[0]["title"] == "mine"


def test_another_text_of_a_known_node_is_said_and_left(fresh: Open, tmp_path: Path) -> None:
    source, target = talk(fresh()), fresh()
    text = exported(source)
    brought(target, save(text, tmp_path / "d.json"))
    row, _ = brought(target, save(text.replace('"four"', '"4"'), tmp_path / "e.json"))
    assert (row["added"], row["changed"]) == (0, 1)
    assert row["warnings"] == ["n4: n4 was read with another text, which stays"]


# ---- transcripts --------------------------------------------------------------------------------


@pytest.mark.parametrize("sample", sorted(CLAUDE.glob("*.jsonl")), ids=lambda path: path.stem)
def test_a_transcript_is_known_in_the_copy(fresh: Open, tmp_path: Path, sample: Path) -> None:
    source, target = fresh(), fresh()
    target.run("create", {})
    target.run("append", {"role": "user", "text": "here"})
    ti.import_paths(source, [str(sample)])
    _, ids = brought(target, document_of(source, tmp_path / "d.json"))
    assert plain(exported(target, 1), inverted(ids)) == plain(exported(source))
    before = content_of(target)
    (row,) = ti.import_paths(target, [str(sample)])["timelines"]
    assert (row["added"], row["copied"], row["timeline_id"]) == (0, 0, "tl1")
    assert content_of(target) == before
    # And the other way about: what the transcript brought is what the document means.
    other = fresh()
    ti.import_paths(other, [str(sample)])
    before = content_of(other)
    row, _ = brought(other, str(tmp_path / "d.json"))
    assert (row["added"], row["timeline_id"]) == (0, "tl0")
    assert len(other.run("list")) == 1


def test_a_session_goes_on_where_it_went_on(fresh: Open, tmp_path: Path) -> None:
    session = Session()
    for name in ("a", "b"):
        session.user(name)
        session.answer("to " + name)
    session.compact("S")
    session.user("c")
    part = session.save(tmp_path / "s.jsonl")
    session.answer("to c")
    session.user("d")
    (tmp_path / "more").mkdir()
    whole = session.save(tmp_path / "more" / "s.jsonl")
    direct, source, target = fresh(), fresh(), fresh()
    for base in (direct, source):
        ti.import_paths(base, [part])
    ti.import_paths(direct, [whole])
    brought(target, document_of(source, tmp_path / "d.json"))
    (row,) = ti.import_paths(target, [whole])["timelines"]
    assert row["added"] == 2
    assert plain(exported(target)) == plain(exported(direct))


# ---- parts --------------------------------------------------------------------------------------


def test_a_branch_alone(fresh: Open, tmp_path: Path) -> None:
    source, target = talk(fresh()), fresh()
    text = exported(source, branch="side")
    assert [each["node"] for each in json.loads(text)["nodes"]] == ["n1", "n2", "n7", "n8"]
    row, ids = brought(target, save(text, tmp_path / "d.json"))
    assert (row["added"], row["warnings"]) == (4, [])
    shown = [message["text"] for message in target.run("context", {"branch": "side"})]
    assert shown == ["one", "eight " * 50, "nine"]  # n2 is excluded
    (branch,) = target.run("branches")
    assert (branch["name"], branch["head"], branch["current"]) == ("side", ids["n8"], True)


def test_an_interval_hangs_below_the_root_with_its_gap(fresh: Open, tmp_path: Path) -> None:
    source, target = talk(fresh()), fresh()
    text = exported(source, first=2, last=4)
    document = json.loads(text)
    assert document["part"] == {"from": "n2", "to": "n4", "above": "n1", "above_ids": []}
    assert [each["node"] for each in document["nodes"]] == ["n2", "n3", "n4"]
    path = save(text, tmp_path / "d.json")
    row, ids = brought(target, path)
    assert row["added"] == 3
    assert row["warnings"] == ["n2: n1 is not in the file; it begins a line"]
    first = target.run("node", {"node": ids["n2"]})
    assert (first["parent"], first["source"]["gap"]) == ("n0", "parent not in file")
    assert [each["head"] for each in target.run("branches")] == ["n3"]
    before = content_of(target)
    assert brought(target, path)[0]["added"] == 0 and content_of(target) == before
    # The whole comes as a tree of its own beside it, and is known from then on.
    row, _ = brought(target, document_of(source, tmp_path / "all.json"))
    assert (row["added"], row["timeline_id"]) == (10, "tl0")
    for file in ("all.json", "d.json"):
        before = content_of(target)
        assert brought(target, str(tmp_path / file))[0]["added"] == 0
        assert content_of(target) == before


def test_an_interval_goes_on_where_what_is_above_it_is(fresh: Open, tmp_path: Path) -> None:
    source, target = talk(fresh()), fresh()
    brought(target, document_of(source, tmp_path / "d.json"))
    source.run("append", {"role": "user", "text": "eleven"})
    source.run("append", {"role": "user", "text": "twelve"})
    text = exported(source, first=11, last=12)
    row, ids = brought(target, save(text, tmp_path / "p.json"))
    assert (row["added"], row["warnings"]) == (2, [])
    assert target.run("node", {"node": ids["n11"]})["parent"] == "n4"
    assert target.run("context")[-1]["text"] == "twelve"


def test_a_summary_without_its_originals_becomes_a_message(fresh: Open, tmp_path: Path) -> None:
    source, target = fresh(), fresh()
    ti.import_paths(source, [str(CLAUDE / "compact-twice.jsonl")])
    row, ids = brought(target, document_of(source, tmp_path / "d.json", branch="main"))
    summaries = [each for each in source.run("context") if "from" in each]
    assert len(summaries) == len(row["warnings"]) == 1
    node = target.run("node", {"node": ids[summaries[0]["node"]]})
    assert node["role"] == "summary" and "summary" not in node
    assert node["source"]["gap"] == "originals not in file"
    texts = [[each["text"] for each in base.run("context")] for base in (source, target)]
    assert texts[0] == texts[1]


def test_every_part_comes_in_and_again_changes_nothing(fresh: Open, tmp_path: Path) -> None:
    source = talk(fresh())
    for last in (*range(1, 5), 5, 6, 7, 8, 9):
        path = source.run("context", {"node": f"n{last}"})
        for first in {0, *(int(each["node"][1:]) for each in path)}:
            target = fresh()
            document = document_of(source, tmp_path / "d.json", first=first, last=last)
            brought(target, document)
            before = content_of(target)
            assert brought(target, document)[0]["added"] == 0
            assert content_of(target) == before


# ---- damaged and hostile ------------------------------------------------------------------------


def changed(where: str, value: Any) -> Callable[[Json], None]:
    """Sets what stands at a path such as nodes.3.parent."""

    def change(document: Json) -> None:
        *way, last = where.split(".")
        place: Any = document
        for step in way:
            place = place[int(step)] if step.isdigit() else place[step]
        if last.isdigit():
            place[int(last)] = value
        else:
            place[last] = value

    return change


HOSTILE: list[tuple[str, Any, str]] = [
    ("timeline_json", 2, "newer Timeline"),
    ("timeline_json", True, "timeline_json must be"),
    ("timeline_json", "1", "timeline_json must be"),
    ("log_id", "../x", "log_id"),
    ("log_id", None, "log_id is missing"),
    ("timeline", [], "timeline is no JSON object"),
    ("timeline", None, "timeline is missing"),
    ("timeline.timeline_id", "n0", "timeline_id must be"),
    ("timeline.title", 7, "title must be"),
    ("timeline.title", "x" * 201, "title has 201"),
    ("timeline.estimator", "best", "estimator must be"),
    ("timeline.source", "x", "source is no JSON object"),
    ("timeline.source", {"cwd": 5}, "cwd must be a string"),
    ("timeline.sessions", [{"session": "s", "branch": 99, "node": "n1"}], "number 99"),
    ("timeline.sessions", [{"session": "s", "branch": 0, "node": "n99"}], "n99 is not"),
    ("nodes", {}, "nodes must be a list"),
    ("nodes.2", "n3", "is no JSON object"),
    ("nodes.2", [], "is no JSON object"),
    ("nodes.2.node", "n2", "n2.*it is there twice"),
    ("nodes.2.node", "n0", "n0 is the root"),
    ("nodes.2.node", 3, "node must be a node id"),
    ("nodes.2.node", "n" + "9" * 30, "node must be a node id"),
    ("nodes.2.node", "n8", "below the one before"),
    ("nodes.2.parent", "n3", "its parent n3 does not come before it"),
    ("nodes.2.parent", "n4", "its parent n4 does not come before it"),
    ("nodes.2.parent", "n99", "its parent n99 does not come before it"),
    ("nodes.2.parent", None, "parent is missing"),
    ("nodes.2.role", "robot", "role must be one of"),
    ("nodes.2.role", [], "role must be one of"),
    ("nodes.2.text", None, "text is missing"),
    ("nodes.2.text", 5, "text must be a string"),
    ("nodes.2.text", "\ud800", "lone surrogate"),
    ("nodes.2.text", "x" * (timeline.TEXT_BYTES_MAX + 1), "above the limit"),
    ("nodes.2.tokens", -1, "tokens must be"),
    ("nodes.2.tokens", 1.5, "tokens must be"),
    ("nodes.2.tokens", True, "tokens must be"),
    ("nodes.2.tokens", 1 << 60, "tokens must be"),
    ("nodes.2.tokens", timeline.TOKENS_MAX, "tokens up to it are above"),
    ("nodes.2.pinned", 1, "pinned must be"),
    ("nodes.0.pinned", "yes", "pinned must be"),
    ("nodes.0.excluded", True, "pinned and excluded at once"),
    ("nodes.2.excluded", False, "excluded as a whole"),
    ("nodes.1.excluded", False, "excluded as a whole"),
    ("nodes.1.pinned", True, "pinned and excluded at once"),
    ("nodes.2.zone", "cold", "zone must be"),
    ("nodes.2.zone", "archive", "n3 has the zone archive"),
    ("nodes.2.intent", {"tag": ""}, "intent needs a tag"),
    ("nodes.2.intent", "t", "intent must be"),
    ("nodes.2.source", "x", "source is no JSON object"),
    ("nodes.2.source", {"format": 1}, "format must be a string"),
    ("nodes.2.source", {"copy_of": 1}, "copy_of must be a node id"),
    ("nodes.2.source", {"usage": "x" * 70_000}, "source has more than"),
    ("nodes.2.ids", "x", "ids must be a list"),
    ("nodes.2.ids", [1], "list of short strings"),
    ("nodes.2.ids", ["x" * 9000], "list of short strings"),
    ("nodes.2.blocks", "x", "blocks must be a list"),
    ("nodes.2.blocks", ["x"], "is no JSON object"),
    ("nodes.2.purged", True, "purged, but it has a text"),
    ("nodes.2.created_at", "now", "created_at must be"),
    ("nodes.4.summary", [], "summary is no JSON object"),
    ("nodes.4.summary.from", "n5", "does not come before it"),
    ("nodes.4.summary.from", "n0", "n0 is no message"),
    ("nodes.4.summary.to", "n99", "does not come before it"),
    ("nodes.4.summary.from", None, "from is missing"),
    ("nodes.5.summary.kind", "fake", "kind must be"),
    ("nodes.4.summary.from", "n3", "its parent must be that of n3"),
    ("nodes.9.summary.from", "n4", "n4..n7 is no interval"),
    ("nodes.9.summary.from", "n5", "n5..n7 is no interval"),
    ("nodes.5.summary.supersedes", "n4", "which is no summary before it"),
    ("nodes.5.summary.supersedes", "n10", "which is no summary before it"),
    ("nodes.5.summary.to", "n2", "which has another interval"),
    ("nodes.4.summary.derived_from", ["n0"], "is no message before it"),
    ("nodes.4.summary.derived_from", ["n9"], "is no message before it"),
    ("nodes.4.summary.derived_from", "n4", "derived_from must be a list"),
    ("nodes.4.role", "user", "has the role summary"),
    ("nodes.4.joins", True, "neither blocks nor joins"),
    ("nodes.9.pinned", True, "a placeholder has 32 tokens"),
    ("nodes.9.tokens", 5, "a placeholder has 32 tokens"),
    ("branches", {}, "branches must be a list"),
    ("branches", [], "0 current branches"),
    ("branches.0.name", "a/b", "holds a /"),
    ("branches.0.name", "", "is empty"),
    ("branches.0.name", 5, "name must be a string"),
    ("branches.0.head", "n99", "its head n99 is not in the document"),
    ("branches.0.head", "n10", "its head n10 is a placeholder"),
    ("branches.1.fork_node", "n99", "its fork_node n99 is not"),
    ("branches.1.status", "asleep", "status must be"),
    ("branches.1.current", True, "2 current branches"),
    ("branches.2.current", True, "it has ended"),
    ("branches.0.current", False, "0 current branches"),
    ("branches.1.number", 0, "it comes of branch number 0|a second branch"),
    ("branches.1.of", 5, "which is not older"),
    ("branches.1.of", 1, "which is not older"),
    ("branches.1.name", "main", "a second living branch"),
    ("branches.0.archived_from", "n1", "no node of an archived branch"),
]


@pytest.mark.parametrize(
    ("where", "value", "words"), HOSTILE, ids=[f"{n} {each[0]}" for n, each in enumerate(HOSTILE)]
)
def test_hostile_document_is_refused_whole(
    fresh: Open, tmp_path: Path, written: str, where: str, value: Any, words: str
) -> None:
    target = fresh()
    target.run("create", {})
    before = content_of(target)
    document = json.loads(written)
    changed(where, value)(document)
    in_lines = laid_out(document)
    for text in (json.dumps(document), in_lines):
        path = save(text, tmp_path / "d.json")
        with pytest.raises(timeline.InvalidArgument, match=words) as caught:
            brought(target, path, format="timeline-json")
        assert str(caught.value).startswith(path)
        assert content_of(target) == before


def laid_out(document: Json) -> str:
    """The document as export lays it out, whatever it says."""
    head = {k: v for k, v in document.items() if k not in ("nodes", "branches")}
    if not isinstance(document.get("nodes"), list):
        return json.dumps(document)
    nodes = ",\n".join(map(json.dumps, document["nodes"]))
    tail = json.dumps({k: v for k, v in document.items() if k == "branches"})[1:]
    comma = "," if tail != "}" else ""
    return f'{json.dumps(head)[:-1]},\n"nodes":[\n{nodes}\n]{comma}\n{tail}\n'


def test_cycles_and_archives_that_cannot_be(fresh: Open, tmp_path: Path, written: str) -> None:
    document = json.loads(written)
    whole = copy.deepcopy(document)
    whole["nodes"][2]["parent"], whole["nodes"][3]["parent"] = "n4", "n3"
    cases = [(whole, "its parent n4 does not come before it")]
    for branch, status, words in ((0, "live", "no node of"), (1, "archived", "has the zone hot")):
        whole = copy.deepcopy(document)
        whole["branches"][branch]["status"] = status
        whole["branches"][branch]["archived_from"] = "n1"
        cases.append((whole, words))
    whole = copy.deepcopy(document)
    whole["branches"][1].update(status="archived", archived_from="n1")
    for node in (0, 1, 6, 7):
        whole["nodes"][node]["zone"] = "archive"
    whole["branches"][0]["head"] = "n2"
    cases.append((whole, "ends at an archived node"))
    whole = copy.deepcopy(document)
    whole["nodes"][9]["node"] = "n11"
    twin = {**whole["nodes"][9], "node": "n10"}
    whole["nodes"].insert(9, twin)
    cases.append((whole, "a second placeholder"))
    whole = copy.deepcopy(document)
    whole["nodes"].append({**whole["nodes"][5], "node": "n11"})
    cases.append((whole, "as another summary does already"))
    for each, words in cases:
        with pytest.raises(timeline.InvalidArgument, match=words):
            brought(fresh(), save(laid_out(each), tmp_path / "d.json"))


def test_cut_documents_are_refused_at_every_byte(fresh: Open, tmp_path: Path) -> None:
    base, target = fresh(), fresh()
    base.run("create", {"title": "é"})
    for text in ("one 你好", "two"):
        base.run("append", {"role": "user", "text": text})
    data = exported(base).encode()
    assert len(ti.Document(io.BytesIO(data)).rows) == 2
    for end in range(len(data) - 1):
        with pytest.raises(timeline.InvalidArgument):
            ti.Document(io.BytesIO(data[:end]))
    path = tmp_path / "d.json"
    path.write_bytes(data[: data.index(b'{"node":"n2"')])
    with pytest.raises(timeline.InvalidArgument, match="line 4: it ends in the middle, behind n1"):
        brought(target, str(path))
    assert not Path(target.path).exists()


def test_no_json_and_lines_without_end(
    fresh: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: str
) -> None:
    text, target = written, fresh()
    deep = text.replace('"text":"four"', '"blocks":' + "[" * 5000 + "]" * 5000 + ',"text":"four"')
    nested = text.replace(
        '"text":"four"', '"blocks":[' + '{"a":[' * 120 + "]}" * 120 + '],"text":"four"'
    )
    cases = [
        (text.replace('"tokens":1,', '"tokens":1 ', 1), "line 3 is no JSON"),
        (text.replace('"tokens":1,', '"tokens":NaN,', 1), "line 3 is no JSON"),
        (text.replace('"tokens":1,', '"tokens":1e999,', 1), "line 3 is no JSON"),
        (text.replace('"tokens":1,', '"tokens":' + "9" * 5000 + ",", 1), "line 3"),
        (text.replace("},\n{", "}\n{", 1), "no comma before it"),
        (text.replace("}\n],", "},\n],"), "a comma and no node"),
        (text.replace("one", "\\udfff"), "line 3 holds a lone surrogate .U.DFFF."),
        (text + "{}", "more text"),
        (deep, "line 6"),
        (nested, "line 6 has more than 200 brackets"),
        (text.replace("]}\n", "\n"), "what begins at line 13"),
    ]
    for damaged, words in cases:
        with pytest.raises(timeline.InvalidArgument, match=words):
            brought(target, save(damaged, tmp_path / "d.json"))
    path = tmp_path / "d.json"
    path.write_bytes(text.encode().replace(b"eight", b"\xff\xfe", 1))
    with pytest.raises(timeline.InvalidArgument, match="line 9 is no UTF-8"):
        brought(target, str(path))
    monkeypatch.setattr(timeline, "BLOCKS_BYTES_MAX", 100)
    large = text.replace('"text":"four"', f'"blocks":[{{"t":"{"x" * 100}"}}],"text":"four"')
    with pytest.raises(timeline.InvalidArgument, match="blocks are above the limit of 100 bytes"):
        brought(target, save(large, tmp_path / "d.json"))
    monkeypatch.setattr(ti, "LINE_BYTES_MAX", 450)
    with pytest.raises(timeline.InvalidArgument, match="line 9 is above the limit of 450 bytes"):
        brought(target, save(text, tmp_path / "d.json"))
    with pytest.raises(timeline.InvalidArgument, match="has not a node a line"):
        brought(target, save(json.dumps(json.loads(text)), tmp_path / "d.json"))
    assert not Path(target.path).exists()


def test_a_damaged_document_in_a_folder_is_listed(fresh: Open, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    base = talk(fresh())
    save(exported(base), folder / "good.json")
    save(exported(base).replace('"n3","parent":"n2"', '"n3","parent":"n9"'), folder / "bad.json")
    result = ti.import_paths(fresh(), [str(folder)])
    assert [row["added"] for row in result["timelines"]] == [10]
    ((path, why),) = [(each["path"], each["why"]) for each in result["unrecognized"]]
    assert path.endswith("bad.json") and why.startswith("line 5 (n3): its parent n9")


def test_more_tokens_than_can_be_added_up_are_refused_below_what_is_here(
    fresh: Open, tmp_path: Path
) -> None:
    source, target = talk(fresh()), fresh()
    brought(target, document_of(source, tmp_path / "d.json"))
    source.run("append", {"role": "user", "text": "x", "tokens": 9})
    text = exported(source, first=11, last=11).replace(
        '"tokens":9', f'"tokens":{timeline.TOKENS_MAX}'
    )
    before = content_of(target)
    with pytest.raises(timeline.Refused, match="n11: token overflow"):
        brought(target, save(text, tmp_path / "e.json"))
    assert content_of(target) == before


JUNK = [None, True, -1, 0, 1, 5, 1.5, "", "n1", "n3", "n9", "x", [], {}, ["n1"], [{}], {"a": 1}]


@pytest.mark.parametrize("seed", range(12))
def test_random_damage_is_refused_or_comes_in_whole(fresh: Open, tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    source = talk(fresh())
    text = exported(source, **rng.choice([{}, {}, {"branch": "side"}, {"first": 2, "last": 8}]))
    path = tmp_path / "d.json"
    for _ in range(60):
        if rng.random() < 0.4:
            data = bytearray(text.encode())
            for _ in range(rng.randint(1, 3)):
                data[rng.randrange(len(data))] = rng.choice(b'{}[]",:0n1-\\ \n\xff')
            path.write_bytes(data)
        else:
            document = json.loads(text)
            for _ in range(rng.randint(1, 2)):
                junk(rng, document)
            save(rng.choice([laid_out, json.dumps])(document), path)
        target = fresh()
        target.run("create", {})
        before = content_of(target)
        try:
            ti.import_paths(target, [str(path)], format="timeline-json")
        except timeline.TimelineError:
            assert content_of(target) == before
            continue
        before = content_of(target)
        ti.import_paths(target, [str(path)], format="timeline-json")
        assert content_of(target) == before


def junk(rng: random.Random, document: Json) -> None:
    """Put something else in a random place, or take it out."""
    place: Any = document
    while True:
        steps = list(place) if isinstance(place, dict) else list(range(len(place)))
        if not steps:
            return
        step = rng.choice(steps)
        inner = place[step]
        if isinstance(inner, (dict, list)) and inner and rng.random() < 0.9:
            place = inner
        elif rng.random() < 0.15:
            del place[step]
            return
        else:
            place[step] = rng.choice(JUNK)
            return


def test_pictures_of_a_part_say_what_they_hold(fresh: Open) -> None:
    base = talk(fresh())
    made = timeline_export.picture(base, 0, "json", first=2, last=4)
    assert (made.nodes, made.edges) == (3, 2)
    with pytest.raises(timeline.InvalidArgument):
        timeline_export.picture(base, 0, "json", first=2)
    with pytest.raises(timeline.NotFound):
        timeline_export.picture(base, 0, "json", branch="none")
