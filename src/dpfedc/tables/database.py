"""A site's table in a database, read through SQLAlchemy; no error tells a password or a value."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from dpfedc.errors import DataUnavailable, InvalidInput, MissingExtra
from dpfedc.tables.stored import BLOCK_ROWS, Block, StoredTable, cell_block

if TYPE_CHECKING:
    from sqlalchemy import URL

T = TypeVar("T")


def parsed_url(text: str) -> URL:
    """Return the URL, without a password; messages do not repeat it, as it might hold one."""
    sa = _sqlalchemy()
    url: URL | None = None
    with suppress(sa.exc.ArgumentError, ValueError):
        url = sa.make_url(text)
    if url is None:
        raise InvalidInput("url must be dialect://user@host:port/database, got something else")
    if url.password is not None or any("pass" in key.lower() for key in url.query):
        raise InvalidInput("url must hold no password: name its environment variable, password_env")
    return url.set(drivername="postgresql+psycopg") if url.drivername == "postgresql" else url


def database_table(
    url: URL, name: str, *, schema: str | None, order_by: str | None, password_env: str | None,
    where: str,
) -> StoredTable:  # fmt: skip
    """Open a table or view; its rows are ordered by `order_by`, then by the primary key.

    Messages call it `where`.
    """
    sa = _sqlalchemy()
    engine, table = _found(_with_password(url, password_env), name, schema, where)
    numeric = (sa.Integer, sa.Numeric, sa.Float, sa.Boolean)
    keys = list(table.primary_key.columns)
    if order_by is not None and order_by not in table.c:
        raise InvalidInput(f"{where} must have the column order_by={order_by!r}")
    order = keys if order_by is None else [table.c[order_by], *keys]
    if not order:
        raise InvalidInput(f"{where} must have a primary key, or else order_by (--order-by)")

    def plain(column: Any) -> Any:
        # A driver fails on dates that Python has none of, so the database writes them out.
        if not isinstance(column.type, (*numeric, sa.String, sa.types.NullType)):
            column = sa.cast(column, sa.Text)
        return sa.type_coerce(column, sa.types.NullType())

    def rows(numbers: Sequence[str], texts: Sequence[str]) -> Iterator[Block]:
        names = list(dict.fromkeys((*numbers, *texts))) or [table.c.keys()[0]]
        chosen = [table.c[name] for name in names]
        # Without a type, values come as the driver has them: SQLAlchemy's own conversions fail on
        # what SQLite lets into any column. Rows that tie are ordered by what is read of them.
        query = sa.select(*map(plain, chosen))
        query = query.order_by(*order, *([] if keys else chosen))
        with engine.connect() as connection:
            result = connection.execution_options(yield_per=BLOCK_ROWS).execute(query)
            for part in result.partitions():
                cells = dict(zip(names, zip(*part, strict=True), strict=True))
                yield cell_block([cells[n] for n in numbers], [cells[n] for n in texts], len(part))

    def read(numbers: Sequence[str], texts: Sequence[str]) -> Iterator[Block]:
        left = rows(numbers, texts)

        def kind(error: Exception) -> str:  # all that is told, as its text may quote a value
            return type(error).__name__

        while (block := _answer(lambda: next(left, None), where, kind)) is not None:
            yield block

    kinds = {column.name: isinstance(column.type, numeric) for column in table.c}
    return StoredTable(where, kinds, frozenset(column.name for column in keys), read)


def _found(url: URL, name: str, schema: str | None, where: str) -> tuple[Any, Any]:
    """Return an engine, and the table as the database describes it."""
    sa = _sqlalchemy()
    sqlite = url.get_backend_name() == "sqlite"
    if sqlite and not Path(url.database or "").is_file():  # SQLite would make an empty one
        raise DataUnavailable(f"{url.database or 'a SQLite URL'} must be a database file")

    def ask() -> tuple[Any, Any]:
        engine = sa.create_engine(url, poolclass=sa.pool.NullPool)
        if sqlite:
            sa.event.listen(engine, "connect", _read_any_text)
        with warnings.catch_warnings():  # a column of a type that SQLAlchemy does not know
            warnings.simplefilter("ignore", sa.exc.SAWarning)
            options = {"schema": schema, "autoload_with": engine, "resolve_fks": False}
            return engine, sa.Table(name, sa.MetaData(), **options)

    def reason(error: Exception) -> str:
        if isinstance(error, sa.exc.NoSuchTableError):
            return "no such table"
        text = " ".join(str(getattr(error, "orig", error)).split())
        return text.replace(str(url.password), "***") if url.password else text

    return _answer(ask, where, reason)


def _read_any_text(connection: Any, _: Any) -> None:
    connection.text_factory = lambda text: text.decode(errors="replace")


def _answer(ask: Callable[[], T], where: str, reason: Callable[[Exception], str]) -> T:
    """Return what `ask` returns; its error does not get further, as it may hold the password."""
    try:
        return ask()
    except ImportError as error:
        driver = error.name or "its driver"
    except Exception as error:
        driver, text = None, reason(error)
    if driver is not None:
        raise MissingExtra(f"{where} needs {driver}: pip install 'dpfedc[sql]', or that driver")
    raise DataUnavailable(f"{where} must be readable, got: {text}")


def _with_password(url: URL, variable: str | None) -> URL:
    if variable is not None and not os.environ.get(variable):
        raise InvalidInput(f"environment variable {variable} must hold the password, got nothing")
    return url if variable is None else url.set(password=os.environ[variable])


def _sqlalchemy() -> Any:
    try:
        import sqlalchemy
        import sqlalchemy.event
        import sqlalchemy.pool
    except ImportError as error:
        raise MissingExtra("a database needs SQLAlchemy: pip install 'dpfedc[sql]'") from error
    return sqlalchemy
