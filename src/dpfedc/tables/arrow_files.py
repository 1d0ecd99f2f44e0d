"""Parquet and Arrow files, whose columns are typed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet

from dpfedc.tables.cells import number, text
from dpfedc.tables.stored import Block, Floats, StoredTable, Texts, by_name, readable

_BATCH_ROWS = 2**16


def parquet_table(file: Path) -> StoredTable:
    """Open a Parquet file."""

    def batches(names: list[str]) -> Iterator[Any]:
        with pa.parquet.ParquetFile(file) as source:
            yield from source.iter_batches(_BATCH_ROWS, columns=names)

    with pa.parquet.ParquetFile(file) as source:
        return _table(file, source.schema_arrow, batches)


def arrow_table(file: Path) -> StoredTable:
    """Open an Arrow IPC file, which Feather files are as well."""
    with pa.ipc.open_file(file) as source:
        schema = source.schema

    def batches(names: list[str]) -> Iterator[Any]:
        places = [schema.get_field_index(name) for name in names]
        options = pa.ipc.IpcReadOptions(included_fields=sorted(places))
        with pa.ipc.open_file(file, options=options) as source:
            for i in range(source.num_record_batches):
                yield source.get_batch(i)

    return _table(file, schema, batches)


def _table(file: Path, schema: Any, batches: Any) -> StoredTable:
    by_name(file, schema.names, schema.names)

    def read(numbers: Sequence[str], texts: Sequence[str]) -> Iterator[Block]:
        wanted = list(dict.fromkeys((*numbers, *texts))) or schema.names[:1]
        with readable(file):
            for batch in batches(wanted):
                columns = {name: batch.column(name) for name in wanted}
                X = np.empty((batch.num_rows, len(numbers)))
                for k, name in enumerate(numbers):
                    X[:, k] = _numbers(columns[name])
                found = tuple(_texts(columns[name]) for name in texts)
                yield Block(X, found, np.zeros(batch.num_rows, dtype=np.bool_))

    kinds = {field.name: _kind(field.type) for field in schema}
    single = {field.type for field in schema} == {pa.float32()}
    return StoredTable(str(file), kinds, frozenset(), read, single)


def _kind(of: Any) -> bool | None:
    """Return whether a type holds numbers; None for text, which may spell them."""
    if pa.types.is_dictionary(of):
        return _kind(of.value_type)
    if _is_text(of) or pa.types.is_null(of):
        return None
    return bool(
        pa.types.is_integer(of)
        or pa.types.is_floating(of)
        or pa.types.is_boolean(of)
        or pa.types.is_decimal(of)
    )


def _is_text(of: Any) -> bool:
    return bool(pa.types.is_string(of) or pa.types.is_large_string(of))


def _numbers(column: Any) -> Floats:
    if pa.types.is_integer(column.type) or pa.types.is_floating(column.type):
        with np.errstate(over="ignore"):
            return np.asarray(column.to_numpy(zero_copy_only=False), dtype=np.float64)
    cells, codes = _distinct(column)
    # Bytes are how text comes here, which no other type may be taken for.
    values = [number(text(cell) if isinstance(cell, bytes) else cell) for cell in cells]
    return np.array([*values, None], dtype=np.float64)[codes]


def _texts(column: Any) -> Texts:
    cells, codes = _distinct(column)
    return Texts.of(map(text, cells), codes)


def _distinct(column: Any) -> tuple[Iterable[Any], npt.NDArray[np.int64]]:
    """Return a column's distinct cells, and which each row has (-1: none); text comes as bytes."""
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if _is_text(column.type):  # it may not be valid UTF-8
        column = column.cast(pa.large_binary())
    elif pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type):
        column = pa.nulls(len(column))
    elif pa.types.is_timestamp(column.type) and column.type.unit == "ns":  # Python ends at us
        column = column.cast(pa.timestamp("us", column.type.tz), safe=False)
    with suppress(pa.ArrowNotImplementedError):
        encoded = column.dictionary_encode()
        codes = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False)
        return [_plain(cell) for cell in encoded.dictionary], codes
    return [_plain(cell) for cell in column], np.arange(len(column))


def _plain(cell: Any) -> Any:
    """Return a cell as Python has it, None if Python has no such thing, as the year 10000."""
    try:
        return cell.as_py()
    except Exception:
        return None
