from __future__ import annotations

import pytest

from collbench.errors import InputError
from collbench.tomlfile import TomlFile

TEXT = """\
# a comment: name = "no"
name = "x"
"quoted" = 1
list = [
  1,
]
[table]
name = 2
[[layers]]
name = "first"
repeat = 3
[[layers]]
# nothing
repeat = 4
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "w.toml"
    path.write_text(TEXT)
    return TomlFile(path, "a sweep")


@pytest.mark.parametrize(
    ("key", "table", "occurrence", "line"),
    [
        ("name", None, 0, 2),
        ("quoted", None, 0, 3),
        ("list", None, 0, 4),
        ("table", None, 0, 7),
        ("name", "table", 0, 8),
        ("layers", None, 0, 9),
        ("name", "layers", 0, 10),
        ("repeat", "layers", 0, 11),
        ("repeat", "layers", 1, 14),
        ("name", "layers", 1, 12),  # not written there: the line of its [[layers]]
        ("forward_ms", "layers", 0, 9),
    ],
)
def test_where_says_file_line_and_key(file, key, table, occurrence, line):
    assert file.where(key, table, occurrence) == f"{file.path}:{line}: {key}"


def test_the_data_are_toml(file):
    assert file.data["layers"] == [{"name": "first", "repeat": 3}, {"repeat": 4}]


@pytest.mark.parametrize(
    ("text", "line"),
    [("a = 1\nb = \n", 2), ("a = 1\na = 2\n", 2), ("= 3\n", 1), ("a = [1,\n2,\n", 3), ('a = "open\n', 1)],
)
def test_a_syntax_error_names_its_line(tmp_path, text, line):
    path = tmp_path / "bad.toml"
    path.write_text(text)
    with pytest.raises(InputError, match=rf"bad\.toml:{line}: not TOML: .*: expected a sweep$"):
        TomlFile(path, "a sweep")


def test_a_missing_file_a_folder_and_bytes_are_refused(tmp_path):
    with pytest.raises(InputError, match=r"none\.toml: cannot be read \(No such file or directory\): expected a sweep"):
        TomlFile(tmp_path / "none.toml", "a sweep")
    with pytest.raises(InputError, match=r"cannot be read \(Is a directory\)"):
        TomlFile(tmp_path, "a sweep")
    (tmp_path / "b.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match=r"b\.toml: is not text: expected a sweep"):
        TomlFile(tmp_path / "b.toml", "a sweep")
