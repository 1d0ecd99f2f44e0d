"""Records from the user's tables or from a data set known by name, with a site for each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpfedc.cli.options import NamedData, Split
from dpfedc.errors import InvalidInput

if TYPE_CHECKING:
    import numpy.typing as npt

    from dpfedc.model_file import ClusterModel
    from dpfedc.tables.schema import Schema
    from dpfedc.tables.sources import DataSource
    from dpfedc.tables.stored import StoredTable
    from dpfedc.tables.trial_records import TrialRecords

DEFAULT_SITES = 20
_DIALECT, _TEXT = ("delimiter", "encoding", "decimal"), (".csv", ".tsv")


@dataclass(frozen=True, eq=False)
class Given:
    """What a trial is made with: the records, what they are called, and how they look."""

    records: TrialRecords
    name: str
    image_shape: tuple[int, int] | None = None


@dataclass(frozen=True)
class Tables:
    """What the options say of the user's tables: which they are and what their columns are."""

    files: Sequence[str] = ()
    schema: Path | None = None
    site_column: str | None = None
    label_column: str | None = None
    person_column: str | None = None
    sites_per_person: int | None = None
    drop: Sequence[str] = ()
    keep: Sequence[str] = ()
    delimiter: Sequence[str] = ()
    encoding: Sequence[str] = ()
    decimal: Sequence[str] = ()
    table: str | None = None
    order_by: str | None = None
    password_env: str | None = None

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Tables:
        """Return what a command's options say, of all that it has; None and [] say nothing."""
        given: dict[str, Any] = {f.name: options.get(f.name) for f in fields(cls)}
        lists = {name: tuple(value) for name, value in given.items() if isinstance(value, list)}
        return cls(**{n: v for n, v in {**given, **lists}.items() if v is not None and v != ()})

    @cached_property
    def opened(self) -> dict[str, StoredTable]:
        """Return the tables by the names of their sites."""
        from dpfedc.tables.trial_tables import opened_tables

        return opened_tables(self._sources())

    def _sources(self) -> list[DataSource]:
        """Return the tables, each with what is needed to read it."""
        from dpfedc.tables.sources import DataSource

        database = {name: getattr(self, name) for name in ("table", "order_by", "password_env")}
        unused = [name for name, value in database.items() if value is not None]
        if unused and not any("://" in file for file in self.files):
            raise InvalidInput(f"--{unused[0].replace('_', '-')} is for a database, got files")
        how = {name: _by_file(name, getattr(self, name), self.files) for name in _DIALECT}

        def source(file: str) -> DataSource:
            if "://" in file:
                return DataSource(url=file, **database)
            said: dict[str, Any] = {name: how[name].get(file) for name in _DIALECT}
            return DataSource(file, **said)

        return [source(file) for file in self.files]

    def read(self, schema: Schema | None = None, *, all_columns: bool = True) -> TrialRecords:
        """Return the records of the tables, by a schema if there is one."""
        from dpfedc.tables.schema import Schema
        from dpfedc.tables.trial_tables import read_encoded, read_tables

        if self.schema is not None:
            schema = Schema.read(self.schema)
        if schema is None:
            found = read_tables(
                self.opened,
                site_column=self.site_column,
                label_column=self.label_column,
                person_column=self.person_column,
                drop=self.drop,
                keep=self.keep,
            )
            return replace(found, sites_per_person=self.sites_per_person or 1)
        if self.drop or self.keep:
            raise InvalidInput("--drop and --keep are not for a schema, which names what is read")
        schema = schema.without(self.label_column).having(
            site=self.site_column or (schema.site if len(self.files) == 1 else None),
            person=self.person_column or schema.person,
            sites_per_person=self.sites_per_person or schema.sites_per_person,
        )
        found = read_encoded(
            self.opened, schema, label_column=self.label_column, all_columns=all_columns
        )
        if all_columns:
            self._tell(schema)
        return found

    def _tell(self, schema: Schema) -> None:
        """Print what is worth a look in the tables; refuse them for what cannot be meant."""
        from dpfedc.cli.console import print_reports
        from dpfedc.tables.check import ERROR, checked_tables

        reports = checked_tables(list(self.opened.values()), schema)
        for report in reports:
            for finding in report.findings:
                if finding.severity == ERROR:
                    name = f"column {finding.column!r}: " if finding.column else ""
                    raise InvalidInput(f"{report.where}: {name}{finding.text}")
        print_reports(reports, quiet=True)

    @property
    def name(self) -> str:
        """Return what the records are called."""
        one = len(self.files) == 1
        return Path(self.files[0]).name if one else f"{len(self.files)} files"

    @property
    def paths(self) -> list[Path]:
        """Return the files that are read, which no output may replace."""
        paths = [Path(file) for file in self.files if "://" not in file]
        return paths if self.schema is None else [*paths, self.schema]


