"""A fitted clustering in one safe file: centres, preprocessing, and what is promised about them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from array_api_compat import array_namespace, is_numpy_array
from array_api_compat import device as device_of

from dpfedc.errors import DataUnavailable, InvalidInput
from dpfedc.kernels import Array
from dpfedc.kernels.cluster_sums import squared_distances
from dpfedc.kernels.column_view import VIEW, seen, unseen
from dpfedc.kernels.devices import as_numpy, moved
from dpfedc.kernels.objective import membership_matrix
from dpfedc.kernels.row_views import Standardized
from dpfedc.kernels.threads import rows_over_threads
from dpfedc.settings import Penalty, require_integer, require_number
from dpfedc.tables.encode import decoded
from dpfedc.tables.schema import Schema
from dpfedc.whole_files import write_whole

Float = npt.NDArray[Any]

FORMAT, TABLE_FORMAT = "dpfedc-model-1", "dpfedc-model-2"
"""Of models of numbers, and of tables that a schema describes."""
CHUNK = 2**15
"""Records that are assigned at a time."""
DEVICE_CHUNK = 2**26
"""Numbers of X that are assigned at a time on Torch's device."""


@dataclass(frozen=True)
class ClusterModel:
    """Everything needed to assign a record, and nothing about the records it was made from.

    `directions` is W of the factorisation. `centres` are in standardised units; where they are
    None, or `by_membership` is set, a record goes to the cluster of its largest membership,
    otherwise to the nearest centre.
    """

    directions: Float
    center: Float
    scale: float | None
    centers: Float | None = None
    by_membership: bool = True
    constant: float = 0.0
    penalty: Penalty = field(default_factory=Penalty)
    steps: int = 50
    nonnegative: bool = False
    feature_names: tuple[str, ...] | None = None
    about: Mapping[str, Any] = field(default_factory=dict)
    schema: Schema | None = None
    view: Mapping[str, Float] = field(default_factory=dict)
    """How the records that the schema encodes are seen: see kernels/column_view.py."""

    def __post_init__(self) -> None:
        require_number("constant", self.constant, least=0)
        require_integer("steps", self.steps, least=1)
        if self.scale is not None:
            require_number("scale", self.scale, above=0)
        k, m = len(self.directions), self.center.size
        shapes = {"center": (m,), "directions": (k, m + (self.constant != 0)), "centers": (k, m)}
        for name, expected in shapes.items():
            array = getattr(self, name)
            if array is not None and array.shape != expected:
                raise InvalidInput(f"{name} must have shape {expected}, got {array.shape}")
        features = None if self.schema is None else self.schema.features
        if features is not None and (len(features) != m or set(self.view) - set(VIEW)):
            raise InvalidInput(f"the schema must have {m} features, got {len(features)}")

    @property
    def cluster_centers(self) -> Float:
        """Return the centres in data units; of a category they are the shares of its values."""
        centers = self.directions
        if self.centers is not None:
            centers = np.asarray(self.center + (self.scale or 1.0) * self.centers)
            centers = np.maximum(centers, 0) if self.nonnegative else centers
        if self.schema is None:
            return centers
        return decoded(np.asarray(unseen(centers, self.view)), self.schema)

    @property
    def seen_centers(self) -> Float:
        """Return the centres as the clustering saw them; where there is no table, in data units."""
        return replace(self, schema=None, view={}).cluster_centers

    def seen(self, X: Array) -> Array:
        """Return encoded records as the clustering saw them: gaps filled, spreads alike."""
        xp, like = array_namespace(X), {"dtype": X.dtype, "device": device_of(X)}
        return seen(X, {name: xp.asarray(values, **like) for name, values in self.view.items()})

    def memberships(self, X: Array, *, device: str | None = None) -> Float:
        """Return one row per record: how much it belongs to each cluster; the largest decides.

        By membership: the factorisation's h. By nearest centre: weights in inverse proportion to
        the squared distances, summing to one. X may be on Torch's device, or be moved to `device`
        a chunk at a time; what is returned is in main memory.
        """
        with rows_over_threads():
            return np.concatenate([as_numpy(self._memberships(x)) for x in _chunks(X, device)])

    def labels(self, X: Array, *, device: str | None = None) -> npt.NDArray[np.int32]:
        """Return the cluster of each record."""
        with rows_over_threads():
            parts = [
                as_numpy(array_namespace(x).argmax(self._memberships(x), axis=1))
                for x in _chunks(X, device)
            ]
        return np.concatenate(parts).astype(np.int32)

    def _memberships(self, X: Array) -> Array:
        xp, like = array_namespace(X), {"dtype": X.dtype, "device": device_of(X)}
        gaps = xp.isnan(X) if self.schema is not None else None
        X = self.seen(X)
        scale = None if self.scale is None else xp.asarray(self.scale, **like)
        center = xp.asarray(self.center, **like)
        if self.by_membership or self.centers is None:
            view = Standardized.of(X, center=center, scale=scale, constant=self.constant)
            W = xp.asarray(self.directions, **like)
            return membership_matrix(view, W, penalty=self.penalty, steps=self.steps)
        centers = xp.asarray(self.centers, **like)
        view = Standardized.of(X, center=center, scale=scale)
        distances = squared_distances(view.products(centers), view.squared_norms, centers)
        if gaps is not None:
            # A record is compared with a centre in the columns that it has.
            distances = xp.clip(distances - xp.astype(gaps, X.dtype) @ (centers**2).T, min=0.0)
        closeness = 1 / xp.clip(distances, min=float(xp.finfo(X.dtype).eps) ** 2)
        return closeness / xp.sum(closeness, axis=1, keepdims=True)

    def to_bytes(self) -> bytes:
        """Return the model as an .npz file of plain arrays; nothing in it can run."""
        arrays: dict[str, Any] = {"directions": self.directions, "center": self.center}
        if self.centers is not None:
            arrays["centres"] = self.centers
        arrays |= self.view
        head = {
            "format": FORMAT if self.schema is None else TABLE_FORMAT,
            "scale": self.scale,
            "by_membership": self.by_membership,
            "constant": self.constant,
            "penalty": asdict(self.penalty),
            "steps": self.steps,
            "nonnegative": self.nonnegative,
            "feature_names": self.feature_names,
            "about": dict(self.about),
        }
        if self.schema is not None:
            head["schema"] = self.schema.to_json()
        buffer = BytesIO()
        np.savez(buffer, head=np.array(json.dumps(head)), **arrays)
        return buffer.getvalue()

    def write(self, path: Path) -> None:
        """Write the model to a file, whole or not at all."""
        write_whole(path, self.to_bytes())

    @classmethod
    def read(cls, path: Path) -> ClusterModel:
        """Read what `write` wrote."""
        try:
            with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
                arrays = {name: archive[name] for name in archive.files}
        except FileNotFoundError as error:
            raise DataUnavailable(f"no such model file: {path}") from error
        except Exception as error:  # a damaged archive can fail in almost any way
            raise InvalidInput(f"{path} is not a model file written by dpfedc") from error
        try:
            head = json.loads(str(arrays.pop("head")[()]))
            if head.pop("format") not in (FORMAT, TABLE_FORMAT):
                raise InvalidInput(f"{path} was written by another version; expected {FORMAT}")
            names, schema = head.pop("feature_names"), head.pop("schema", None)
            view = {name: arrays.pop(name) for name in VIEW if name in arrays}
            if "centres" in arrays:  # so spelled in the file
                arrays["centers"] = arrays.pop("centres")
            return cls(
                **arrays,
                **{**head, "penalty": Penalty(**head["penalty"])},
                feature_names=None if names is None else tuple(names),
                schema=None if schema is None else Schema.from_json(schema),
                view=view,
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InvalidInput(f"{path} is not a model file written by dpfedc: {error}") from error


def _chunks(X: Array, device: str | None) -> Iterator[Array]:
    """Yield some records at a time, moved to Torch's device if one is named."""
    chunk = CHUNK
    if device is not None or not is_numpy_array(X):
        chunk = max(DEVICE_CHUNK // X.shape[1], 1)
    for start in range(0, X.shape[0], chunk):
        part = X[start : start + chunk]
        yield part if device is None else moved(part, device)
