"""Centres and labels as tables, and what an output must be like before it is replaced."""

from __future__ import annotations

import csv
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import numpy.typing as npt

from dpfedc.errors import InvalidInput
from dpfedc.kernels.metrics import cluster_sizes
from dpfedc.kernels.segments import by_column
from dpfedc.model_file import ClusterModel
from dpfedc.report.content import size_rows
from dpfedc.tables.trial_records import TrialRecords
from dpfedc.whole_files import csv_bytes, write_whole

SITE, RECORD, CLUSTER = "site", "record", "cluster"
NAME, SIZE = "name", "size"
PLAN_HEAD = '{\n "unit": "'
"""How the JSON of a privacy plan starts."""
SHAREABLE_HEAD = "<!DOCTYPE html>\n<!-- dpfedc: a page to share -->\n"
"""How a page to share starts."""


def centers_table(model: ClusterModel) -> bytes:
    """Return one row per cluster: its number, its name if any has one, its size, its centre.

    Sizes are as `summary` has them; centres are unrounded, for programs.
    """
    centers = model.cluster_centers
    features = model.feature_names or [f"x{f}" for f in range(centers.shape[1])]
    clusters = model.summary().clusters
    own: dict[str, list[Any]] = {CLUSTER: [c.number for c in clusters]}
    if model.names:
        own[NAME] = [c.name for c in clusters]
    if model.sizes is not None:
        own[SIZE] = [c.size for c in clusters]
    # A feature may have the name of one of our columns.
    head = [name + "_" * (name in features) for name in own]
    # str() of a NumPy number is the shortest text that reads back as the same number.
    rows = zip(*own.values(), *([str(value) for value in f] for f in centers.T), strict=True)
    return csv_bytes([*head, *features], rows)


def prototypes_table(model: ClusterModel) -> bytes:
    """Return one row per prototype that clusters are made of: its cluster, its place."""
    places = model.prototype_centers
    features = model.feature_names or [f"x{f}" for f in range(places.shape[1])]
    groups = range(len(places)) if model.groups is None else model.groups.astype(int).tolist()
    rows = zip(groups, *([str(value) for value in f] for f in places.T), strict=True)
    return csv_bytes([CLUSTER + "_" * (CLUSTER in features), *features], rows)


@dataclass(frozen=True, eq=False)
class Labels:
    """The cluster of each record (-1: it is null), its site, and its id as the table has it.

    Without ids a record is known by its number at the site, from 1. `id_name` is the column's.
    """

    sites: npt.NDArray[Any]
    clusters: npt.NDArray[Any]
    ids: Sequence[str] | None = None
    id_name: str = RECORD

    @classmethod
    def of(
        cls,
        records: TrialRecords,
        model: ClusterModel,
        clusters: npt.NDArray[np.int32] | None = None,
    ) -> Labels:
        """Return the labels that a model gives to records, unless they are known already."""
        clusters = model.labels(records.X) if clusters is None else clusters
        if records.present is not None:
            clusters = np.where(records.present, clusters, -1)
        sites = np.full(len(clusters), "all") if records.sites is None else records.sites
        schema = records.schema
        name = None if schema is None else schema.person or schema.id
        name = name or ("person" if records.unit == "person" else RECORD)
        return cls(sites, clusters, records.ids, name)

    def sizes(self, model: ClusterModel) -> list[dict[str, Any]]:
        """Return how many records each cluster has, and at how many sites; null ones have none.

        Clusters have their names, if any has one.
        """
        there = self.clusters >= 0
        rows = size_rows(self.clusters[there], self.sites[there], len(model.directions))
        if not model.names:
            return [dict(row) for row in rows]
        return [
            {CLUSTER: row[CLUSTER], NAME: model.names.get(row[CLUSTER], ""), **row} for row in rows
        ]

    def to_bytes(self) -> bytes:
        """Return the labels as CSV, one row per record, in the order of the table."""
        ids = numbers_at_site(self.sites).tolist() if self.ids is None else self.ids
        columns = (self.sites.tolist(), ids, self.clusters.tolist())
        return csv_bytes((SITE, self.id_name, CLUSTER), zip(*columns, strict=True))

    def write(self, path: Path) -> None:
        """Write the labels, whole or not at all; nobody but the owner can read them."""
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, self.to_bytes(), private=True)


