"""Records from the user's files or from a data set known by name, with a site for each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpfedc.cli.options import NamedData, Split
from dpfedc.errors import InvalidInput

if TYPE_CHECKING:
    import numpy.typing as npt

    from dpfedc.model_file import ClusterModel

DEFAULT_SITES = 20


@dataclass(frozen=True, eq=False)
class Records:
    """Records as rows, with the site of each, and their true labels where they are known."""

    X: npt.NDArray[Any]
    sites: npt.NDArray[Any]
    y: npt.NDArray[Any] | None
    feature_names: tuple[str, ...]
    name: str
    image_shape: tuple[int, int] | None = None


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
            return kmeans_cells(X, n_sites, rng=rng)
        if self.split is None or self.split is Split.IID:
            return iid(len(X), n_sites, rng=rng)
        if y is None:
            raise InvalidInput(f"--split {self.split} needs a --label-column, got none")
        if self.split is Split.LABELS:
            return label_shards(y, n_sites, self.labels_per_site, rng=rng)
        return dirichlet(y, n_sites, self.alpha, rng=rng)


def given_records(
    files: Sequence[Path],
    data: NamedData | None,
    *,
    n_records: int | None,
    deal: Deal,
    site_column: str | None,
    label_column: str | None,
    drop: Sequence[str],
) -> Records:
    """Return the records of files or of a data set known by name, whichever is given."""
    if data is None and not files:
        raise InvalidInput("fit needs FILES or --data, got neither")
    if data is None:
        if n_records is not None:
            raise InvalidInput(f"--n-records needs --data, got FILES and --n-records {n_records}")
        return file_records(
            files, site_column=site_column, label_column=label_column, drop=drop, deal=deal
        )
    if files or site_column or label_column or drop:
        got = "FILES" if files else "--site-column, --label-column or --drop"
        raise InvalidInput(f"--data brings its own records and labels, got {got} as well")
    return named_records(data, n_records=n_records, deal=deal)


def file_records(
    files: Sequence[Path],
    *,
    site_column: str | None = None,
    label_column: str | None = None,
    drop: Sequence[str] = (),
    deal: Deal | None = None,
) -> Records:
    """Return the records of the user's files; a deal is for one file without sites."""
    from dpfedc.tables.trial_tables import read_tables

    dealt = deal is not None and (deal.n_sites is not None or deal.split is not None)
    if dealt and (len(files) > 1 or site_column is not None):
        got = f"{len(files)} files" if len(files) > 1 else f"--site-column {site_column}"
        raise InvalidInput(f"--sites and --split need one file without sites, got {got}")
    table = read_tables(files, site_column=site_column, label_column=label_column, drop=drop)
    sites = deal.sites(table.X, table.y) if deal is not None and dealt else table.sites
    assert sites is not None  # read_tables takes a file without sites as a site
    name = files[0].name if len(files) == 1 else f"{len(files)} files"
    return Records(table.X, sites, table.y, table.feature_names, name)


def named_records(name: NamedData, *, n_records: int | None, deal: Deal) -> Records:
    """Return the records of a data set known by name, dealt to simulated sites."""
    from dpfedc.research.datasets import load

    subset = {} if n_records is None else {"n_records": n_records, "seed": deal.seed}
    data = load(name, **subset)
    sites = deal.sites(data.X, data.y)
    return Records(data.X, sites, data.y, data.feature_names, data.name, data.image_shape)


def require_features(records: Records, model: ClusterModel) -> None:
    """Say how the records' features differ from those the model was made from.

    Names are compared where both sides have them: arrays without names are called x0, x1, ...
    """
    got, n_expected = records.feature_names, len(model.center)
    if len(got) != n_expected:
        expected = model.feature_names or ()
        lost = [name for name in expected if name not in got]
        new = [name for name in got if name not in expected]
        details = f": missing {_listed(lost)}; unexpected {_listed(new)}" if expected else ""
        raise InvalidInput(
            f"the records must have the model's {n_expected} features, got {len(got)}{details}"
        )
    unnamed = tuple(f"x{f}" for f in range(n_expected))
    expected = model.feature_names or unnamed
    if unnamed in (got, expected):
        return
    for f, (name, wanted) in enumerate(zip(got, expected, strict=True), start=1):
        if name != wanted:
            raise InvalidInput(
                f"the records must have the model's features in order, got {name!r} as number {f}, "
                f"expected {wanted!r}"
            )


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return (", ".join(map(repr, names[:5])) or "none") + more