@dataclass(frozen=True)
class Deal:
    """How records are dealt to simulated sites, if they are."""

    n_sites: int | None
    split: Split | None
    labels_per_site: int
    alpha: float
    seed: int

    def sites(self, X: npt.NDArray[Any], y: npt.NDArray[Any] | None) -> npt.NDArray[Any]:
        """Return the site of each record."""
        import numpy as np

        from dpfedc.research.partition import dirichlet, iid, kmeans_cells, label_shards

        rng = np.random.default_rng(self.seed)
        n_sites = DEFAULT_SITES if self.n_sites is None else self.n_sites
        if self.split is Split.KMEANS:
            return kmeans_cells(np.nan_to_num(X), n_sites, rng=rng)
        if self.split is None or self.split is Split.IID:
            return iid(len(X), n_sites, rng=rng)
        if y is None:
            raise InvalidInput(f"--split {self.split} needs a --label-column, got none")
        if self.split is Split.LABELS:
            return label_shards(y, n_sites, self.labels_per_site, rng=rng)
        return dirichlet(y, n_sites, self.alpha, rng=rng)


def given_records(
    tables: Tables, data: NamedData | None, *, n_records: int | None, deal: Deal
) -> Given:
    """Return the records of tables or of a data set known by name, whichever is given."""
    if data is None and not tables.files:
        raise InvalidInput("fit needs FILES or --data, got neither")
    if data is None:
        if n_records is not None:
            raise InvalidInput(f"--n-records needs --data, got FILES and --n-records {n_records}")
        return file_records(tables, deal)
    if tables != Tables():
        got = "FILES" if tables.files else "--site-column, --label-column or the like"
        raise InvalidInput(f"--data brings its own records and labels, got {got} as well")
    return named_records(data, n_records=n_records, deal=deal)


def file_records(tables: Tables, deal: Deal | None = None) -> Given:
    """Return the records of the user's tables; a deal is for one file without sites."""
    dealt = deal is not None and (deal.n_sites is not None or deal.split is not None)
    if dealt and (len(tables.files) > 1 or tables.site_column is not None):
        several = len(tables.files) > 1
        got = f"{len(tables.files)} files" if several else f"--site-column {tables.site_column}"
        raise InvalidInput(f"--sites and --split need one file without sites, got {got}")
    records = tables.read()
    if deal is not None and dealt:
        records = replace(records, sites=deal.sites(records.X, records.y))
    return Given(records, tables.name)


def named_records(name: NamedData, *, n_records: int | None, deal: Deal) -> Given:
    """Return the records of a data set known by name, dealt to simulated sites."""
    from dpfedc.research.datasets import load
    from dpfedc.tables.trial_records import TrialRecords

    subset = {} if n_records is None else {"n_records": n_records, "seed": deal.seed}
    data = load(name, **subset)
    sites = deal.sites(data.X, data.y)
    records = TrialRecords(data.X, sites, data.y, data.feature_names)
    return Given(records, data.name, data.image_shape)


def for_model(tables: Tables, model: ClusterModel) -> TrialRecords:
    """Return the records of tables as a model takes them: columns by name, others left out.

    Arrays without names, which are called x0, x1, ..., are taken in their order.
    """
    if model.schema is not None:
        schema, columns = model.schema, _columns(tables)
        if schema.person is not None and not tables.person_column:
            here = all(schema.person in names for names in columns)
            schema = schema if here else schema.without_persons()
        return tables.read(schema, all_columns=False)
    wanted, columns = model.feature_names or (), _columns(tables)
    if all(set(wanted) <= set(names) for names in columns):
        roles = {tables.site_column, tables.label_column, tables.person_column}
        extra = {name for names in columns for name in names if name not in {*wanted, *roles}}
        tables = replace(tables, drop=tuple(extra), keep=wanted)
    return _in_order(tables.read(), model)


def _columns(tables: Tables) -> list[list[str]]:
    """Return the columns of each table that may be left out."""
    return [[n for n in table.columns if n not in table.keys] for table in tables.opened.values()]


def _in_order(records: TrialRecords, model: ClusterModel) -> TrialRecords:
    got, n_expected = records.feature_names or (), len(model.center)
    expected = model.feature_names or ()
    if len(got) != n_expected:
        lost = [name for name in expected if name not in got]
        new = [name for name in got if name not in expected]
        details = f": missing {_listed(lost)}; unexpected {_listed(new)}" if expected else ""
        raise InvalidInput(
            f"the records must have the model's {n_expected} features, got {len(got)}{details}"
        )
    unnamed = tuple(f"x{f}" for f in range(n_expected))
    if unnamed in (got, expected) or not expected:
        return records
    if set(got) != set(expected):
        lost = [name for name in expected if name not in got]
        raise InvalidInput(f"the records must have the model's features: missing {_listed(lost)}")
    return records.in_order(expected)


def _by_file(option: str, values: Sequence[str], files: Sequence[str]) -> dict[str, str]:
    """Return what an option says of each file: FILE=VALUE for one of them, VALUE for all others."""
    found: dict[str, str] = {}
    for value in sorted(values, key=lambda text: _named(text) is not None):
        name = _named(value)
        if name is None:
            chosen = [file for file in files if file.lower().removesuffix(".gz").endswith(_TEXT)]
        else:
            chosen = [file for file in files if name in (file, Path(file).name)]
        if not chosen:
            got = "none" if name is None else f"one for {name!r}"
            raise InvalidInput(f"--{option} must be for one of the files that are text, got {got}")
        said = value if name is None else value[len(name) + 1 :]
        found |= dict.fromkeys(chosen, said)
    return found


def _named(value: str) -> str | None:
    """Return the file that a value is for; a lone = is itself a value."""
    name, mark, said = value.partition("=")
    return name if mark and name and said else None


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return (", ".join(map(repr, names[:5])) or "none") + more
