"""The records of a run, frozen when the site takes part in it.

No row that is added, taken out or changed later matters to the run, and no round reads the table.
The file is the site's own: nobody else may read it, and it goes when the run ends. The fingerprint
at its end is keyed, so that it tells nothing about records to whoever has no key; it is never sent.
"""

from __future__ import annotations

import hmac
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dpfedc.deployment.agreement import Agreement
from dpfedc.deployment.site_folder import SiteFolder
from dpfedc.errors import DataUnavailable, InvalidInput
from dpfedc.whole_files import draft_of, write_whole

SNAPSHOT, KEY = "records.snapshot", "snapshot.key"
_FORMAT = b"dpfedc-snapshot-1 "
_TAG = 32


class SnapshotLost(InvalidInput):
    """The frozen records of a run that has begun are gone or changed: it can only be cancelled."""


Frozen = tuple[npt.NDArray[np.float64], npt.NDArray[np.bool_]]


def is_frozen(folder: SiteFolder, run: str) -> bool:
    """Return whether the records of a run have been frozen."""
    return (folder.run(run) / SNAPSHOT).exists()


def freeze(folder: SiteFolder, agreement: Agreement) -> None:
    """Read the site's records for a run and write them down."""
    run, shape = agreement.digest, _shape(folder, agreement)
    records = folder.load(agreement)
    if records.X.shape != shape:
        raise InvalidInput(f"the records must have the shape {shape}, got {records.X.shape}")
    X = np.ascontiguousarray(records.X, dtype="<f8")
    present = np.ascontiguousarray(records.present, dtype=np.bool_)
    key = folder.path / KEY
    if not key.exists():
        write_whole(key, os.urandom(_TAG), private=True)
    tag = _tag(key, run)

    def parts() -> Iterator[memoryview | bytes]:
        for content in (_bytes_of(X), _bytes_of(present)):
            tag.update(content)
            yield content
        yield tag.digest()

    write_whole(folder.run(run) / SNAPSHOT, parts(), private=True)
    if folder.state(run) != "accepted":  # cancelled meanwhile, by a command that found no file
        forget(folder, run)


def frozen(folder: SiteFolder, agreement: Agreement) -> Frozen:
    """Return the records of a run as they were frozen, if nobody has changed them."""
    path, (n, m) = folder.run(agreement.digest) / SNAPSHOT, _shape(folder, agreement)
    X, present, kept = np.empty((n, m), dtype="<f8"), np.empty(n, np.uint8), bytearray(_TAG)
    try:
        tag = _tag(folder.path / KEY, agreement.digest)
        with path.open("rb") as file:
            for content in (_bytes_of(X), _bytes_of(present)):
                file.readinto(content)
                tag.update(content)
            file.readinto(kept)
            more = file.read(1)
    except OSError as error:
        raise DataUnavailable(f"{path} cannot be read: {error.strerror}") from error
    if more or not hmac.compare_digest(tag.digest(), bytes(kept)):
        raise SnapshotLost(f"{path} is not as it was written; the run can only be cancelled")
    return X.astype(np.float64, copy=False), present.astype(np.bool_)


def forget(folder: SiteFolder, run: str) -> None:
    """Delete the frozen records of a run, also those that were not written to their end."""
    path = folder.run(run) / SNAPSHOT
    for file in (path, draft_of(path)):
        file.unlink(missing_ok=True)


def forget_what_is_over(folder: SiteFolder) -> None:
    """Delete what a process that was killed has left of runs, and of a snapshot half written."""
    for run in folder.offered():
        if folder.state(run) != "accepted":
            forget(folder, run)
        draft_of(folder.run(run) / SNAPSHOT).unlink(missing_ok=True)


def _shape(folder: SiteFolder, agreement: Agreement) -> tuple[int, int]:
    """Return how many records and features a run has at this site, which is public."""
    here = agreement.sites[agreement.number_of(folder.name)]
    return here.n_records, len(agreement.features)


def _bytes_of(array: npt.NDArray[Any]) -> memoryview:
    """Return the memory of an array, not a copy of it."""
    return array.reshape(-1).view(np.uint8).data


def _tag(key: Path, run: str) -> hmac.HMAC:
    return hmac.new(key.read_bytes(), _FORMAT + run.encode(), "sha256")
