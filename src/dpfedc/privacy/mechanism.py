"""The release gate: nothing a site computed reaches a server except through `Gate.release`.

A method hands the gate an unreleased contribution; the gate checks it against the plan, charges it,
clips it, adds noise, and returns a `Released` value. `Released` cannot be made anywhere else, and
the federation combines nothing else. The gate logs an event for every release, from which epsilon
can be computed again.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import InitVar, dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from array_api_compat import array_namespace, device

from dpfedc.errors import DPFedCError, InvalidInput
from dpfedc.kernels import Array
from dpfedc.kernels.clipping import clip_weights
from dpfedc.privacy.noise import Noise
from dpfedc.privacy.plan import PlannedRelease, PrivacyPlan
from dpfedc.privacy.sampling import Dealing, Rows, dealt_by_coins, dealt_by_slot
from dpfedc.randomness import Randomness

_GATE = object()


class Batch(Rows, Protocol):
    """What the gate needs to know of the sites whose work it releases."""

    present: Array | None

    @property
    def n_records(self) -> int:
        """Return the number of records, null ones included."""
        ...


@dataclass(frozen=True)
class RecordSum:
    """Unreleased: the sum over records of phi_j, where |phi_j| <= norms_j.

    `total(w)` returns the sum of w_j phi_j. The gate chooses w so that no record contributes more
    than `bound`, and a null or unsampled record nothing: `bound` is the sum's sensitivity. A
    `symmetric` sum of x x' is released as its upper triangle.
    """

    norms: Array
    bound: float
    total: Callable[[Array], Array]
    symmetric: bool = False


@dataclass(frozen=True)
class SiteValues:
    """Unreleased: one array per site, stacked, whose sum one record changes by `sensitivity`.

    `noise_std` is for the published variant alone: the noise that the paper states, per site.
    """

    values: Array
    sensitivity: float = math.inf
    noise_std: npt.NDArray[Any] | None = None


@dataclass(frozen=True)
class SiteUploads:
    """Unreleased: one array per site, stacked, to be let out one by one with the stated noise.

    Some methods of the literature upload points. Nothing is proved for that, so a gate with a plan
    refuses it.
    """

    values: Array
    noise_std: npt.NDArray[Any] | None = None


Contribution = RecordSum | SiteValues | SiteUploads


@dataclass(frozen=True)
class Released:
    """A sum over sites that has passed the gate, with the public counts it stands for.

    `n_records` is the expected number of records in the round, never the realised one.
    """

    value: Array
    n_sites: int
    n_records: float
    made_by: InitVar[object]

    def __post_init__(self, made_by: object) -> None:
        if made_by is not _GATE:
            raise DPFedCError("Released values are made by Gate.release only")


@dataclass(frozen=True)
class ReleaseEvent:
    """What one release was: z (0: no noise), q, and the noise in the sum over the sites."""

    stage: str
    t: int
    n_sites: int
    noise_multiplier: float
    sampling_probability: float
    sensitivity: float
    noise_std: float


@dataclass
class Gate:
    """The gate of a run. Without a plan there is no guarantee, and results must be stamped so."""

    randomness: Randomness
    noise: Noise | None = None
    plan: PrivacyPlan | None = None
    events: list[ReleaseEvent] = field(default_factory=list)
    _spent: dict[str, npt.NDArray[np.int64]] = field(default_factory=dict)
    _last_round: dict[str, npt.NDArray[np.int64]] = field(default_factory=dict)
    _dealt: dict[str, Dealing] = field(default_factory=dict)

    def deal(self, batch: Batch, *, stage: str, t: int, n_parts: int = 1) -> Dealing:
        """Return which records are in the round, as the plan has it."""
        q = 1.0 if self.plan is None else self.plan.of_stage(stage).sampling_probability
        if q == 1:
            return dealt_by_slot(batch, n_parts)
        self._dealt[stage] = dealt_by_coins(
            batch, q, n_parts, randomness=self.randomness, stage=stage, t=t
        )
        return self._dealt[stage]

    def release(
        self, contribution: Contribution, batch: Batch, dealing: Dealing, *, stage: str, t: int
    ) -> Released:
        """Charge, clip, add noise, and let the sum over the batch's sites out."""
        planned = self._charged(stage, t, batch.sites, dealing)
        if isinstance(contribution, SiteUploads):
            return self._uploads(contribution, batch, dealing, stage, t)
        if isinstance(contribution, RecordSum):
            sensitivity = contribution.bound
            value = contribution.total(self._weights(contribution, batch, dealing))
        else:
            sensitivity = contribution.sensitivity
            value = array_namespace(contribution.values).sum(contribution.values, axis=0)
        std, z = 0.0, 0.0
        if planned is not None and self.plan is not None:
            limits = array_namespace(value).finfo(value.dtype)
            # Norms as short as this lose their digits when squared, and clipping needs them.
            least = math.sqrt(float(limits.smallest_normal) / float(limits.eps))
            if not least < sensitivity < math.inf:
                raise InvalidInput(
                    f"stage {stage!r} must state a sensitivity > {least:.1e}, got {sensitivity}"
                )
            z = planned.noise_multiplier
            std = sensitivity * self.plan.noise_of_sum(stage, len(batch.sites))
            symmetric = isinstance(contribution, RecordSum) and contribution.symmetric
            value = self._noisy(value, std, batch.sites, stage, t, symmetric=symmetric)
        elif isinstance(contribution, SiteValues) and contribution.noise_std is not None:
            for i, site_std in enumerate(contribution.noise_std.tolist()):
                value = self._noisy(value, site_std, batch.sites[i : i + 1], stage, t)
        self.events.append(
            ReleaseEvent(stage, t, len(batch.sites), z, dealing.probability, sensitivity, std)
        )
        expected = dealing.probability * batch.n_records
        return Released(value, len(batch.sites), expected, _GATE)

    def realised(self) -> tuple[PlannedRelease, ...]:
        """Return, from the log, the releases that the most charged site has met in each stage."""
        return tuple(
            PlannedRelease(
                stage,
                len(events := [event for event in self.events if event.stage == stage]),
                max(event.n_sites for event in events),
                int(counts.max()),
                min(event.noise_multiplier for event in events),
                max(event.sampling_probability for event in events),
            )
            for stage, counts in self._spent.items()
        )

    def _charged(
        self, stage: str, t: int, sites: npt.NDArray[Any], dealing: Dealing
    ) -> PlannedRelease | None:
        """Count the release at every site, before anything is computed from its records."""
        if self.plan is None:
            return None
        planned, n_sites = self.plan.of_stage(stage), self.plan.n_sites
        if dealing.probability != planned.sampling_probability:
            raise InvalidInput(
                f"stage {stage!r} must sample records with probability "
                f"{planned.sampling_probability}, got {dealing.probability}"
            )
        if planned.sampling_probability < 1 and dealing is not self._dealt.get(stage):
            raise InvalidInput(f"stage {stage!r} must use the coins that the gate drew for it")
        if len(np.unique(sites)) < len(sites) or not 0 <= min(sites) <= max(sites) < n_sites:
            raise InvalidInput(f"sites must be distinct numbers below {n_sites}, got {sites}")
        last = self._last_round.setdefault(stage, np.zeros(n_sites, dtype=np.int64))
        if int(last[sites].max()) >= t:
            # Noise and coins are keyed by the round: a second release would share them.
            raise InvalidInput(
                f"round {t} of stage {stage!r} must come after round {int(last[sites].max())}, "
                "which one of these sites has released"
            )
        counts = self._spent.setdefault(stage, np.zeros(n_sites, dtype=np.int64))
        if int(counts[sites].max()) >= planned.rounds_per_site:
            raise InvalidInput(
                f"stage {stage!r} is planned for {planned.rounds_per_site} releases of a site, "
                "got one more"
            )
        counts[sites] += 1
        last[sites] = t
        return planned

    def _uploads(
        self, contribution: SiteUploads, batch: Batch, dealing: Dealing, stage: str, t: int
    ) -> Released:
        if self.plan is not None:
            raise InvalidInput(f"stage {stage!r} uploads points, for which no privacy is proved")
        value, std = contribution.values, contribution.noise_std
        if std is not None:
            xp = array_namespace(value)
            noisy = [
                self._noisy(value[i, ...], site_std, batch.sites[i : i + 1], stage, t)
                for i, site_std in enumerate(std.tolist())
            ]
            value = xp.stack(noisy, axis=0)
        self.events.append(ReleaseEvent(stage, t, len(batch.sites), 0.0, 1.0, math.inf, 0.0))
        return Released(value, len(batch.sites), dealing.probability * batch.n_records, _GATE)

    def _weights(self, contribution: RecordSum, batch: Batch, dealing: Dealing) -> Array:
        xp, on = array_namespace(contribution.norms), device(contribution.norms)
        keep = batch.present
        if dealing.in_round is not None:
            drawn = xp.asarray(dealing.in_round, device=on)
            keep = drawn if keep is None else keep & drawn
        return clip_weights(contribution.norms, contribution.bound, keep)

    def _noisy(
        self,
        value: Array,
        std: float,
        sites: npt.NDArray[Any],
        stage: str,
        t: int,
        *,
        symmetric: bool = False,
    ) -> Array:
        if self.noise is None:
            raise DPFedCError(f"stage {stage!r} needs noise, but the gate has no source of it")
        xp, shape = array_namespace(value), tuple(value.shape)
        noise = self.noise.gaussian(shape, std, stage=stage, t=t, sites=sites)
        if symmetric:
            # A computed x x' is symmetric only up to rounding, and mirrored noise would cancel in
            # the difference of two mirrored entries: what lies below the diagonal never leaves.
            value = xp.triu(value) + xp.triu(value, k=1).T
            # One draw per pair. Off the diagonal a record's change counts twice in the norm, so
            # the upper triangle has sensitivity bound / sqrt(2) there.
            upper = np.triu(noise, 1) / math.sqrt(2)
            noise = upper + upper.T + np.diag(np.diag(noise))
        return value + xp.asarray(noise, dtype=value.dtype, device=device(value))
