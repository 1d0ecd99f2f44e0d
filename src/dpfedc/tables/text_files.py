"""CSV and its kin: one line is one row, whatever stands in it.

No text in one row changes another row, or how many there are: a quote that is not closed, or a lone
carriage return, breaks its own row. pyarrow reads what it reads alike (`arrow_lines`), if it is
there; all else is read line by line, here.
"""

from __future__ import annotations

import codecs
import csv
import gzip
import math
import os
import re
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, TypeVar, cast

import numpy as np

from dpfedc.errors import InvalidInput
from dpfedc.tables.cells import number
from dpfedc.tables.stored import Block, StoredTable, Texts, by_name, is_header, readable

if TYPE_CHECKING:
    from dpfedc.tables.arrow_lines import ArrowLines

T = TypeVar("T")

SUFFIXES = (".csv", ".csv.gz", ".tsv", ".tsv.gz")

_BOM = b"\xef\xbb\xbf"
_MAX_HEADER = 2**26
_FEW_LINES = 256
_AHEAD = min(4, os.cpu_count() or 1)
_ONE_COLUMN = "\x1f"  # the delimiter of a table that has none


@dataclass(frozen=True)
class Dialect:
    """How a text file is written; without a delimiter, the header tells which it is."""

    delimiter: str | None = None
    encoding: str = "utf-8"
    decimal: str = "."

    def __post_init__(self) -> None:
        if self.delimiter == "tab":
            object.__setattr__(self, "delimiter", "\t")
        mark = self.delimiter
        if mark is not None and (len(mark) != 1 or not mark.isascii() or mark in '\r\n"\0'):
            raise InvalidInput(f"delimiter must be one character (or tab), got {mark!r}")
        if mark is not None and mark.isalnum():
            raise InvalidInput(f"delimiter must be no letter or digit, got {mark!r}")
        if self.decimal not in (".", ","):
            raise InvalidInput(f"decimal must be '.' or ',', got {self.decimal!r}")
        if mark == self.decimal:
            raise InvalidInput(f"delimiter and decimal must differ, got {mark!r} for both")
        if not _is_ascii_and_more(self.encoding):
            wanted = "utf-8, latin-1, cp1252 or another in which ASCII stays ASCII"
            raise InvalidInput(f"encoding must be {wanted}, got {self.encoding!r}")


def text_table(file: Path, dialect: Dialect) -> StoredTable:
    """Open a text file with a header; whatever a row is, nothing is raised."""
    with readable(file), _opened(file) as stream:
        raw = stream.readline(_MAX_HEADER)
    line = raw.removeprefix(_BOM)
    if line.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise InvalidInput(f"{file} must be text in which ASCII stays ASCII, got UTF-16")
    to_utf8 = _to_utf8(dialect.encoding)
    line = line if to_utf8 is None else to_utf8(line)
    header = line.decode("utf-8", "replace").removesuffix("\n").removesuffix("\r")
    delimiter = _delimiter(file, header, dialect)
    names = [name.strip() for name in _cells(header, delimiter)]
    if len(raw) == _MAX_HEADER or not is_header(names):
        raise InvalidInput(f"{file} must start with a row of column names, one for each column")
    places = by_name(file, names, range(len(names)))
    limit = max(2**20, 64 * len(names))

    def read(numbers: Sequence[str], texts: Sequence[str]) -> Iterator[Block]:
        lines = Lines(
            len(names), delimiter, dialect.decimal,
            tuple(places[name] for name in numbers), tuple(places[name] for name in texts),
        )  # fmt: skip
        fast = _fast(lines, limit if to_utf8 is None else 4 * limit)
        with readable(file), _opened(file) as stream:
            stream.readline(_MAX_HEADER)
            parts = whole_lines(stream, limit, 4 * limit if fast else 2**18)

            def blocks(data: bytes) -> list[Block]:
                return list(_blocks(data if to_utf8 is None else to_utf8(data), lines, fast))

            yield from chain.from_iterable(_ahead(blocks, parts))

    return StoredTable(str(file), dict.fromkeys(names), frozenset(), read, decimal=dialect.decimal)


@dataclass(frozen=True)
class Lines:
    """What a line must look like, and which of its cells are read, as numbers and as texts."""

    n_columns: int
    delimiter: str
    decimal: str
    numbers: tuple[int, ...]
    texts: tuple[int, ...]

    def block(self, data: bytes) -> Block:
        """Read lines, each for itself."""
        gone = [""] * self.n_columns
        found = [
            _cells(line.decode("utf-8", "replace").removesuffix("\r"), self.delimiter)
            for line in data.split(b"\n")[:-1]
        ]
        broken = np.array([len(cells) != self.n_columns for cells in found], dtype=np.bool_)
        rows = [cells if len(cells) == self.n_columns else gone for cells in found]
        X = np.empty((len(rows), len(self.numbers)))
        for k, j in enumerate(self.numbers):
            X[:, k] = [self.number(cells[j]) for cells in rows]
        columns = (Texts.of(cells[j].strip() for cells in rows) for j in self.texts)
        return Block(X, tuple(columns), broken)

    def number(self, cell: str) -> float:
        """Return the number that a cell spells, NaN if it spells none."""
        if self.decimal == ",":
            cell = "none" if "." in cell else cell.replace(",", ".")
        value = number(cell.strip())
        return math.nan if value is None else value


