"""YAML read strictly, and the place of every fault."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from flashcheck import yamlfile
from flashcheck.errors import ConfigError


def written(tmp_path: Path, text: str | bytes) -> Path:
    path = tmp_path / "file.yaml"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def fault(tmp_path: Path, text: str | bytes) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        yamlfile.read(written(tmp_path, text))
    assert "\n" not in str(caught.value)
    return caught.value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-20", 1e-20),
        ("1E5", 1e5),
        ("-2e3", -2000.0),
        ("1.5e-3", 1.5e-3),
        ("1.0e+3", 1000.0),
        ("65_536", 65536),
        ("0.37", 0.37),
        ("e5", "e5"),
        ("1e", "1e"),
        ("'1e5'", "1e5"),
    ],
)
def test_numbers_are_read_as_people_write_them(tmp_path: Path, text: str, value: Any) -> None:
    read = yamlfile.read(written(tmp_path, f"x: {text}\n")).data["x"]
    assert (type(read), read) == (type(value), value)


@pytest.mark.parametrize(
    ("text", "line", "key"),
    [
        ("a: 1\nb: 2\na: 3\n", 3, "a"),
        ("a:\n  b: 1\n  c: 2\n  b: 3\n", 4, "b"),
        ("a:\n  - x: 1\n    y: 2\n  - x: 1\n    x: 2\n", 5, "x"),
        ("a: {b: 1,\n    b: 2}\n", 2, "b"),
        ("a: &anchor\n  b: 1\n  b: 2\nc: *anchor\n", 3, "b"),
    ],
)
def test_a_duplicate_key_is_refused_where_it_is(
    tmp_path: Path, text: str, line: int, key: str
) -> None:
    error = fault(tmp_path, text)
    assert (error.line, error.key.split(".")[-1]) == (line, key)
    assert "duplicate key" in str(error)


def test_a_duplicate_names_the_line_of_the_first(tmp_path: Path) -> None:
    assert "line 2" in str(fault(tmp_path, "a: 1\nb: 2\nc: 3\nb: 4\n"))


def test_the_same_key_in_two_mappings_is_no_duplicate(tmp_path: Path) -> None:
    read = yamlfile.read(written(tmp_path, "a: {x: 1}\nb: {x: 1}\nc: [{x: 1}, {x: 2}]\n"))
    assert read.data == {"a": {"x": 1}, "b": {"x": 1}, "c": [{"x": 1}, {"x": 2}]}


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", 1),
        ("# nothing but a comment\n", 1),
        ("- 1\n- 2\n", 1),
        ("just words\n", 1),
        ("a: 1\nb: [1\nc: 2\n", 3),
        ("a: 1\n\tb: 2\n", 2),
        ("a: 1\nb: @x\n", 2),
        ("a: 1\n---\nb: 2\n", 2),
        ("a: 1\nb: *nowhere\n", 2),
        ("a: 1\nb: !!python/name:os.system\n", 2),
        ("a: 1\nb: !unknown 3\n", 2),
        ("a: 1\nb: 'never closed\n", 3),
        ("a: 1\nb: a\x07c\n", 2),
        ("a: 1\n? [x, y]\n: 2\n", 2),
        ("a: 1\n? {x: y}\n: 2\n", 2),
        ("a: 1\nb: 2020-13-45\n", 2),
    ],
)
def test_what_is_not_one_mapping_is_refused_with_its_line(
    tmp_path: Path, text: str, line: int
) -> None:
    assert fault(tmp_path, text).line == line


@pytest.mark.parametrize(
    "text", [b"a: caf\xe9\n", b"\xff\xfea\x00:\x001\x00", b"a: " + b"[" * 5000]
)
def test_a_hostile_file_is_refused(tmp_path: Path, text: bytes) -> None:
    assert "file.yaml" in str(fault(tmp_path, text))


@pytest.mark.parametrize("path", ["absent.yaml", "."])
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, path: str) -> None:
    with pytest.raises(ConfigError) as caught:
        yamlfile.read(tmp_path / path)
    assert str(tmp_path / path) in str(caught.value)
    assert "\n" not in str(caught.value)


NESTED = """\
top: 1
list:
  - name: first
    inner:
      deep: 1
  - {name: second,
     inner: {deep: 2}}
"""


@pytest.mark.parametrize(
    ("at", "line", "key"),
    [
        (["top"], 1, "top"),
        (["list"], 2, "list"),
        (["list", 0], 3, "list[0]"),
        (["list", 0, "inner", "deep"], 5, "list[0].inner.deep"),
        (["list", 1, "inner", "deep"], 7, "list[1].inner.deep"),
        # A validator's union tag is no key of the file.
        (["quantization", "list", 0, "normal", "name"], 3, "list[0].name"),
        # A missing key is named, at the mapping that lacks it.
        (["list", 0, "absent"], 3, "list[0].absent"),
        ([], 1, ""),
    ],
)
def test_the_place_of_a_fault(tmp_path: Path, at: list[str | int], line: int, key: str) -> None:
    error = yamlfile.read(written(tmp_path, NESTED)).error("wrong", at)
    assert (error.line, error.key) == (line, key)
    expected = f"{tmp_path / 'file.yaml'}:{line}: {key}: wrong".replace(": : ", ": ")
    assert str(error) == expected
