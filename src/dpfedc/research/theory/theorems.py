"""Theorems 1 to 3 of the paper: amplification by sampling, noise, and total privacy loss.

They are here for reproduction. A result is what the paper states, not a proof: the guarantee of a
run comes from the accountant. Every theorem raises `OutsideConditions` where its conditions do not
hold. With `outside_conditions="stamp"` it computes the formula anyway, and the result's `violated`
names the broken conditions. The type of the result is the same in both cases.

Symbols: q is the data sampling ratio, Q2 the centroid steps of a round, eta the step constant (a
step is minus gradient / eta), G the bound on the norm of a mini-batch gradient. G is an assumption
of the paper; it holds only where gradients are clipped to it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from numbers import Integral
from typing import Literal, TypeAlias, get_args

from dpfedc.errors import InvalidInput, OutsideConditions

Outside: TypeAlias = Literal["raise", "stamp"]
"""What to do where a theorem's conditions do not hold."""


@dataclass(frozen=True, kw_only=True)
class UnderConditions:
    """What a theorem states, with the conditions it broke: one sentence each, fit for a stamp."""

    theorem: str
    violated: tuple[str, ...] = ()

    @property
    def holds(self) -> bool:
        """Whether every condition of the theorem is met."""
        return not self.violated


@dataclass(frozen=True, kw_only=True)
class Stated(UnderConditions):
    """One number stated by a theorem; `float()` takes it out."""

    value: float

    def __float__(self) -> float:
        return self.value


@dataclass(frozen=True, kw_only=True)
class AmplifiedPrivacy(UnderConditions):
    """The (epsilon, delta) that Theorem 1 states for a mechanism run on a sample of the data."""

    epsilon: float
    delta: float


def require_positive(**values: float) -> None:
    """Raise `InvalidInput` unless every named value is finite and > 0."""
    for name, value in values.items():
        if not value > 0:
            raise InvalidInput(f"{name} must be > 0, got {value}")
        if not math.isfinite(value):
            raise InvalidInput(f"{name} must be finite, got {value}")


def require_nonnegative(**values: float) -> None:
    """Raise `InvalidInput` unless every named value is finite and >= 0."""
    for name, value in values.items():
        if not 0 <= value < math.inf:
            raise InvalidInput(f"{name} must be finite and >= 0, got {value}")


def require_counts(*, least: int = 1, **values: int) -> None:
    """Raise `InvalidInput` unless every named value is an integer >= `least`."""
    for name, value in values.items():
        if not isinstance(value, Integral) or value < least:
            raise InvalidInput(f"{name} must be an integer >= {least}, got {value}")


def require_probability(*, closed: bool = False, **values: float) -> None:
    """Raise `InvalidInput` unless every named value is in (0, 1), or in (0, 1] if `closed`."""
    for name, value in values.items():
        if not (0 < value < 1 or (closed and value == 1)):
            raise InvalidInput(f"{name} must be in (0, 1{']' if closed else ')'}, got {value}")


def violated_conditions(
    conditions: Iterable[tuple[bool, str]], outside_conditions: Outside
) -> tuple[str, ...]:
    """Return the sentences of the conditions that are not met, or raise them as one error."""
    if outside_conditions not in get_args(Outside):
        raise InvalidInput(
            f"outside_conditions must be 'raise' or 'stamp', got {outside_conditions!r}"
        )
    violated = tuple(sentence for met, sentence in conditions if not met)
    if violated and outside_conditions == "raise":
        raise OutsideConditions("; ".join(violated))
    return violated


