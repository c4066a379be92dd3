"""Files appear whole or not at all; what is no file is written to, never replaced."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
from spanlite.drafts import Draft, FileBusyError, draft_of, is_written, unused


def test_a_file_is_replaced_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "out"
    path.write_text("before")
    draft = Draft(path)
    draft.path.write_text("after")
    assert path.read_text() == "before"
    draft.put()
    assert path.read_text() == "after" and list(tmp_path.iterdir()) == [path]


def test_a_discarded_draft_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "out"
    path.write_text("before")
    draft = Draft(path)
    draft.path.write_text("half")
    draft.discard()
    draft.discard()
    assert path.read_text() == "before" and list(tmp_path.iterdir()) == [path]


def test_a_pipe_stays_a_pipe(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    found: list[str] = []
    reader = threading.Thread(target=lambda: found.append(path.read_text()))
    reader.start()
    draft = Draft(path)
    draft.path.write_text("hello")
    draft.put()
    reader.join()
    assert found == ["hello"] and path.is_fifo()


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "target").write_text("before")
    path = tmp_path / "link"
    path.symlink_to(tmp_path / "target")
    draft = Draft(path)
    draft.path.write_text("after")
    draft.put()
    assert path.is_symlink() and (tmp_path / "target").read_text() == "after"
    draft = Draft(path)
    draft.path.write_text("half")
    assert (tmp_path / "target").read_text() == "after"
    with pytest.raises(FileBusyError):
        Draft(tmp_path / "target")
    draft.discard()
    assert sorted(tmp_path.iterdir()) == [path, tmp_path / "target"]


def test_a_link_to_a_device_or_to_an_open_file_is_written_through(tmp_path: Path) -> None:
    for target in (os.devnull, "/dev/stdout", "/proc/self/fd/1"):
        path = tmp_path / "link"
        path.symlink_to(target)
        assert draft_of(path) == path
        path.unlink()
    circle = tmp_path / "circle"
    circle.symlink_to(circle)
    with pytest.raises(OSError, match="Too many levels"):
        draft_of(circle)


def test_what_an_interrupted_process_has_left_stays(tmp_path: Path) -> None:
    path = tmp_path / "out"
    draft_of(path).write_text("left")
    again = Draft(path)
    again.path.write_text("again")
    with pytest.raises(FileBusyError):
        Draft(path)
    again.put()
    assert path.read_text() == "again" and draft_of(path).read_text() == "left"


def test_a_draft_that_somebody_has_deleted_is_missed(tmp_path: Path) -> None:
    first = Draft(tmp_path / "out")
    first.path.unlink()
    second = Draft(tmp_path / "out")
    second.path.write_text("second")
    with pytest.raises(FileNotFoundError):
        first.put()
    first.discard()
    assert second.path.read_text() == "second"
    second.put()


def test_a_file_that_has_come_meanwhile_is_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "a.zst"
    draft = Draft(path)
    draft.path.write_text("ours")
    path.write_text("theirs")
    assert draft.put_beside() == tmp_path / "a.1.zst"
    assert (path.read_text(), (tmp_path / "a.1.zst").read_text()) == ("theirs", "ours")
    assert len(list(tmp_path.iterdir())) == 2


def test_a_device_is_written_to() -> None:
    assert draft_of(Path(os.devnull)) == Path(os.devnull)


def test_one_process_at_a_time_makes_a_file(tmp_path: Path) -> None:
    path = tmp_path / "out"
    first = Draft(path)
    first.path.write_text("first")
    assert is_written(first.path)
    with pytest.raises(FileBusyError, match="another process"):
        Draft(path)
    first.put()
    second = Draft(path)
    second.path.write_text("second")
    first.discard()  # it is done and must take nothing away
    second.put()
    assert path.read_text() == "second" and list(tmp_path.iterdir()) == [path]


def test_a_device_is_nobodys_draft() -> None:
    first, second = Draft(Path(os.devnull)), Draft(Path(os.devnull))
    first.put()
    second.discard()
    assert Path(os.devnull).exists() and unused(Path(os.devnull)) == Path(os.devnull)


def test_a_name_that_replaces_nothing(tmp_path: Path) -> None:
    path = tmp_path / "host7.spans.zst"
    assert unused(path) == path
    draft_of(path).touch()  # of a run that was killed before it wrote anything
    assert unused(path) == path
    draft_of(path).write_text("left")
    assert unused(path) == tmp_path / "host7.spans.1.zst"
    (tmp_path / "host7.spans.1.zst").touch()
    running = Draft(tmp_path / "host7.spans.2.zst")
    assert unused(path) == tmp_path / "host7.spans.3.zst"
    running.discard()
