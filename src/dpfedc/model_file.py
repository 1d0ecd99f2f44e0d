"""A fitted clustering in one safe file: centres, preprocessing, and what is promised about them."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from io import BytesIO
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from array_api_compat import array_namespace, is_numpy_array
from array_api_compat import device as device_of

from dpfedc.errors import DataUnavailable, InvalidInput
from dpfedc.kernels import Array
from dpfedc.kernels.cluster_sums import squared_distances
from dpfedc.kernels.column_view import SPREAD, VIEW, seen, unseen
from dpfedc.kernels.devices import as_numpy, moved
from dpfedc.kernels.objective import membership_matrix
from dpfedc.kernels.row_views import Standardized
from dpfedc.kernels.threads import rows_over_threads
from dpfedc.settings import Penalty, require_integer, require_number
from dpfedc.summary.choice_of_k import ChoiceOfK
from dpfedc.summary.cluster_quality import ClusterQuality
from dpfedc.summary.cluster_summary import ClusterSummary, require_name
from dpfedc.summary.summarizing import CERTAIN, summarized
from dpfedc.tables.encode import balanced, decoded
from dpfedc.tables.schema import Schema
from dpfedc.whole_files import write_whole

Float = npt.NDArray[Any]

FORMAT = "dpfedc-model-4"
EARLIER = ("dpfedc-model-1", "dpfedc-model-2", "dpfedc-model-3")
"""The third had no prototypes; those before had no sizes and no errors, and only the second could
be of a table."""
MEASURED = ("sizes", "size_errors", "center_errors")
FAR_OUT, LEAST_ERROR = 0.9, 0.002
"""In units of the length that records are clipped to."""
CHUNK = 2**15
"""Records that are assigned at a time."""
DEVICE_CHUNK = 2**26
"""Numbers of X that are assigned at a time on Torch's device."""


