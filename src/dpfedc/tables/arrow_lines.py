"""The fast way to read lines, through pyarrow: it takes only what it reads as the slow way does."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.csv

from dpfedc.tables.cells import MISSING
from dpfedc.tables.stored import Block, Floats, Texts
from dpfedc.tables.text_files import Lines, longest_fits

_GAPS = {form for word in MISSING for form in (word, word.upper(), word.title())} | {"NaN"}
_MOST_QUOTED = 2**16  # Python's parser gives up at twice as many


class ArrowLines:
    """Reads blocks of lines, or declines to."""

    def __init__(self, lines: Lines, longest: int) -> None:
        self.lines = lines
        self._names = [str(j) for j in range(lines.n_columns)]
        # No line may reach over three of pyarrow's own blocks.
        self._read = pa.csv.ReadOptions(
            column_names=self._names, block_size=min(longest + 2, 2**31 - 1), use_threads=False
        )
        # Columns that pyarrow finds other things in than numbers. It is faster to know them, and
        # changes no result, whichever thread has told of them.
        self._as_texts = set(lines.texts)

    def block(self, data: bytes) -> Block | None:
        """Return the lines' block, or None if they must be read otherwise."""
        quoted = b'"' in data
        if not _is_plain(data) or (quoted and not _well_quoted(data, self.lines.delimiter)):
            return None
        table = self._table(data, quoted, floats=set(self.lines.numbers) - self._as_texts)
        if table is None:
            table = self._table(data, quoted, floats=set())
        if table is None or table.num_rows != data.count(b"\n"):
            return None
        columns = {int(name): table.column(name) for name in table.column_names}
        encoded = {
            j: column.combine_chunks().dictionary_encode()
            for j, column in columns.items()
            if pa.types.is_binary(column.type)
        }
        X = np.empty((table.num_rows, len(self.lines.numbers)))
        plain = [(k, str(j)) for k, j in enumerate(self.lines.numbers) if j not in encoded]
        start = 0
        for batch in table.select([name for _, name in plain]).to_batches():
            end = start + batch.num_rows  # few rows at once, as they are turned in the cache
            for k, name in plain:
                X[start:end, k] = batch.column(name).to_numpy(zero_copy_only=False)
            start = end
        for k, j in enumerate(self.lines.numbers):
            if j in encoded:
                X[:, k] = self._numbers(j, encoded[j])
        texts = tuple(_texts(encoded[j]) for j in self.lines.texts)
        # A blank line has a gap in every column; a look at one saves looking for the line.
        gaps = np.isnan(X[:, 0]) if len(X.T) else texts[0].codes < 0 if texts else np.array([True])
        if gaps.any() and (b"\n\n" in data or b"\n\r\n" in data):
            return None
        return Block(X, texts, np.zeros(table.num_rows, dtype=np.bool_))

    def _table(self, data: bytes, quoted: bool, *, floats: set[int]) -> Any:
        """Return what pyarrow reads, the other columns as bytes; None if it complains."""
        wanted = sorted({*self.lines.numbers, *self.lines.texts}) or [0]
        types = {str(j): pa.float64() if j in floats else pa.binary() for j in wanted}
        try:
            return pa.csv.read_csv(
                pa.BufferReader(data),
                read_options=self._read,
                parse_options=pa.csv.ParseOptions(
                    delimiter=self.lines.delimiter,
                    quote_char='"' if quoted else False,
                    ignore_empty_lines=False,
                ),
                convert_options=pa.csv.ConvertOptions(
                    column_types=types,
                    include_columns=list(types),
                    null_values=sorted(_GAPS),
                    strings_can_be_null=False,
                    decimal_point=self.lines.decimal,
                ),
            )
        except pa.ArrowException:
            return None

    def _numbers(self, j: int, column: Any) -> Floats:
        """Return the numbers of a column of bytes, by its distinct cells."""
        cells = [cell.decode("utf-8", "replace") for cell in column.dictionary.to_pylist()]
        if j not in self._as_texts:
            filled = [cell.replace(self.lines.decimal, ".") for cell in cells if cell not in _GAPS]
            try:
                pa.array(filled, type=pa.string()).cast(pa.float64())
            except pa.ArrowException:
                self._as_texts.add(j)
        values = np.array([self.lines.number(cell) for cell in cells])
        codes: npt.NDArray[np.int32] = column.indices.to_numpy()
        return values[codes]


def _texts(column: Any) -> Texts:
    cells = column.dictionary.to_pylist()
    return Texts.of(
        (cell.decode("utf-8", "replace").strip() for cell in cells), column.indices.to_numpy()
    )


def _is_plain(data: bytes) -> bool:
    """Return whether every line is ended alike by all parsers, and the first is not blank."""
    if b"\0" in data or data.startswith((b"\xef\xbb\xbf", b"\n", b"\r\n")):
        return False
    return b"\r" not in data or data.count(b"\r") == data.count(b"\r\n")


def _well_quoted(data: bytes, delimiter: str) -> bool:
    """Return whether every quote opens or closes a whole cell, on one line.

    Then all parsers read it alike. Doubled quotes, for one, are left to the slow way.
    """
    if longest_fits(data, _MOST_QUOTED) < len(data):
        return False
    marks = np.frombuffer(b"\n" + data + b"\n", dtype=np.uint8)
    quotes = np.flatnonzero(marks == ord('"'))
    if len(quotes) % 2:
        return False
    opening, closing = quotes[::2], quotes[1::2]
    lines = np.flatnonzero(marks == ord("\n"))
    before, after = marks[opening - 1], marks[closing + 1]
    return bool(
        ((before == ord(delimiter)) | (before == ord("\n"))).all()
        and ((after == ord(delimiter)) | (after == ord("\n")) | (after == ord("\r"))).all()
        and (np.searchsorted(lines, opening) == np.searchsorted(lines, closing)).all()
    )
