"""Which sites take part in which round: balanced, and fixed before the run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import numpy as np
import numpy.typing as npt

from dpfedc.randomness import Randomness
from dpfedc.settings import require_integer


def most_rounds_of_a_site(n_sites: int, sites_per_round: int, n_rounds: int) -> int:
    """Return ceil(R K / N), the most rounds any site takes part in."""
    return -(-n_rounds * sites_per_round // n_sites)


def schedule(
    n_sites: int, sites_per_round: int, n_rounds: int, *, rng: np.random.Generator
) -> Iterator[npt.NDArray[np.int64]]:
    """Return the sorted sites of each round, one round after another.

    Each round takes the sites used least so far, ties broken at random, so after any number of
    rounds no two sites differ by more than one. Sites are dealt from a shuffled deck; when it runs
    out within a round, the rest of that round comes from a new deck without the sites already in
    it. Costs one shuffle per deck, not per round.
    """
    require_integer("sites_per_round", sites_per_round, least=1, most=n_sites)
    require_integer("n_rounds", n_rounds, least=1)
    return _dealt_rounds(n_sites, sites_per_round, n_rounds, rng)


class Scheduled(Protocol):
    """What a schedule needs to know of a stage."""

    name: str

    @property
    def n_rounds(self) -> int:
        """Return the number of rounds."""
        ...

    def taking_part(self, n_sites: int) -> int:
        """Return how many of the sites take part in a round."""
        ...


def cohorts(
    stage: Scheduled, n_sites: int, randomness: Randomness, *, spare_rounds: int = 0
) -> Iterator[npt.NDArray[np.int64]]:
    """Return the sites of each round of a stage, by the public seed of the run; spare ones last."""
    rng = randomness.generator(f"participation {stage.name}")
    n_rounds = stage.n_rounds + spare_rounds
    return schedule(n_sites, stage.taking_part(n_sites), n_rounds, rng=rng)


def _dealt_rounds(
    n_sites: int, sites_per_round: int, n_rounds: int, rng: np.random.Generator
) -> Iterator[npt.NDArray[np.int64]]:
    deck = rng.permutation(n_sites)
    for _ in range(n_rounds):
        hand, deck = deck[:sites_per_round], deck[sites_per_round:]
        missing = sites_per_round - len(hand)
        if missing:
            others = rng.permutation(np.delete(np.arange(n_sites), hand))
            drawn = others[:missing]
            deck = rng.permutation(np.concatenate([hand, others[missing:]]))
            hand = np.concatenate([hand, drawn])
        yield np.sort(hand).astype(np.int64)