@dataclass(frozen=True)
class ClusterModel:
    """Everything needed to assign a record, and nothing about the records it was made from.

    `directions` is W of the factorisation. `centres` are in standardised units; where they are
    None, or `by_membership` is set, a record goes to the cluster of its largest membership,
    otherwise to the nearest centre; or, with `by_prototype`, to the cluster of the nearest of its
    `prototypes`.
    """

    directions: Float
    center: Float
    scale: float | None
    centers: Float | None = None
    by_membership: bool = True
    constant: float = 0.0
    longest: float = 1.0
    """Records longer than so many scales are clipped to that length before they are assigned."""
    penalty: Penalty = field(default_factory=Penalty)
    steps: int = 50
    nonnegative: bool = False
    feature_names: tuple[str, ...] | None = None
    about: Mapping[str, Any] = field(default_factory=dict)
    schema: Schema | None = None
    view: Mapping[str, Float] = field(default_factory=dict)
    """How the records that the schema encodes are seen: see kernels/column_view.py."""
    sizes: Float | None = None
    """How many records each cluster holds, as released: with noise, so they may be below 0."""
    size_errors: Float | None = None
    """The standard deviations of the sizes' noise (0: they are exact)."""
    center_errors: Float | None = None
    """Those of `centers`; infinite for a centre that is no mean of records."""
    within: float | None = None
    """The mean squared distance of records to their centre, as released, in standardised units."""
    stability: float | None = None
    """How much the clusters would agree if the server had started elsewhere, from 0 to 1."""
    names: Mapping[int, str] = field(default_factory=dict)
    """What people call the clusters."""
    prototypes: Float | None = None
    """What clusters were made of, if each is a group of several: like `centers`, by cluster."""
    groups: Float | None = None
    """The cluster of each prototype."""
    by_prototype: bool = False
    choice: ChoiceOfK | None = None
    """How the number of clusters was chosen, if it was."""
    quality: ClusterQuality | None = None
    """How good the clusters are, if that was asked for."""

    def __post_init__(self) -> None:
        require_number("constant", self.constant, least=0)
        require_integer("steps", self.steps, least=1)
        if self.scale is not None:
            require_number("scale", self.scale, above=0)
        require_number("longest", self.longest, least=1)
        if self.stability is not None:
            require_number("stability", self.stability, least=0, most=1)
        k, m = len(self.directions), self.center.size
        shapes = {
            "center": (m,),
            "directions": (k, m + (self.constant != 0)),
            "centers": (k, m),
            "sizes": (k,),
            "size_errors": (k,),
            "center_errors": (k, m),
        }
        if self.prototypes is not None and self.groups is not None:
            shapes |= {"prototypes": (len(self.groups), m), "groups": (len(self.groups),)}
            if not np.array_equal(np.unique(self.groups), np.arange(k)):
                raise InvalidInput(f"groups must be clusters from 0 to {k - 1}, got others")
            if (np.diff(self.groups) < 0).any():
                raise InvalidInput("prototypes must be in the order of their clusters")
        elif self.by_prototype or self.prototypes is not None or self.groups is not None:
            raise InvalidInput("prototypes must have groups, and groups prototypes")
        if self.choice is not None and self.choice.n_clusters != k:
            raise InvalidInput(f"choice must be of {k} clusters, got {self.choice.n_clusters}")
        if self.quality is not None and len(self.quality.clusters) != k:
            raise InvalidInput(f"quality must be of {k} clusters, got {len(self.quality.clusters)}")
        for cluster, name in self.names.items():
            require_integer("a cluster with a name", cluster, least=0, most=k - 1)
            require_name(name)
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
        return self._in_data_units(self.centers)

    @property
    def prototype_centers(self) -> Float:
        """Return the prototypes in data units; where there are none, the centres."""
        return self._in_data_units(self.centers if self.prototypes is None else self.prototypes)

    def _in_data_units(self, places: Float | None) -> Float:
        centers = self.directions
        if places is not None:
            centers = np.asarray(self.center + (self.scale or 1.0) * places)
            centers = np.maximum(centers, 0) if self.nonnegative else centers
        centers = np.asarray(unseen(centers, self.view))
        return centers if self.schema is None else decoded(centers, self.schema)

    def center_interval(self) -> tuple[Float, Float] | None:
        """Return between which values the centres lie, in data units, with a certainty of 95 %.

        That is as far as the known noise goes. None where it is not known; NaN for a centre that is
        no mean of records, and for a column that was left out.
        """
        if self.centers is None or self.center_errors is None:
            return None
        reach = CERTAIN * np.where(np.isfinite(self.center_errors), self.center_errors, np.nan)
        places = (self.centers - reach, self.centers, self.centers + reach)
        low, middle, high = (np.asarray(self.center + (self.scale or 1.0) * at) for at in places)
        if self.nonnegative:
            low, high = np.maximum(low, 0), np.maximum(high, 0)
        low, middle, high = (np.asarray(unseen(v, self.view)) for v in (low, middle, high))
        if self.schema is not None:
            moved = balanced(middle, self.schema) - middle
            low, high = (decoded(end + moved, self.schema, whole=False) for end in (low, high))
        left_out = self.view.get(SPREAD[1], np.ones(low.shape[1])) == 0
        low[:, left_out] = high[:, left_out] = np.nan
        return low, high

    def summary(self) -> ClusterSummary:
        """Return each cluster as people read it: in units, with error bars, what sets it apart."""
        errors = None
        if self.centers is not None and self.center_errors is not None:
            errors = (self.scale or 1.0) * self.center_errors
        made_of = None
        if self.groups is not None:
            made_of = np.bincount(self.groups.astype(int), minlength=len(self.directions)).tolist()
        found = summarized(
            self.cluster_centers,
            interval=self.center_interval(),
            seen=self.seen_centers,
            seen_errors=errors,
            sizes=self.sizes,
            size_errors=self.size_errors,
            names=self.names,
            feature_names=self.feature_names,
            schema=self.schema,
            view=self.view,
            about=self.about,
            far_out=self.far_out,
            stability=self.stability,
            n_prototypes=made_of,
        )
        return replace(found, choice=self.choice, by_prototype=self.by_prototype)

    @property
    def far_out(self) -> npt.NDArray[np.bool_]:
        """Return which clusters lie so far out that clipping moves their centres beyond noise.

        A typical record of such a cluster is about as long as records may be, or what is cut off
        (for normal records of the released spread) comes near the errors of the centre.
        """
        if self.centers is None or self.scale is None:
            return np.zeros(len(self.directions), dtype=np.bool_)
        m, within = self.center.size, max(self.within or 0.0, 0.0)
        squares = (self.centers**2).sum(axis=1)
        far = np.sqrt(squares + within) > FAR_OUT * self.longest
        if self.center_errors is None:
            return np.asarray(far)
        width = math.sqrt(within / m) + 1e-9
        room = (self.longest - np.sqrt(squares + within * (1 - 1 / m))) / width
        beyond = np.array([math.erfc(a / math.sqrt(2)) / 2 for a in room.tolist()])
        cut_off = width * (np.exp(-(room**2) / 2) / math.sqrt(2 * math.pi) - room * beyond)
        errors = np.sqrt((self.center_errors**2).mean(axis=1))
        return np.asarray(far | (cut_off > np.maximum(errors, LEAST_ERROR) / 2))

    @property
    def seen_centers(self) -> Float:
        """Return the centres as the clustering saw them; where there is no table, in data units."""
        return replace(self, schema=None, view={}).cluster_centers

    def seen(self, X: Array) -> Array:
        """Return encoded records as the clustering saw them: gaps filled, spreads alike."""
        xp, like = array_namespace(X), {"dtype": X.dtype, "device": device_of(X)}
        return seen(X, {name: xp.asarray(values, **like) for name, values in self.view.items()})

    def named(self, cluster: int, name: str) -> ClusterModel:
        """Return the model with a name for a cluster; "" takes it away."""
        require_integer("cluster", cluster, least=0, most=len(self.directions) - 1)
        others = {c: n for c, n in self.names.items() if c != cluster}
        own = {cluster: name.strip()} if name.strip() else {}
        return replace(self, names=dict(sorted({**others, **own}.items())))

    def named_as_in(self, path: Path) -> ClusterModel:
        """Return the model with the names in an earlier file, for clusters that have none here."""
        try:
            before = ClusterModel.read(path).names
        except (DataUnavailable, InvalidInput):  # there is none, or it is none
            return self
        known = {c: name for c, name in before.items() if c < len(self.directions)}
        return replace(self, names=dict(sorted({**known, **self.names}.items())))

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
        places = self.prototypes if self.by_prototype else self.centers
        centers = xp.asarray(places, **like)
        view = Standardized.of(X, center=center, scale=scale, longest=self.longest)
        distances = squared_distances(view.products(centers), view.squared_norms, centers)
        if gaps is not None:
            # A record is compared with a centre in the columns that it has.
            distances = xp.clip(distances - xp.astype(gaps, X.dtype) @ (centers**2).T, min=0.0)
        closeness = 1 / xp.clip(distances, min=float(xp.finfo(X.dtype).eps) ** 2)
        if self.by_prototype and self.groups is not None:
            # The nearest prototype of a cluster speaks for it; they stand in its order.
            ends = np.flatnonzero(np.diff(self.groups, prepend=-1.0, append=np.inf)).tolist()
            parts = [closeness[:, i:j] for i, j in pairwise(ends)]
            closeness = xp.stack([xp.max(part, axis=1) for part in parts], axis=1)
        return closeness / xp.sum(closeness, axis=1, keepdims=True)

    def to_bytes(self) -> bytes:
        """Return the model as an .npz file of plain arrays; nothing in it can run."""
        arrays: dict[str, Any] = {"directions": self.directions, "center": self.center}
        if self.centers is not None:
            arrays["centres"] = self.centers
        arrays |= self.view
        if self.prototypes is not None:
            arrays |= {"prototypes": self.prototypes, "groups": self.groups}
        arrays |= {n: getattr(self, n) for n in MEASURED if getattr(self, n) is not None}
        head = {
            "format": FORMAT,
            "scale": self.scale,
            "by_membership": self.by_membership,
            "constant": self.constant,
            "longest": self.longest,
            "penalty": asdict(self.penalty),
            "steps": self.steps,
            "within": self.within,
            "stability": self.stability,
            "nonnegative": self.nonnegative,
            "feature_names": self.feature_names,
            "about": dict(self.about),
            "names": {str(c): name for c, name in self.names.items()},
            "by_prototype": self.by_prototype,
            "choice": None if self.choice is None else self.choice.as_plain(),
            "quality": None if self.quality is None else self.quality.as_plain(),
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
            content = path.read_bytes()
        except FileNotFoundError as error:
            raise DataUnavailable(f"no such model file: {path}") from error
        except OSError as error:
            raise InvalidInput(f"{path} is not a model file written by dpfedc") from error
        return cls.from_bytes(content, str(path))

    @classmethod
    def from_bytes(cls, content: bytes, path: str = "the model") -> ClusterModel:
        """Read what `to_bytes` made; `path` is what errors call it."""
        try:
            with np.load(BytesIO(content), allow_pickle=False) as archive:
                arrays = {name: archive[name] for name in archive.files}
        except Exception as error:  # a damaged archive can fail in almost any way
            raise InvalidInput(f"{path} is not a model file written by dpfedc") from error
        try:
            head = json.loads(str(arrays.pop("head")[()]))
            if head.pop("format") not in (FORMAT, *EARLIER):
                raise InvalidInput(f"{path} was written by another version; expected {FORMAT}")
            _check_plain(head, arrays)
            names, schema = head.pop("feature_names"), head.pop("schema", None)
            choice, quality = head.pop("choice", None), head.pop("quality", None)
            called = {int(c): str(name) for c, name in head.pop("names", {}).items()}
            view = {name: arrays.pop(name) for name in VIEW if name in arrays}
            if "centres" in arrays:  # so spelled in the file
                arrays["centers"] = arrays.pop("centres")
            return cls(
                **arrays,
                **{**head, "penalty": Penalty(**head["penalty"])},
                feature_names=None if names is None else tuple(names),
                schema=None if schema is None else Schema.from_json(schema),
                view=view,
                names=called,
                choice=None if choice is None else ChoiceOfK.from_plain(choice),
                quality=None if quality is None else ClusterQuality.from_plain(quality),
            )
        except (
            KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError
        ) as error:  # fmt: skip
            raise InvalidInput(f"{path} is not a model file written by dpfedc: {error}") from error


def _check_plain(head: Mapping[str, Any], arrays: Mapping[str, Float]) -> None:
    """Say what a file that somebody edited has that no model has."""
    for name, values in arrays.items():
        if values.dtype.kind != "f":
            raise InvalidInput(f"{name} must hold floats, got {values.dtype}")
    if not isinstance(head["about"], dict):
        raise InvalidInput("about must be a table, got something else")
    names = head["feature_names"]
    if names is not None:
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise InvalidInput("feature_names must be a list of texts, got something else")
        if len(names) != arrays["center"].size:
            raise InvalidInput(
                f"feature_names must have one for each of {arrays['center'].size} features, got "
                f"{len(names)}"
            )


def _chunks(X: Array, device: str | None) -> Iterator[Array]:
    """Yield some records at a time, moved to Torch's device if one is named."""
    chunk = CHUNK
    if device is not None or not is_numpy_array(X):
        chunk = max(DEVICE_CHUNK // X.shape[1], 1)
    for start in range(0, X.shape[0], chunk):
        part = X[start : min(start + chunk, X.shape[0]), :]
        yield part if device is None else moved(part, device)
