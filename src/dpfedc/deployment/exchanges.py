"""What goes back and forth in each stage: the arrays a site is sent, and the one it returns."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dpfedc.clustering.centers import Centers, Lengths
from dpfedc.clustering.dp_fedc_planner import LINE_SCALE_FACTOR
from dpfedc.clustering.factorization import W_MAX, Factorization
from dpfedc.clustering.lloyd import LloydSums
from dpfedc.clustering.run_plan import RunPlan
from dpfedc.clustering.stage import Method, SiteBatch, State
from dpfedc.clustering.standardize import N_BINS, OCTAVES, Bound, Mean, Scale, Subspace
from dpfedc.clustering.sums_and_gram import SumsAndGram
from dpfedc.errors import InvalidInput, Refused
from dpfedc.privacy.exact import BOUND_UNITS, Upload
from dpfedc.privacy.gate import RecordSum
from dpfedc.privacy.sampling import RoundSample
from dpfedc.randomness import Randomness

Shape = tuple[int, ...]
SLACK = 1 + 1e-6
"""Room for rounding where a broadcast lies on the edge of its range."""


@dataclass(frozen=True)
class Exchange:
    """A stage, the shapes of the arrays that its rounds broadcast, and that of an upload."""

    method: Method
    sites_per_round: int
    broadcast: Mapping[str, Shape]
    upload: Shape

    def sent(self, state: State) -> dict[str, npt.NDArray[np.float64]]:
        """Return what a site is sent of the coordinator's state."""
        return {name: np.asarray(state[name], dtype=np.float64) for name in self.broadcast}

    def accepted(self, arrays: State, planned: State) -> State:
        """Return what was sent, refused unless names, shapes and ranges are as planned.

        What the plan fixes (`planned`) must be equal to it. All else may be any value that the
        stages before could have made. The refusal depends on the broadcast alone.
        """
        if {name: values.shape for name, values in arrays.items()} != dict(self.broadcast):
            got = ", ".join(f"{name} {values.shape}" for name, values in arrays.items())
            raise Refused(f"stage {self.method.name!r} must be sent {self._words()}, got {got}")
        for name, values in arrays.items():
            if values.dtype != np.float64 or not np.isfinite(values).all():
                raise Refused(f"the broadcast {name!r} must be finite floats, got other values")
            if name in planned and not np.array_equal(values, planned[name]):
                raise Refused(f"the broadcast {name!r} must be what was agreed, got other values")
        with np.errstate(all="ignore"):
            self._check_ranges(arrays, planned)
        return arrays

    def checked(self, upload: Upload, form: RecordSum, *, exact: bool) -> Upload:
        """Return what a site uploaded, refused unless it has the form of its round."""
        shape, unit = self.upload, 1.0
        if exact:
            unit = form.sensitivity / BOUND_UNITS
            if form.symmetric:
                shape = (shape[0] * (shape[0] + 1) // 2,)
        expected = (shape, "uint64" if exact else "float64", unit, exact and form.symmetric)
        if upload.kind != expected:
            raise InvalidInput(f"an upload must be of kind {expected}, got {upload.kind}")
        if not np.isfinite(upload.values).all():
            raise InvalidInput("an upload must be finite, got other values")
        return upload

    def form(self, state: State, t: int) -> RecordSum:
        """Return what one record of zeros would contribute in round t.

        Its sensitivity and its symmetry are those of all contributions, whatever the records are.
        """
        method, randomness = self.method, Randomness(0)
        X = np.zeros((1, self.broadcast["origin"][0]))
        batch = SiteBatch(X, np.array([0, 1]), np.array([0]))
        batch.memory = method.prepare(batch, state, randomness)
        contribution = method.local(batch, state, t, RoundSample(1.0, 1), randomness)
        if not isinstance(contribution, RecordSum):
            raise InvalidInput(f"stage {method.name!r} must contribute a sum over records")
        return contribution

    def _check_ranges(self, arrays: State, planned: State) -> None:
        bound = float(arrays["bound"]) if "bound" in arrays else math.inf
        if "bound" not in planned and "bound" in arrays:
            _require("bound", 2.0**-OCTAVES <= bound <= 2.0**OCTAVES)
        if "center" in arrays:
            away = np.linalg.norm((arrays["center"] - arrays["origin"]) / bound)
            _require("center", float(away) <= SLACK)
        if "scale" in arrays:
            ratio = float(arrays["scale"] / bound)
            _require("scale", Scale.smallest / SLACK <= ratio <= LINE_SCALE_FACTOR * SLACK)
        for name, most in (("basis", 1.0), ("W", W_MAX)):
            if name in arrays:
                _require(name, float(np.abs(arrays[name]).max()) <= most * SLACK)

    def _words(self) -> str:
        return ", ".join(f"{name} {shape}" for name, shape in self.broadcast.items())


def _require(name: str, good: bool) -> None:
    if not good:
        raise Refused(f"the broadcast {name!r} must be in the range of its stage, got other values")


def exchanges(
    plan: RunPlan, n_features: int, n_sites: int, *, declared_bound: bool
) -> tuple[Exchange, ...]:
    """Return what each stage of a plan exchanges; refuses a stage that cannot be deployed.

    A stage broadcasts all that is known by then and that any site's work depends on.
    """
    known: dict[str, Shape] = {"origin": (n_features,)}
    if declared_bound:
        known["bound"] = ()
    found = []
    for stage in plan.stages:
        method = stage.method
        if method.listens or (isinstance(method, Factorization) and method.extra_steps):
            raise InvalidInput(
                f"stage {method.name!r} must release one exact sum per round and keep nothing "
                "between rounds to be deployed, got one that does not (extra_steps must be 0)"
            )
        known |= _started(method, known)
        upload = _uploaded(method, known)
        found.append(Exchange(method, stage.sites_per_round or n_sites, dict(known), upload))
        known |= _released(method, known)
    return tuple(found)


def _started(method: Method, known: Mapping[str, Shape]) -> dict[str, Shape]:
    """Return what a stage's start adds to what is known."""
    (m,) = known["origin"]
    made: dict[str, Shape] = {}
    if isinstance(method, Scale | Subspace | Factorization):
        made["center"] = (m,)
    if isinstance(method, Subspace | Factorization):
        made["scale"] = ()
    if isinstance(method, Factorization):
        width = known["basis"][0] if "basis" in known else m + (method.constant != 0)
        made["W"] = (method.n_clusters, width)
    if isinstance(method, Centers | LloydSums):
        made["centres"] = (method.n_clusters, m)
    return made


def _released(method: Method, known: Mapping[str, Shape]) -> dict[str, Shape]:
    """Return what a stage's rounds add to what is known."""
    (m,) = known["origin"]
    if isinstance(method, Bound):
        return {"bound": ()}
    if isinstance(method, Mean):
        return {"center": (m,)}
    if isinstance(method, Scale):
        return {"scale": ()}
    return {"basis": (method.n_dimensions, m)} if isinstance(method, Subspace) else {}


def _uploaded(method: Method, known: Mapping[str, Shape]) -> Shape:
    """Return the shape of a site's upload; SumsAndGram comes before what it is a kind of."""
    (m,) = known["origin"]
    k = getattr(method, "n_clusters", 0)
    shapes: tuple[tuple[type, Shape], ...] = (
        (Bound, (N_BINS,)),
        (Mean, (m,)),
        (Scale, ()),
        (Subspace, (m, m)),
        (SumsAndGram, (k, known.get("W", (0, 0))[-1] + k)),
        (Factorization, known.get("W", ())),
        (Lengths, (k, 2)),
        (Centers, (k, m + 2)),
        (LloydSums, (k, m + 1)),
    )
    for kind, shape in shapes:
        if isinstance(method, kind):
            return shape
    raise InvalidInput(f"stage {method.name!r} has no proof, and cannot be deployed")
