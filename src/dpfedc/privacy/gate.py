"""The release gate: nothing a site computed reaches a server except through a `Gate`.

A method hands the gate an unreleased contribution; the gate checks it against the plan, charges it,
clips it, adds noise, and returns an `Upload`, which may leave the site. The server makes a
`Released` value of the uploads of a round (`received`). `Released` cannot be made anywhere else,
and the federation combines nothing else. In one process `Gate.release` does both. The gate logs an
event for every release, from which epsilon can be computed again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import InitVar, dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from array_api_compat import array_namespace, device

from dpfedc.errors import DPFedCError, InvalidInput
from dpfedc.kernels import Array
from dpfedc.kernels.clipping import clip_weights
from dpfedc.kernels.host import on_host
from dpfedc.privacy.exact import Upload, decoded, exact_upload
from dpfedc.privacy.noise import Noise, SecureNoise
from dpfedc.privacy.privacy_plan import PlannedRelease, PrivacyPlan
from dpfedc.privacy.sampling import (
    RoundSample,
    Unused,
    sampled_by_coins,
    sampled_by_secret_coins,
    sampled_by_slot,
)
from dpfedc.privacy.sums import (
    Batch,
    ClippedSum,
    Contribution,
    RecordSum,
    SiteUploads,
    SiteValues,
)
from dpfedc.randomness import Randomness

__all__ = [
    "Batch",
    "ClippedSum",
    "Contribution",
    "Gate",
    "RecordSum",
    "ReleaseEvent",
    "Released",
    "SiteUploads",
    "SiteValues",
    "Upload",
    "received",
]

_GATE = object()
Part = tuple[RecordSum | ClippedSum | SiteValues, Batch, RoundSample]
"""What some of a round's sites contribute."""
NO_EXACT_SUM = (
    "stage {!r} must be a sum over records to have secure noise: local steps (extra_steps > 0) and "
    "uploads of points have no exact sum"
)


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
            raise DPFedCError("Released values are made by Gate.release only, or received")