def centroid_steps(t: int, extra_steps: int) -> int:
    """Return Q2 = floor(extra_steps / t) + 1, the centroid steps of round t (from 1).

    >>> [centroid_steps(t, 10) for t in (1, 2, 3, 10, 11)]
    [11, 6, 4, 2, 1]
    """
    require_counts(t=t)
    require_counts(least=0, extra_steps=extra_steps)
    return int(extra_steps // t) + 1


def data_sampling_ratio(centroid_steps: int, batch_size: int, n_records: int) -> float:
    """Return q = Q2 b / n_i, the part of a site's records that one round reads.

    It exceeds 1 where the round asks for more records than there are, as the paper's own settings
    do (11 steps of 50 out of 100 records give 5.5). `safe_batch_size` prevents that.
    """
    require_counts(centroid_steps=centroid_steps, batch_size=batch_size, n_records=n_records)
    return centroid_steps * batch_size / n_records


def safe_batch_size(batch_size: int, n_records: int, centroid_steps: int) -> int:
    """Return min(b, floor(n_i / (2 Q2))), and at least 1: the batch for which q <= 1/2.

    Only a site with fewer than 2 Q2 records keeps q > 1/2, since a batch holds a record at least.
    """
    require_counts(batch_size=batch_size, n_records=n_records, centroid_steps=centroid_steps)
    return max(1, min(int(batch_size), int(n_records // (2 * centroid_steps))))


def amplified(
    epsilon: float, delta: float, q: float, *, outside_conditions: Outside = "raise"
) -> AmplifiedPrivacy:
    """Return Theorem 1: on a sample of the data, (min(2 q epsilon, epsilon), q delta).

    This is for a mechanism that is (epsilon, delta) on all the data. Needs epsilon <= 1 and
    q <= 1. From q = 1/2 on there is no gain in epsilon.
    """
    require_positive(epsilon=epsilon, q=q)
    require_probability(delta=delta)
    violated = violated_conditions(
        [
            (epsilon <= 1, f"Theorem 1 needs epsilon <= 1, got {round(epsilon, 4)}"),
            (q <= 1, f"Theorem 1 needs q <= 1, got {q}"),
        ],
        outside_conditions,
    )
    return AmplifiedPrivacy(
        theorem="Theorem 1",
        violated=violated,
        epsilon=min(2 * q * epsilon, epsilon),
        delta=q * delta,
    )


def sensitivity(gradient_bound: float, centroid_steps: int, eta: float) -> float:
    """Return s = 2 G Q2 / eta, the most that one record changes a site's uploaded centres.

    Swapping a record changes each of Q2 steps by at most 2 G / eta, if no gradient exceeds G.
    """
    require_positive(gradient_bound=gradient_bound, eta=eta)
    require_counts(centroid_steps=centroid_steps)
    return 2 * gradient_bound * centroid_steps / eta


def noise_variance(
    epsilon: float,
    delta: float,
    *,
    gradient_bound: float,
    centroid_steps: int,
    eta: float,
    q: float | None = None,
    outside_conditions: Outside = "raise",
) -> Stated:
    """Return Theorem 2: the noise variance per entry that gives one round (epsilon, delta).

    Without amplification (q None), with s the sensitivity, it is 2 s^2 ln(1.25 / delta) / epsilon^2
    = 8 G^2 Q2^2 ln(1.25 / delta) / (eta^2 epsilon^2). The paper prints 4 in this step; 8 is what
    its sensitivity gives, and what its final 32 agrees with.

    With amplification, epsilon / (2 q) and delta / q take the place of epsilon and delta:
    32 G^2 Q2^2 q^2 ln(1.25 q / delta) / (eta^2 epsilon^2). This needs q <= 1/2 and, for Theorem 1,
    epsilon / (2 q) <= 1. Where 1.25 q / delta <= 1 the formula is no variance: it raises always.
    """
    require_positive(epsilon=epsilon)
    require_probability(delta=delta)
    s = sensitivity(gradient_bound, centroid_steps, eta)
    conditions = [(epsilon <= 1, f"Theorem 2 needs epsilon <= 1, got {round(epsilon, 4)}")]
    if q is not None:
        require_positive(q=q)
        if not 1.25 * q / delta > 1:
            raise OutsideConditions(f"Theorem 2 needs 1.25 q / delta > 1, got {1.25 * q / delta}")
        conditions.append((q <= 0.5, f"Theorem 2 needs q <= 1/2 to amplify, got {q}"))
        epsilon, delta = epsilon / (2 * q), delta / q
        conditions.append(
            (
                epsilon <= 1,
                f"Theorem 1 needs epsilon / (2 q) <= 1 before sampling, got {round(epsilon, 4)}",
            )
        )
    violated = violated_conditions(conditions, outside_conditions)
    variance = 2 * s**2 * math.log(1.25 / delta) / epsilon**2
    return Stated(theorem="Theorem 2", violated=violated, value=variance)


def total_loss(
    epsilon: float,
    *,
    q: float,
    participation: float,
    n_rounds: int,
    c0: float = 1.0,
    outside_conditions: Outside = "raise",
) -> Stated:
    """Return Theorem 3: c0 q^2 epsilon sqrt(p R / (1 - q)), the stated loss of R rounds.

    q is the largest sampling ratio of any round, p the probability that a site takes part. The
    paper leaves c0 open; 1 is our choice. It must be read with care: amplification is counted in
    the noise of Theorem 2 and once more here, so the total can come out below the loss of a single
    round. Needs epsilon <= 1; Theorem 2's other conditions belong to each round's own q. For
    q >= 1 there is no such number: it raises always.
    """
    require_positive(epsilon=epsilon)
    factor = _loss_factor(q, participation, n_rounds, c0)
    violated = violated_conditions(
        [(epsilon <= 1, f"Theorem 3 needs a per-round epsilon <= 1, got {round(epsilon, 4)}")],
        outside_conditions,
    )
    return Stated(theorem="Theorem 3", violated=violated, value=factor * epsilon)


def per_round_epsilon(
    total_epsilon: float,
    *,
    q: float,
    participation: float,
    n_rounds: int,
    c0: float = 1.0,
    outside_conditions: Outside = "raise",
) -> Stated:
    """Return the per-round epsilon for which `total_loss` is `total_epsilon`; same conditions.

    >>> stated = per_round_epsilon(
    ...     20.0, q=0.5, participation=0.3, n_rounds=100, outside_conditions="stamp"
    ... )
    >>> round(float(stated), 2), stated.holds
    (10.33, False)
    """
    require_positive(total_epsilon=total_epsilon)
    epsilon = total_epsilon / _loss_factor(q, participation, n_rounds, c0)
    violated = violated_conditions(
        [(epsilon <= 1, f"Theorem 3 needs a per-round epsilon <= 1, got {round(epsilon, 4)}")],
        outside_conditions,
    )
    return Stated(theorem="Theorem 3", violated=violated, value=epsilon)


def _loss_factor(q: float, participation: float, n_rounds: int, c0: float) -> float:
    """Return c0 q^2 sqrt(p R / (1 - q)), the total loss per unit of per-round epsilon."""
    require_positive(q=q, c0=c0)
    require_probability(closed=True, participation=participation)
    require_counts(n_rounds=n_rounds)
    if not q < 1:
        raise OutsideConditions(f"Theorem 3 needs q < 1, got {q}")
    return c0 * q**2 * math.sqrt(participation * n_rounds / (1 - q))
