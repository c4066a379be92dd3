"""Files appear whole or not at all; what is no file is written to, never replaced."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from spanlite.drafts import discard, draft_of, put


def test_a_file_is_replaced_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "out"
    path.write_text("before")
    draft = draft_of(path)
    draft.write_text("after")
    assert path.read_text() == "before"
    put(draft, path)
    assert path.read_text() == "after" and list(tmp_path.iterdir()) == [path]


def test_a_discarded_draft_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "out"
    path.write_text("before")
    draft = draft_of(path)
    draft.write_text("half")
    discard(draft, path)
    discard(draft, path)
    assert path.read_text() == "before" and list(tmp_path.iterdir()) == [path]


def test_a_pipe_stays_a_pipe(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    found: list[str] = []
    reader = threading.Thread(target=lambda: found.append(path.read_text()))
    reader.start()
    draft = draft_of(path)
    draft.write_text("hello")
    put(draft, path)
    discard(draft, path)
    reader.join()
    assert found == ["hello"] and path.is_fifo()


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "target").write_text("before")
    path = tmp_path / "link"
    path.symlink_to(tmp_path / "target")
    draft = draft_of(path)
    draft.write_text("after")
    put(draft, path)
    assert path.is_symlink() and (tmp_path / "target").read_text() == "after"


def test_a_device_is_written_to() -> None:
    assert draft_of(Path(os.devnull)) == Path(os.devnull)