def received(
    uploads: Sequence[Upload],
    n_sites: int,
    n_records: float,
    *,
    asarray: Callable[[Any], Array] | None = None,
) -> Released:
    """Return the sum of a round's uploads, as the server may use it.

    Exact sums come as NumPy float64 arrays; `asarray` turns them into those of the server's state.
    """
    return Released(decoded(uploads, asarray), n_sites, n_records, _GATE)


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
    """The gate of a run. Without a plan there is no guarantee, and results must be stamped so.

    With `SecureNoise` sums are exact, and coins come from the operating system, not `randomness`.
    """

    randomness: Randomness | None = None
    noise: Noise | SecureNoise | None = None
    plan: PrivacyPlan | None = None
    events: list[ReleaseEvent] = field(default_factory=list)
    _spent: dict[str, npt.NDArray[np.int64]] = field(default_factory=dict)
    _last_round: dict[str, npt.NDArray[np.int64]] = field(default_factory=dict)
    _dealt: Unused = field(default_factory=Unused)

    def __post_init__(self) -> None:
        if isinstance(self.noise, SecureNoise) and self.plan is None:
            raise InvalidInput("secure noise must come with a privacy plan, got none")

    def sample(self, batch: Batch, *, stage: str, t: int, n_parts: int = 1) -> RoundSample:
        """Return which records are in the round, as the plan has it: for one release of them."""
        q = 1.0 if self.plan is None else self.plan.of_stage(stage).sampling_probability
        secure = isinstance(self.noise, SecureNoise)
        if secure and n_parts > 1:
            raise InvalidInput(NO_EXACT_SUM.format(stage))
        if q == 1:
            sample = sampled_by_slot(batch, n_parts)
        elif secure:
            sample = sampled_by_secret_coins(batch, q)
        elif self.randomness is not None:
            coins = self.randomness
            sample = sampled_by_coins(batch, q, n_parts, randomness=coins, stage=stage, t=t)
        else:
            raise DPFedCError(f"stage {stage!r} needs coins, but the gate has no source of them")
        if self.plan is not None:
            self._dealt.keep(sample, batch, stage=stage, t=t)
        return sample

    def release(
        self, contribution: Contribution, batch: Batch, sample: RoundSample, *, stage: str, t: int
    ) -> Released:
        """Let the sum over the batch's sites out, and receive it: all sites in one process."""
        n_sites, expected = len(batch.sites), sample.probability * batch.n_records
        if isinstance(contribution, SiteUploads):
            value = self._points(contribution, batch, stage, t)
            return Released(value, n_sites, expected, _GATE)
        upload = self.upload(contribution, batch, sample, stage=stage, t=t)
        like = contribution.like

        def asarray(sums: Any) -> Array:
            return array_namespace(like).asarray(sums, dtype=like.dtype, device=device(like))

        return received([upload], n_sites, expected, asarray=asarray)

    def release_parts(
        self, parts: Iterable[Part], sites: npt.NDArray[Any], *, stage: str, t: int
    ) -> Released:
        """Let the sum over the sites out, which are worked through in parts: one charge, one noise.

        The parts are made one after another, so that no more than one of them is in memory.
        """
        planned = self._charged(stage, t, sites)
        value: Array = 0.0
        done, expected, kinds = [], 0.0, set()
        for contribution, batch, sample in parts:
            self._require_dealt(sample, batch, stage, t)
            value = self._sum(contribution, batch, sample) + value
            done.append(batch.sites)
            expected += sample.probability * batch.n_records
            kinds.add((contribution.sensitivity, contribution.symmetric, sample.probability))
        if not np.array_equal(np.concatenate(done), sites) or len(kinds) > 1:
            raise DPFedCError(f"stage {stage!r} must have parts of one kind, for each site once")
        sensitivity, symmetric, probability = kinds.pop()
        z, std = 0.0, 0.0
        if planned is not None:
            z = planned.noise_multiplier
            value, std = self._with_noise(value, sensitivity, sites, stage, t, symmetric=symmetric)
        self.events.append(ReleaseEvent(stage, t, len(sites), z, probability, sensitivity, std))
        return Released(value, len(sites), expected, _GATE)

    def upload(
        self, contribution: Contribution, batch: Batch, sample: RoundSample, *, stage: str, t: int
    ) -> Upload:
        """Charge, clip, add noise, and return the sum over the batch's sites as it may leave."""
        if isinstance(contribution, SiteUploads):
            raise InvalidInput(f"stage {stage!r} uploads points, for which no privacy is proved")
        self._require_dealt(sample, batch, stage, t)
        planned = self._charged(stage, t, batch.sites)
        sensitivity, z, std = contribution.sensitivity, 0.0, 0.0
        if planned is not None:
            z = planned.noise_multiplier
        if isinstance(self.noise, SecureNoise) and self.plan is not None:
            if not isinstance(contribution, RecordSum) or contribution.terms is None:
                raise InvalidInput(NO_EXACT_SUM.format(stage))
            _require_sensitivity(stage, sensitivity, contribution.norms)
            keep = on_host(self._weights(contribution, batch, sample)) > 0
            upload, std = exact_upload(
                contribution.terms,
                keep,
                sensitivity,
                noise=self.noise,
                multiplier=self.plan.noise_of_sum(stage, len(batch.sites)),
                symmetric=contribution.symmetric,
            )
        else:
            value = self._sum(contribution, batch, sample)
            if planned is not None:
                value, std = self._with_noise(
                    value, sensitivity, batch.sites, stage, t, symmetric=contribution.symmetric
                )
            elif isinstance(contribution, SiteValues) and contribution.noise_std is not None:
                for i, site_std in enumerate(contribution.noise_std.tolist()):
                    value = self._noisy(value, site_std, batch.sites[i : i + 1], stage, t)
            upload = Upload(value)
        self.events.append(
            ReleaseEvent(stage, t, len(batch.sites), z, sample.probability, sensitivity, std)
        )
        return upload

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

    def _require_dealt(self, sample: RoundSample, batch: Batch, stage: str, t: int) -> None:
        """Refuse records that this gate did not draw as planned, for this round and this batch."""
        if self.plan is None:
            return
        planned = self.plan.of_stage(stage)
        if sample.probability != planned.sampling_probability:
            raise InvalidInput(
                f"stage {stage!r} must sample records with probability "
                f"{planned.sampling_probability}, got {sample.probability}"
            )
        if not self._dealt.take(sample, batch, stage=stage, t=t):
            what = "coins that the gate drew" if sample.probability < 1 else "parts the gate dealt"
            raise InvalidInput(f"stage {stage!r} must use the {what} for round {t}, once")

    def _charged(self, stage: str, t: int, sites: npt.NDArray[Any]) -> PlannedRelease | None:
        """Count the release at every site, before anything is computed from its records."""
        if self.plan is None:
            return None
        planned, n_sites = self.plan.of_stage(stage), self.plan.n_sites
        ordered = np.sort(sites)
        repeated = bool((ordered[1:] == ordered[:-1]).any())
        if repeated or not 0 <= ordered[0] <= ordered[-1] < n_sites:
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

    def _sum(
        self, contribution: RecordSum | ClippedSum | SiteValues, batch: Batch, sample: RoundSample
    ) -> Array:
        """Return the sum of what the sites contribute, clipped, without noise."""
        if isinstance(contribution, RecordSum):
            return contribution.total(self._weights(contribution, batch, sample))
        if isinstance(contribution, ClippedSum):
            keep = _kept(batch, sample, contribution.like)
            return contribution.clipped(contribution.bound, keep)
        return array_namespace(contribution.values).sum(contribution.values, axis=0)

    def _with_noise(
        self,
        value: Array,
        sensitivity: float,
        sites: npt.NDArray[Any],
        stage: str,
        t: int,
        *,
        symmetric: bool,
    ) -> tuple[Array, float]:
        """Return the sum with the planned noise, simulated, and its standard deviation."""
        _require_sensitivity(stage, sensitivity, value)
        multiplier = 0.0 if self.plan is None else self.plan.noise_of_sum(stage, len(sites))
        std = sensitivity * multiplier
        return self._noisy(value, std, sites, stage, t, symmetric=symmetric), std

    def _points(self, contribution: SiteUploads, batch: Batch, stage: str, t: int) -> Array:
        """Return every site's own points with the noise they state: no sum, and no proof."""
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
        return value

    def _weights(self, contribution: RecordSum, batch: Batch, sample: RoundSample) -> Array:
        keep = _kept(batch, sample, contribution.norms)
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
        if self.noise is None or isinstance(self.noise, SecureNoise):
            raise DPFedCError(f"stage {stage!r} needs noise, but the gate has no source of it")
        xp, shape = array_namespace(value), tuple(value.shape)
        noise = self.noise.gaussian(shape, std, stage=stage, t=t, sites=sites)
        if symmetric:
            # A computed x x' is symmetric only up to rounding, and mirrored noise would cancel in
            # the difference of two mirrored entries: what lies below the diagonal never leaves.
            value = xp.triu(value) + xp.triu(value, k=1).T
            # One draw per pair. Off the diagonal a record's change counts twice in the norm, so
            # the upper triangle has sensitivity bound / sqrt(2) there.
            own = array_namespace(noise)
            upper = own.triu(noise, k=1) / math.sqrt(2)
            diagonal = own.triu(noise) - own.triu(noise, k=1)
            noise = upper + upper.T + diagonal
        return value + xp.asarray(noise, dtype=value.dtype, device=device(value))


def _kept(batch: Batch, sample: RoundSample, like: Array) -> Array | None:
    """Return which records are neither null nor left out of the round (None: all are in it)."""
    keep = batch.present
    if sample.in_round is not None:
        drawn = array_namespace(like).asarray(sample.in_round, device=device(like))
        keep = drawn if keep is None else keep & drawn
    return keep


def _require_sensitivity(stage: str, sensitivity: float, like: Array) -> None:
    """Refuse a bound that is infinite, or too short to be clipped to in this precision."""
    limits = array_namespace(like).finfo(like.dtype)
    # Norms as short as this lose their digits when squared, and clipping needs them.
    least = math.sqrt(float(limits.smallest_normal) / float(limits.eps))
    if not least < sensitivity < math.inf:
        raise InvalidInput(
            f"stage {stage!r} must state a sensitivity > {least:.1e}, got {sensitivity}"
        )
