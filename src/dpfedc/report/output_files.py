"""Centres and labels as CSV files, and what an output must be like before it is replaced."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import numpy.typing as npt

from dpfedc.errors import InvalidInput
from dpfedc.kernels.segments import by_column

LABELS_HEAD = "site,record,cluster\n"
PLAN_HEAD = '{\n "unit": "'
"""How the JSON of a privacy plan starts."""


def write_centers(path: Path, names: Sequence[str], centers: npt.NDArray[Any]) -> None:
    """Write one row per cluster, in the order of the labels, under the names of the features."""
    with path.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(names)
        # str() of a NumPy number is the shortest text that reads back as the same number.
        writer.writerows([str(value) for value in row] for row in centers)


def write_labels(path: Path, sites: npt.NDArray[Any], labels: npt.NDArray[Any]) -> None:
    """Write one row per record, in input order: its site, its number there from 1, its cluster.

    The file is replaced as a whole or not at all.
    """
    numbers = numbers_at_site(sites)
    path.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=path.parent, prefix=".dpfedc-") as home:
        draft = Path(home) / "labels.csv"
        with draft.open("w", newline="", encoding="utf-8") as stream:
            stream.write(LABELS_HEAD)
            writer = csv.writer(stream, lineterminator="\n")
            writer.writerows(zip(sites.tolist(), numbers.tolist(), labels.tolist(), strict=True))
        draft.replace(path)


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
    _require_own_file(path, LABELS_HEAD, "earlier labels", inputs)


def require_plan_path(path: Path) -> None:
    """Say why a privacy plan cannot be written to `path`; only an earlier plan is replaced."""
    _require_own_file(path, PLAN_HEAD, "an earlier plan", ())


def _require_own_file(path: Path, head: str, what: str, inputs: Iterable[Path]) -> None:
    require_writable(path.parent)
    if os.path.lexists(path):
        require_replaceable(path, inputs)
        if not starts_with(path, head):
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
