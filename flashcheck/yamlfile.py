"""YAML read strictly: safe types only, no duplicate keys, and the line of every key kept."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from flashcheck.errors import ConfigError

Place = Sequence[str | int]


class _Loader(yaml.SafeLoader):
    """SafeLoader that also reads ``1e-20`` as a number, as YAML 1.2 and every user does."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """Give a value that cannot be made, such as the 45th of a month, its place."""
        try:
            return super().construct_object(node, deep)
        except ValueError as error:
            problem = f"{error} in {node.value!r}"
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark) from None


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(\d[\d_]*)(\.[\d_]*)?[eE][-+]?\d+$"),
    list("-+0123456789"),
)


@dataclass(frozen=True)
class YamlFile:
    """A parsed file: its data, and its nodes, which know their lines."""

    path: Path
    data: Any
    root: yaml.Node

    def error(self, message: str, at: Place) -> ConfigError:
        """An error at a place given as keys and indices, as far as the file has it.

        Elements of ``at`` that the file does not have are passed over (a validator's union tags),
        except the last, which names a missing key.
        """
        node, line, key = self.root, self.root.start_mark.line, ""
        for depth, element in enumerate(at):
            child = _child(node, element)
            if child is not None:
                line, node = child
            elif depth < len(at) - 1:
                continue
            key += f"[{element}]" if isinstance(element, int) else f".{element}"
        return ConfigError(message, file=self.path, line=line + 1, key=key.lstrip("."))


def read(path: Path) -> YamlFile:
    """Read one YAML document.

    Raises:
        ConfigError: the file cannot be read or parsed, is not one mapping, or repeats a key.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError("no such file; 'flashcheck list' names the suites", file=path) from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot be read: {error}; name another", file=path) from None
    try:
        loader = _Loader(text)
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise ConfigError(
            f"not valid YAML: the character {chr(error.character)!r} is not allowed",
            file=path,
            line=line,
        ) from None
    try:
        root = loader.get_single_node()
        if not isinstance(root, yaml.MappingNode):
            raise ConfigError("must be a mapping of keys to values", file=path, line=1)
        _refuse_duplicates(root, path)
        data = loader.construct_document(root)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        problem = " ".join((error.problem or "cannot be parsed").split())
        raise ConfigError(
            f"not valid YAML: {problem}", file=path, line=mark.line + 1 if mark else None
        ) from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigError(f"not valid YAML: {' '.join(str(error).split())}", file=path) from None
    finally:
        loader.dispose()
    return YamlFile(path, data, root)


def _child(node: yaml.Node, element: str | int) -> tuple[int, yaml.Node] | None:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if key.value == str(element):
                return key.start_mark.line, value
    elif isinstance(node, yaml.SequenceNode) and element in range(len(node.value)):
        value = node.value[int(element)]
        return value.start_mark.line, value
    return None


def _refuse_duplicates(root: yaml.Node, path: Path) -> None:
    pending, done = [root], set()
    while pending:
        node = pending.pop()
        if id(node) in done:
            continue
        done.add(id(node))
        if isinstance(node, yaml.MappingNode):
            seen: dict[str, int] = {}
            for key, value in node.value:
                line = key.start_mark.line + 1
                if not isinstance(key, yaml.ScalarNode):
                    raise ConfigError("a key must be a plain word", file=path, line=line)
                if key.value in seen:
                    raise ConfigError(
                        f"duplicate key; remove it or line {seen[key.value]}",
                        file=path,
                        line=line,
                        key=str(key.value),
                    )
                seen[key.value] = line
                pending.append(value)
        elif isinstance(node, yaml.SequenceNode):
            pending.extend(node.value)
