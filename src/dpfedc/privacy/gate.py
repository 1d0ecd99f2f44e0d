"""The release gate: nothing a site computed reaches a server except through a `Gate`.

A stage hands the gate what some sites contribute, unreleased. The gate checks it against the plan,
charges it, clips it, adds noise, and returns an `Upload`, which may leave the site. The server
makes a `Released` value of the uploads of a round (`received`). `Released` cannot be made anywhere
else, and stages combine nothing else. In one process `Gate.release` does both. Every release has an
event, from which epsilon can be computed again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import InitVar, dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from array_api_compat import array_namespace, device

from dpfedc.errors import DPFedCError, InvalidInput
from dpfedc.kernels import Array
from dpfedc.kernels.devices import on_host
from dpfedc.privacy.charges import due_release
from dpfedc.privacy.exact_sums import Upload, decoded, exact_sum, exact_upload
from dpfedc.privacy.noise import SecureNoise, SimulatedNoise
from dpfedc.privacy.privacy_plan import PlannedRelease, PrivacyPlan
from dpfedc.privacy.sampling import (
    RoundSample,
    Unused,
    sampled_by_coins,
    sampled_by_secret_coins,
    sampled_by_slot,
)
from dpfedc.privacy.sums import Batch, OuterSum, Part, kept, summed
from dpfedc.randomness import Randomness
from dpfedc.settings import require_integer

OnCharge = Callable[[str, int], None]
"""Called with stage and round."""
_GATE = object()
NO_EXACT_SUM = (
    "stage {!r} must be a sum over records to have secure noise: local steps (extra_steps > 0) and "
    "uploads of points have no exact sum"
)


@dataclass(frozen=True)
class ReleaseEvent:
    """What one release was: z (0: no noise), q, and the noise in the sum over the sites.

    `n_records` are the records of the sites that took part, in the round or not.
    """

    stage: str
    t: int
    n_sites: int
    n_records: int
    noise_multiplier: float = 0.0
    sampling_probability: float = 1.0
    sensitivity: float = math.inf
    noise_std: float = 0.0


@dataclass(frozen=True)
class Released:
    """A sum over sites that has passed a gate, and the event that says how."""

    value: Array
    event: ReleaseEvent
    made_by: InitVar[object]

    def __post_init__(self, made_by: object) -> None:
        if made_by is not _GATE:
            raise DPFedCError("Released values are made by Gate.release only, or received")

    @property
    def n_sites(self) -> int:
        """Return the number of sites in the sum."""
        return self.event.n_sites

    @property
    def n_records(self) -> float:
        """Return the expected number of records in the sum, never the realised one."""
        return self.event.sampling_probability * self.event.n_records


def received(
    uploads: Sequence[Upload],
    event: ReleaseEvent,
    *,
    asarray: Callable[[Any], Array] | None = None,
) -> Released:
    """Return the sum of a round's uploads, as the server may use it.

    Exact sums come as NumPy float64 arrays; `asarray` turns them into those of the server's state.
    """
    return Released(decoded(uploads, asarray), event, _GATE)


def planned_event(
    plan: PrivacyPlan,
    stage: str,
    t: int,
    *,
    n_sites: int,
    n_records: int,
    sensitivity: float,
    noise: float | None = None,
) -> ReleaseEvent:
    """Return the event of a round that these sites released as planned.

    `noise` is in units of sensitivity; without it, it is that of the sum over the sites.
    """
    planned = plan.of_stage(stage)
    noise = plan.noise_of_sum(stage, n_sites) if noise is None else noise
    return ReleaseEvent(
        stage,
        t,
        n_sites,
        n_records,
        planned.noise_multiplier,
        planned.sampling_probability,
        sensitivity,
        sensitivity * noise,
    )


@dataclass
class Gate:
    """The gate of a run with a plan: one site's, or that of all sites in one process.

    With `SecureNoise` sums are exact, and coins come from the operating system, not `randomness`.
    A gate `of_one_site` adds that site's own noise, whoever else adds to the sum elsewhere.
    `on_charge` is called before a release that takes some site further than any has come in the
    stage; what it raises stops the release.
    """

    plan: PrivacyPlan
    noise: SimulatedNoise | SecureNoise
    randomness: Randomness | None = None
    events: list[ReleaseEvent] = field(default_factory=list)
    on_charge: OnCharge | None = None
    of_one_site: bool = False
    _charged: dict[str, npt.NDArray[np.int64]] = field(default_factory=dict)
    _last_round: dict[str, npt.NDArray[np.int64]] = field(default_factory=dict)
    _sampled: dict[str, npt.NDArray[np.int64]] = field(default_factory=dict)
    _drawn: Unused = field(default_factory=Unused)

    @property
    def works_in_parts(self) -> bool:
        """Return whether a round may be worked through in place, a few sites at a time."""
        return isinstance(self.noise, SimulatedNoise)

    def sample(self, batch: Batch, *, stage: str, t: int, n_parts: int = 1) -> RoundSample:
        """Return which records are in the round, as the plan has it: for one release of them."""
        q = self.plan.of_stage(stage).sampling_probability
        secure = isinstance(self.noise, SecureNoise)
        if secure and n_parts > 1:
            raise InvalidInput(NO_EXACT_SUM.format(stage))
        if q < 1:  # drawn again, they could be drawn until they please
            last = self._sampled.setdefault(stage, np.zeros(self.plan.n_sites, dtype=np.int64))
            if int(last[batch.sites].max()) >= t:
                raise InvalidInput(f"coins of stage {stage!r} are drawn once a round, in order")
            last[batch.sites] = t
        if q == 1:
            sample = sampled_by_slot(batch, n_parts)
        elif secure:
            sample = sampled_by_secret_coins(batch, q)
        elif self.randomness is not None:
            coins = self.randomness
            sample = sampled_by_coins(batch, q, n_parts, randomness=coins, stage=stage, t=t)
        else:
            raise DPFedCError(f"stage {stage!r} needs coins, but the gate has no source of them")
        self._drawn.keep(sample, batch, stage=stage, t=t)
        return sample

    def release(
        self,
        parts: Iterable[Part],
        sites: npt.NDArray[Any],
        *,
        stage: str,
        t: int,
        sensitivity: float,
    ) -> Released:
        """Let the sum over the sites out, and receive it: all sites in one process."""
        likes: list[Array] = []

        def seen() -> Iterable[Part]:
            for part in parts:
                likes[:] = [part[0].like]
                yield part

        upload = self.upload(seen(), sites, stage=stage, t=t, sensitivity=sensitivity)
        like = likes[0]

        def asarray(sums: Any) -> Array:
            return array_namespace(like).asarray(sums, dtype=like.dtype, device=device(like))

        return received([upload], self.events[-1], asarray=asarray)

    def upload(
        self,
        parts: Iterable[Part],
        sites: npt.NDArray[Any],
        *,
        stage: str,
        t: int,
        sensitivity: float,
    ) -> Upload:
        """Charge, clip, add noise, and return the sum over the sites as it may leave.

        The sites are worked through in parts, made one after another, so that no more than one of
        them is in memory: one charge, one noise. Every record is clipped to the `sensitivity`.
        """
        planned = self._charge(stage, t, sites)
        total: Any = 0
        done, n_records, symmetric = [], 0, set()
        for part in parts:
            contribution, batch, sample = part
            _require_rows(stage, part)
            self._require_drawn(planned, sample, batch, t)
            _require_sensitivity(stage, sensitivity, contribution.like)
            total = self._sum(part, stage, sensitivity) + total
            done.append(batch.sites)
            n_records += batch.n_records
            symmetric.add(contribution.symmetric)
        if len(symmetric) != 1 or not np.array_equal(np.concatenate(done), sites):
            raise DPFedCError(f"stage {stage!r} must have parts of one kind, for each site once")
        std = self._noise(stage, len(sites))
        event = planned_event(
            self.plan, stage, t, n_sites=len(sites), n_records=n_records, sensitivity=sensitivity,
            noise=std,
        )  # fmt: skip
        (is_symmetric,) = symmetric
        if isinstance(self.noise, SecureNoise):
            upload, noise_std = exact_upload(
                total,
                sensitivity,
                noise=self.noise,
                multiplier=std,
                symmetric=is_symmetric,
            )
            event = replace(event, noise_std=noise_std)
        else:
            noise = self.noise.gaussian(
                tuple(total.shape), event.noise_std, stage=stage, t=t, sites=sites
            )
            upload = Upload(with_noise(total, noise, symmetric=is_symmetric))
        self.events.append(event)
        return upload

    def _noise(self, stage: str, n_sites: int) -> float:
        """Return the noise's standard deviation, in units of sensitivity."""
        if not self.of_one_site:
            return self.plan.noise_of_sum(stage, n_sites)
        if n_sites != 1:
            raise InvalidInput(f"one site's gate must release for one site, got {n_sites}")
        return self.plan.noise_of_site(stage)

    def _sum(self, part: Part, stage: str, bound: float) -> Any:
        """Return the sum of what some sites contribute, clipped, in floats or in grid units."""
        if not isinstance(self.noise, SecureNoise):
            return summed(part, bound)
        contribution, batch, sample = part
        if not isinstance(contribution, OuterSum):
            raise InvalidInput(NO_EXACT_SUM.format(stage))
        finite = np.isfinite(on_host(contribution.norms))
        keep = kept(batch, sample, contribution.like)
        keep = finite if keep is None else finite & (on_host(keep) > 0)
        return exact_sum(contribution, keep, bound)

    def _require_drawn(
        self, planned: PlannedRelease, sample: RoundSample, batch: Batch, t: int
    ) -> None:
        """Refuse records that this gate did not draw as planned, for this round and this batch."""
        stage, q = planned.stage, planned.sampling_probability
        if sample.probability != q:
            raise InvalidInput(
                f"stage {stage!r} must sample records with probability {q}, "
                f"got {sample.probability}"
            )
        if not self._drawn.take(sample, batch, stage=stage, t=t):
            what = "coins that the gate drew" if q < 1 else "parts the gate dealt"
            raise InvalidInput(f"stage {stage!r} must use the {what} for round {t}, once")

    def _charge(self, stage: str, t: int, sites: npt.NDArray[Any]) -> PlannedRelease:
        """Count the release at every site, before anything is computed from its records."""
        n_sites, sites = self.plan.n_sites, np.asarray(sites)
        # A mask or a list of none would be charged to others than those who release.
        numbered = sites.ndim == 1 and len(sites) > 0 and sites.dtype.kind in "iu"
        ordered = np.sort(sites)
        if (
            not numbered
            or bool((ordered[1:] == ordered[:-1]).any())
            or not 0 <= ordered[0] <= ordered[-1] < n_sites
        ):
            raise InvalidInput(f"sites must be distinct numbers below {n_sites}, got {sites}")
        require_integer("t", t, least=1)
        counts = self._charged.setdefault(stage, np.zeros(n_sites, dtype=np.int64))
        last = self._last_round.setdefault(stage, np.zeros(n_sites, dtype=np.int64))
        planned = due_release(
            self.plan,
            stage,
            t,
            n_charged=int(counts[sites].max()),
            last_round=int(last[sites].max()),
        )
        if len(sites) > planned.sites_per_round:
            raise InvalidInput(
                f"a round of stage {stage!r} is planned for {planned.sites_per_round} sites, "
                f"got {len(sites)}"
            )
        if self.on_charge is not None and counts[sites].max() == counts.max():
            self.on_charge(stage, t)
        counts[sites] += 1
        last[sites] = t
        return planned


