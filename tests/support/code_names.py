"""Which names the package has, and which of a page's names it does not."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "dpfedc"
PLACES = (ROOT, SOURCE, ROOT / "tests", ROOT / "docs")
"""Where the paths on a page may start."""
PATH = re.compile(r"(?<![\w./:-])(?:[\w.*-]+/)+[\w.*-]+\.(?:py|md|toml)\b|`[\w*]+\.py`")
TOPS = ("src", "tests", "benchmarks", "examples")
PLACED = re.compile(r"`(\w+)[\w.]*`,? \(([\w/]+\.py)")
"""A name, and the file that the page says it is in."""


@cache
def parsed(file: Path) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(ast.parse(file.read_text(encoding="utf-8"))))


@cache
def package_names() -> frozenset[str]:
    """Return all that the package's code defines, uses or spells out as a text of one word."""
    found: set[str] = {file.stem for file in SOURCE.rglob("*.py")}
    for file in SOURCE.rglob("*.py"):
        for node in parsed(file):
            for field in ("name", "id", "attr", "arg"):
                found.add(getattr(node, field, None) or "")
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.add(node.value)
    return frozenset(found)


@cache
def members() -> dict[str, set[str]]:
    """Return the methods, fields and attributes of every class, with those of its bases."""
    own: dict[str, set[str]] = {}
    bases: dict[str, list[str]] = {}
    for file in SOURCE.rglob("*.py"):
        for node in parsed(file):
            if isinstance(node, ast.ClassDef):
                own[node.name] = {name for part in node.body for name in _defined(part)}
                bases[node.name] = [b.id for b in node.bases if isinstance(b, ast.Name)]

    def whole(name: str) -> set[str]:
        return own.get(name, set()).union(*(whole(base) for base in bases.get(name, [])))

    return {name: whole(name) for name in own}


def _defined(node: ast.AST) -> list[str]:
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    return [target.id for target in targets if isinstance(target, ast.Name)]


@cache
def test_names() -> frozenset[str]:
    files = (ROOT / "tests").rglob("test_*.py")
    return frozenset(n.name for f in files for n in parsed(f) if isinstance(n, ast.FunctionDef))


MADE = "hospitals/"
"""Files in this folder are made by a command on the page; a test runs those commands."""


def unknown_paths(page: str, folder: Path = ROOT) -> set[str]:
    """Return the paths of files that do not exist, from any place where paths may start.

    A Python file between backticks may be named without its folder.
    """

    def is_there(path: str) -> bool:
        if path.startswith(MADE):
            return True
        if path.startswith("`"):
            return any(next((ROOT / top).rglob(path[1:-1]), None) for top in TOPS)
        return any(next(place.glob(path), None) for place in (*PLACES, folder))

    return {path for path in PATH.findall(page) if not is_there(path)}


def unknown_names(page: str) -> set[str]:
    """Return the paths, tests and names between backticks that do not exist.

    What stands between backticks is a name if it is one word of letters, digits, dots and
    underscores, perhaps with a value (`epsilon=None`). The part after a class's dot must be the
    class's own.
    """
    wrong = unknown_paths(page)
    for name in re.findall(r"`\.?([A-Za-z_][\w.]*)(?:=[^`]*|\(\w*\))?`", page):
        if name.endswith((".py", ".md", ".toml")):
            continue  # a path
        head, *rest = name.split(".")
        if head.startswith("test_"):
            good = head in test_names()
        elif rest and head in members():
            good = rest[0] in members()[head]
        else:
            good = package_names().issuperset([head, *rest])
        wrong |= set() if good else {name}
    return wrong


def misplaced_names(page: str) -> set[str]:
    """Return the names that a page says are in a file which does not define them."""
    wrong = set()
    for name, path in PLACED.findall(page):
        if (SOURCE / path).is_file():
            top = {n for node in parsed(SOURCE / path) for n in _defined(node)}
            wrong |= set() if name in top else {f"{name} ({path})"}
    return wrong
