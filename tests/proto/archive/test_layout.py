"""Opening and making an archive where there cannot be one."""

from collections.abc import Callable
from pathlib import Path

import pytest
from spanlite.archive.layout import FORMAT_FILE, Archive
from spanlite.errors import ArchiveError

WAYS: list[Callable[[Path], Archive]] = [Archive.open, Archive.create]


@pytest.mark.parametrize("use", WAYS)
def test_a_file_is_no_archive(use: Callable[[Path], Archive], tmp_path: Path) -> None:
    file = tmp_path / "passwd"
    file.write_text("x")
    for path in (file, file / "below"):
        with pytest.raises(ArchiveError, match="passwd"):
            use(path)
    assert file.read_text() == "x"


@pytest.mark.parametrize("use", WAYS)
def test_a_name_that_is_too_long(use: Callable[[Path], Archive], tmp_path: Path) -> None:
    with pytest.raises(ArchiveError, match="too long"):
        use(tmp_path / ("x" * 300))


@pytest.mark.parametrize("use", WAYS)
def test_a_folder_in_the_place_of_the_marker(
    use: Callable[[Path], Archive], tmp_path: Path
) -> None:
    (tmp_path / FORMAT_FILE).mkdir()
    with pytest.raises(ArchiveError, match="Is a directory"):
        use(tmp_path)


def test_what_was_made_opens(tmp_path: Path) -> None:
    made = Archive.create(tmp_path / "new" / "archive", 4)
    assert Archive.open(made.root) == made == Archive.create(made.root, 4)