def with_noise(value: Array, noise: Array, *, symmetric: bool = False) -> Array:
    """Return value plus noise; of a symmetric matrix only the upper triangle counts, mirrored."""
    xp = array_namespace(value)
    if symmetric:
        # A computed x x' is symmetric only up to rounding, and mirrored noise would cancel in the
        # difference of two mirrored entries: what lies below the diagonal never leaves.
        value = xp.triu(value) + xp.triu(value, k=1).T
        # One draw per pair. Off the diagonal a record's change counts twice in the norm, so the
        # upper triangle has sensitivity bound / sqrt(2) there.
        own = array_namespace(noise)
        upper = own.triu(noise, k=1) / math.sqrt(2)
        diagonal = own.triu(noise) - own.triu(noise, k=1)
        noise = upper + upper.T + diagonal
    return value + xp.asarray(noise, dtype=value.dtype, device=device(value))


def _require_rows(stage: str, part: Part) -> None:
    """Refuse a contribution that is not of the batch's records, one row and one coin for each."""
    contribution, batch, sample = part
    n = (batch.n_records,)
    shapes = [] if sample.part is None else [sample.part.shape]
    if batch.present is not None:
        shapes.append(tuple(batch.present.shape))
    if isinstance(contribution, OuterSum):
        shapes.append(tuple(contribution.norms.shape))
    if any(shape != n for shape in shapes):
        raise InvalidInput(f"stage {stage!r} must contribute one row for each of {n[0]} records")


def _require_sensitivity(stage: str, sensitivity: float, like: Array) -> None:
    """Refuse a bound that is infinite, or too short to be clipped to in this precision."""
    limits = array_namespace(like).finfo(like.dtype)
    # Norms as short as this lose their digits when squared, and clipping needs them.
    least = math.sqrt(float(limits.smallest_normal) / float(limits.eps))
    if not least < sensitivity < math.inf:
        raise InvalidInput(
            f"stage {stage!r} must state a sensitivity > {least:.1e}, got {sensitivity}"
        )
