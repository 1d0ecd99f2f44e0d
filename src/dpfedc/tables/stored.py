"""A site's table as it is stored: its columns, its rows in a fixed order, and their numbers.

No value makes reading fail: a cell that is no number is NaN, and a row that does not fit is broken.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dpfedc.errors import InvalidInput
from dpfedc.tables.formats import by_name, is_header, number, read_columns, readable

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Block = Sequence[Sequence[Any] | npt.NDArray[Any]]
"""Some rows of a table, as one sequence of cells per column."""

BLOCK_ROWS = 4096
BROKEN = float("nan")
"""Every cell of a row with too few or too many; told from other missing cells by identity."""


@dataclass(frozen=True)
class StoredTable:
    """A table that was found: `blocks` reads the named columns of all rows, in a fixed order.

    `columns` says which columns hold numbers (None: only the values tell); `keys` are no features
    unless asked for.
    """

    columns: Mapping[str, bool | None]
    keys: frozenset[str]
    blocks: Callable[[Sequence[str]], Iterator[Block]]


def file_table(file: Path) -> StoredTable:
    """Open a file; its rows have the order they are in."""
    if file.suffix.lower() == ".csv":
        return _csv_table(file)
    features, others = read_columns(file)

    def blocks(names: Sequence[str]) -> Iterator[Block]:
        with readable(file):
            block = [features[name] if name in features else others[name] for name in names]
        if len({len(cells) for cells in block}) > 1:
            raise InvalidInput(f"{file}: arrays must have one value per record")
        yield block

    kinds = {name: cells.dtype.kind in "biuf" or None for name, cells in features.items()}
    keys = frozenset(others).difference(features)  # the other arrays of an archive
    return StoredTable({**kinds, **dict.fromkeys(keys, False)}, keys, blocks)


def _csv_table(file: Path) -> StoredTable:
    """Open a CSV file; whatever a row is, nothing is raised: it is read, or it is broken."""
    names = [name.strip() for name in next(_csv_rows(file), [])]
    if not is_header(names):
        raise InvalidInput(f"{file} must start with a row of column names, one for each column")
    places = by_name(file, names, range(len(names)))

    def rows(wanted: Sequence[str]) -> Iterator[list[Any]]:
        chosen, broken = [places[name] for name in wanted], [BROKEN] * len(wanted)
        for row in islice(_csv_rows(file), 1, None):
            yield [row[j].strip() for j in chosen] if len(row) == len(names) else broken

    def blocks(wanted: Sequence[str]) -> Iterator[Block]:
        left = rows(wanted)
        while block := list(islice(left, BLOCK_ROWS)):
            yield list(zip(*block, strict=True))

    return StoredTable(dict.fromkeys(names), frozenset(), blocks)


def _csv_rows(file: Path) -> Iterator[list[str]]:
    """Read a CSV file's rows, the header too: every line is a row, whatever stands in it.

    Each line is read for itself, so that no text in one row changes another, or how many there are.
    A quote that is not closed, or a lone carriage return, breaks its own row.
    """
    with readable(file), file.open("rb") as lines:
        for i, line in enumerate(lines):
            text = line.decode("utf-8" if i else "utf-8-sig", errors="replace")
            try:
                yield next(csv.reader([text.removesuffix("\n").removesuffix("\r")]), [])
            except csv.Error:  # a carriage return within, or a cell beyond the parser's limit
                yield []


def numbers(block: Block) -> tuple[Floats, Bools]:
    """Return the numbers of a block, NaN where there is none, and where there is a word instead.

    A cell's number depends on that cell alone: a faster way for cells that look alike would let
    one record change how another is read.
    """
    shape = (len(block[0]), len(block))
    X, words = np.empty(shape), np.zeros(shape, dtype=np.bool_)
    for j, cells in enumerate(block):
        if isinstance(cells, np.ndarray) and cells.dtype.kind in "biuf":
            with np.errstate(over="ignore"):  # beyond float64 lies infinity
                X[:, j] = cells
        else:
            values = [number(cell) for cell in cells]
            X[:, j] = values  # None becomes NaN
            words[:, j] = [value is None for value in values]
    return X, words


def word_columns(table: StoredTable, names: Sequence[str]) -> list[str]:
    """Return which columns hold no numbers: by type, or else by most of their filled cells."""
    unsure = [name for name in names if table.columns[name] is None]
    n_words, n_numbers = np.zeros(len(unsure)), np.zeros(len(unsure))
    for block in table.blocks(unsure) if unsure else ():
        X, words = numbers(block)
        n_words += words.sum(axis=0)
        n_numbers += (~np.isnan(X)).sum(axis=0)
    mostly = dict(zip(unsure, n_words > n_numbers, strict=True))
    return [name for name in names if table.columns[name] is False or mostly.get(name, False)]