def read_sizes(path: Path, n_clusters: int) -> tuple[npt.NDArray[np.int64], list[str]]:
    """Return how many records each site (row) has in each cluster, from a table of labels.

    Sites come in the order of their names, or of their numbers if all names are numbers.
    """
    try:
        with path.open(newline="", encoding="utf-8") as stream:
            rows = csv.reader(stream)
            head = next(rows, [])
            if len(head) != 3 or head[::2] != [SITE, CLUSTER]:
                raise ValueError(f"its columns must be {SITE}, a record's id, {CLUSTER}")
            known = [row for row in rows if row[-1] != "-1"]
            sites, _, labels = zip(*known, strict=True)
        clusters = np.array(labels, dtype=np.int64)
        if clusters.min() < 0 or clusters.max() >= n_clusters:
            raise ValueError(f"its clusters must be from 0 to {n_clusters - 1}")
    except ValueError as error:
        raise InvalidInput(f"{path} is not a table of this run's labels: {error}") from error
    column = np.array(sites)
    if all(name.isdecimal() for name in set(sites)):
        column = column.astype(np.int64)
    ids, names = by_column(column)
    return cluster_sizes(clusters, ids, n_clusters), [str(name) for name in names]


def numbers_at_site(sites: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """Return the place of each record among those of its site, counted from 1."""
    rows, _ = by_column(sites)
    order = np.argsort(rows, kind="stable")
    starts = np.concatenate([[0], np.cumsum(np.bincount(rows))])
    numbers = np.empty(len(rows), dtype=np.int64)
    numbers[order] = np.arange(len(rows)) - starts[rows[order]] + 1
    return numbers


def require_labels_path(path: Path, *, inputs: Iterable[Path] = ()) -> None:
    """Say why labels cannot be written to `path`; a file that is not labels is never replaced."""
    _require_own_file(path, _holds_labels, "earlier labels", inputs)


def require_plan_path(path: Path) -> None:
    """Say why a privacy plan cannot be written to `path`; only an earlier plan is replaced."""
    _require_own_file(path, lambda file: starts_with(file, PLAN_HEAD), "an earlier plan", ())


def require_shareable_path(path: Path) -> None:
    """Say why a page to share cannot be written to `path`; only an earlier one is replaced."""
    _require_own_file(
        path, lambda file: starts_with(file, SHAREABLE_HEAD), "an earlier page to share", ()
    )


def _holds_labels(path: Path) -> bool:
    with path.open(newline="", encoding="utf-8", errors="replace") as stream:
        head = next(csv.reader([stream.readline(10_000)]), [])
    return len(head) == 3 and head[::2] == [SITE, CLUSTER]


def _require_own_file(
    path: Path, is_own: Callable[[Path], bool], what: str, inputs: Iterable[Path]
) -> None:
    require_writable(path.parent)
    if os.path.lexists(path):
        require_replaceable(path, inputs)
        if not is_own(path):
            raise InvalidInput(
                f"the output must be a new file or {what}, got the other file {path}"
            )


def require_writable(folder: Path) -> None:
    """Say why nothing can be written into `folder`, which need not exist yet."""
    nearest = nearest_folder(folder)
    if not nearest.is_dir():
        raise InvalidInput(f"{nearest} must be a folder to write into, got a file")
    try:
        TemporaryDirectory(dir=nearest, prefix=".dpfedc-").cleanup()
    except OSError as error:
        raise InvalidInput(
            f"{nearest} must be a folder that can be written to, got: {error.strerror}"
        ) from error


def require_replaceable(path: Path, inputs: Iterable[Path]) -> None:
    """Say why the existing `path` must stay: the run reads it, or it is not a file."""
    if path.resolve() in {given.resolve() for given in inputs}:
        raise InvalidInput(f"the output must not replace an input, got {path} as both")
    if not path.is_file():
        raise InvalidInput(f"the output {path} must be a file or absent, got something else there")


def nearest_folder(path: Path) -> Path:
    """Return the path itself if it exists, else the nearest one above it that does."""
    return next(p for p in (path, *path.parents) if p.exists())


def starts_with(path: Path, text: str) -> bool:
    """Return whether `path` is a file that starts with `text`."""
    if not path.is_file():
        return False
    with path.open("rb") as stream:
        return stream.read(len(text.encode())) == text.encode()
