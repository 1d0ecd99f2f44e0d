"""A first schema from a table's names and types, for somebody who knows the columns to finish."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from dpfedc.errors import InvalidInput
from dpfedc.tables.cells import UNREAD, is_word, number
from dpfedc.tables.ids import is_id_name, looks_like_id
from dpfedc.tables.persons import time_of
from dpfedc.tables.schema_columns import OTHER
from dpfedc.tables.stored import StoredTable

MAX_DISTINCT = 20
"""With more values a column of texts is hardly a category."""
_MANY = 100_000
_PERSON = re.compile(r"patient|person|customer|client|member|subject", re.IGNORECASE)
_HEAD = """\
# A first schema, drafted from names and types. Fill in every range = "?" from public knowledge, not
# from this data, or put "auto" to have it found out with part of the privacy budget.
# The lists of values were looked up in the data. Look through them, take out what could point to a
# person, and share this file only then: nothing in it is protected.
"""


@dataclass
class Seen:
    """What a column holds, over all files."""

    distinct: set[str] = field(default_factory=set)
    n_rows: int = 0
    n_numbers: int = 0
    n_whole: int = 0
    n_dates: int = 0

    def add(self, texts: Sequence[str]) -> None:
        """Count the distinct texts of a block."""
        for text in texts:
            if not is_word(text) or len(self.distinct) > _MANY or text in self.distinct:
                continue
            self.distinct.add(text)
            value = _number(text)
            if not math.isnan(value):
                self.n_numbers += 1
                self.n_whole += value.is_integer()
            elif not math.isnan(time_of(text)):
                self.n_dates += 1


def drafted(tables: Sequence[StoredTable]) -> str:
    """Return the TOML of a first schema for the columns of these tables."""
    columns: dict[str, Seen] = {}
    for table in tables:
        names = list(table.columns)
        for block in table.blocks((), names):
            for name, cells in zip(names, block.texts, strict=True):
                seen = columns.setdefault(name, Seen())
                seen.n_rows += block.n_rows
                seen.add(cells.distinct)
                if any(UNREAD in text for text in cells.distinct):
                    raise InvalidInput(
                        f"{table.where}: column {name!r} has letters that cannot be read; say "
                        "--encoding, latin-1 for instance"
                    )
    if not any(seen.n_rows for seen in columns.values()):
        raise InvalidInput("a schema is drafted from tables with rows, got none")
    lines = [_HEAD]
    person = next((n for n in columns if is_id_name(n) and _PERSON.search(n)), None)
    if person is not None:
        lines.append(f"person = {_text(person)}  # all rows of a person become one record\n")
    else:
        lines.append('# person = "..."  # the column with a person\'s id, if rows are visits\n')
    for name, seen in columns.items():
        if name != person:
            lines.append("\n".join(_column(name, seen)) + "\n")
    return "\n".join(lines)


def _column(name: str, seen: Seen) -> Iterator[str]:
    yield "[[column]]"
    yield f"name = {_text(name)}"
    n = len(seen.distinct)
    numeric = seen.n_numbers > n / 2
    if n == 0 or is_id_name(name):
        why = "no values" if n == 0 else "called like an id or a code"
        yield f'kind = "ignore"  # {why}'
    elif n == seen.n_rows and looks_like_id(name, np.array([*map(_number, seen.distinct)])):
        yield 'kind = "ignore"  # whole numbers that never repeat, like ids'
    elif numeric and (n > 2 or seen.n_whole < n):
        yield 'kind = "number"'
        yield 'range = "?"  # [least, largest], as publicly known'
    elif seen.n_dates > n / 2:
        yield 'kind = "ignore"  # dates'
    elif n <= MAX_DISTINCT and (values := sorted(seen.distinct - {OTHER})):
        yield 'kind = "category"'
        yield f"values = [{', '.join(map(_text, values))}]"
    else:
        yield 'kind = "ignore"  # texts that are no category'


def _number(text: str) -> float:
    """Return the number that a text spells, with a decimal point or comma; NaN if it is none."""
    value = number(text.replace(",", ".") if text.count(",") == 1 else text)
    return math.nan if value is None else value


def _text(value: str) -> str:
    """Return a text as TOML writes it; JSON's strings are TOML's."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007F")