def whole_lines(stream: BinaryIO, limit: int, size: int) -> Iterator[bytes]:
    """Yield the rest of a file in blocks of whole lines, each with its newline.

    A line of more than `limit` bytes comes as a blank one, so that memory does not grow with it.
    """
    rest = b""
    while chunk := stream.read(size):
        end = chunk.rfind(b"\n") + 1
        if end:
            yield _short_lines(b"".join((rest, memoryview(chunk)[:end])), limit)
            rest = b""
        rest = (rest + chunk[end:])[: limit + 1]  # this many are enough to be too many
    if rest:
        yield _short_lines(rest + b"\n", limit)


def longest_fits(data: bytes, limit: int) -> int:
    """Return where the first line of more than `limit` bytes starts, or the end of the data."""
    start = 0
    while start < len(data):
        end = data.rfind(b"\n", start, start + limit + 1) + 1
        if not end:
            break
        start = end
    return start


def _short_lines(data: bytes, limit: int) -> bytes:
    """Return the lines, those that are too long as blank ones."""
    parts = []
    while (start := longest_fits(data, limit)) < len(data):
        parts.append(data[:start] + b"\n")
        data = data[data.index(b"\n", start) + 1 :]
    return b"".join([*parts, data]) if parts else data


def _blocks(data: bytes, lines: Lines, fast: ArrowLines | None) -> Iterator[Block]:
    """Read lines the fast way, or else their halves, and the last few for themselves."""
    block = fast.block(data) if fast is not None else None
    if block is None and data.count(b"\n") <= _FEW_LINES:
        block = lines.block(data)
    if block is not None:
        yield block
        return
    middle = len(data) // 2
    cut = data.rfind(b"\n", 0, middle) + 1 or data.index(b"\n", middle) + 1
    yield from _blocks(data[:cut], lines, fast)
    yield from _blocks(data[cut:], lines, fast)


def _ahead(work: Callable[[bytes], T], parts: Iterator[bytes]) -> Iterator[T]:
    """Return what is made of each part, in order; a few are worked on ahead."""
    with ThreadPoolExecutor(_AHEAD) as pool:
        waiting: deque[Future[T]] = deque()
        for part in parts:
            waiting.append(pool.submit(work, part))
            if len(waiting) > _AHEAD:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def _cells(line: str, delimiter: str) -> list[str]:
    """Return a line's cells; none if it is blank or cannot be told apart."""
    if '"' not in line and "\r" not in line:
        return line.split(delimiter) if line else []
    try:
        return next(csv.reader([line], delimiter=delimiter), [])
    except csv.Error:  # a carriage return within, or a cell beyond the parser's limit
        return []


def _fast(lines: Lines, longest: int) -> ArrowLines | None:
    try:
        from dpfedc.tables.arrow_lines import ArrowLines
    except ImportError:  # pyarrow is an extra
        return None
    return ArrowLines(lines, longest)


def _opened(file: Path) -> BinaryIO:
    if file.suffix.lower() == ".gz":
        return cast(BinaryIO, gzip.open(file, "rb"))
    return file.open("rb")


def _delimiter(file: Path, header: str, dialect: Dialect) -> str:
    """Return the delimiter that is given, or else the one that the header has outside quotes."""
    if file.name.lower().endswith((".tsv", ".tsv.gz")):
        if dialect.delimiter not in (None, "\t"):
            raise InvalidInput(f"{file} must be separated by tabs, got {dialect.delimiter!r}")
        return "\t"
    if dialect.delimiter is not None:
        return dialect.delimiter
    bare = re.sub('"[^"]*"', "", header)
    marks = [mark for mark in ",;\t|" if mark in bare]
    if len(marks) > 1:
        raise InvalidInput(
            f"{file} must have one of , ; tab | between its column names, got several: give the "
            "delimiter (--delimiter)"
        )
    mark = marks[0] if marks else _ONE_COLUMN
    if mark == dialect.decimal:
        raise InvalidInput(f"{file}: delimiter and decimal must differ, got {mark!r} for both")
    return mark


def _is_ascii_and_more(encoding: str) -> bool:
    # Those that shift into another alphabet, or read escapes, first.
    plain = (
        rb"\x41\u0041",
        b"+AEE-",
        b"~{AA~}",
        b"\x1b$B!!\x1b(B",
        b"\x0e!!\x0f",
        bytes(range(128)),
    )
    try:
        return all(text.decode(encoding, "replace") == text.decode() for text in plain)
    except (LookupError, ValueError, TypeError):
        return False


def _to_utf8(encoding: str) -> Callable[[bytes], bytes] | None:
    """Return what brings whole lines to UTF-8, however they are cut; None where they are in it."""

    def recoded(data: bytes) -> bytes:
        return data.decode(encoding, "replace").encode("utf-8", "replace")

    if codecs.lookup(encoding).name in ("utf-8", "utf-8-sig", "ascii"):
        return None
    if len(bytes(range(256)).decode(encoding, "replace")) == 256:  # a byte is a character
        return recoded
    return lambda data: b"\n".join(map(recoded, data.split(b"\n")))  # some swallow newlines
