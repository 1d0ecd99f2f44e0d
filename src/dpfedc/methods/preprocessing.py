"""The stages before clustering: the records' mean, and the typical distance from it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from array_api_compat import array_namespace

from dpfedc.kernels import Array
from dpfedc.kernels.standardized import Standardized, centered_norms
from dpfedc.methods.protocol import Method, Public, SiteBatch, State
from dpfedc.privacy.mechanism import RecordSum, Released
from dpfedc.randomness import Randomness


def standardized_memory(batch: SiteBatch, state: State, constant: float) -> dict[str, Array]:
    """Return the per-record numbers of the standardised view, so that no round computes them."""
    view = Standardized.of(
        batch.X, center=state["center"], scale=state.get("scale"), constant=constant
    )
    return {"factors": view.factors, "squared_norms": view.squared_norms}


def standardized_view(batch: SiteBatch, state: State, constant: float) -> Standardized:
    """Return the batch's records as the method sees them, from what the sites remember."""
    memory = batch.memory
    return Standardized(
        batch.X, state["center"], memory["factors"], memory["squared_norms"], constant
    )


@dataclass(frozen=True)
class Mean(Method):
    """Release the sum of the records; the state's `center` becomes their mean."""

    name: str = "mean"
    n_rounds: int = 1

    def start(self, state: State, public: Public, randomness: Randomness) -> State:
        """Return the state with the centre at the origin."""
        return {**state, "center": public.asarray(np.zeros(public.n_features))}

    def local(self, batch: SiteBatch, state: State, t: int, randomness: Randomness) -> RecordSum:
        """Return the sum of x_j."""
        norms = centered_norms(batch.X, state["center"])
        return RecordSum(norms, math.inf, lambda weights: weights @ batch.X)

    def combine(self, state: State, released: Released, t: int) -> State:
        """Return the state with the mean as its centre."""
        return {**state, "center": released.value / released.n_records}


@dataclass(frozen=True)
class Scale(Method):
    """Release the sum of |x_j - center|; the state's `scale` becomes `factor` times its mean.

    Records farther out than the scale are clipped to it, so the factor is a little over one.
    """

    name: str = "scale"
    n_rounds: int = 1
    factor: float = 1.3

    def start(self, state: State, public: Public, randomness: Randomness) -> State:
        """Return the state with a scale to be replaced, and a centre if none was released."""
        center = public.asarray(np.zeros(public.n_features))
        return {"center": center, **state, "scale": public.asarray(np.asarray(1.0))}

    def local(self, batch: SiteBatch, state: State, t: int, randomness: Randomness) -> RecordSum:
        """Return the sum of |x_j - center|."""
        xp = array_namespace(batch.X)
        norms = centered_norms(batch.X, state["center"])
        finite = xp.where(xp.isfinite(norms), norms, xp.zeros_like(norms))
        return RecordSum(norms, math.inf, lambda weights: xp.sum(weights * finite))

    def combine(self, state: State, released: Released, t: int) -> State:
        """Return the state with the new scale, kept above zero."""
        xp = array_namespace(released.value)
        tiny = float(xp.finfo(released.value.dtype).smallest_normal) ** 0.5
        scale = self.factor * released.value / released.n_records
        return {**state, "scale": xp.clip(scale, min=tiny)}
