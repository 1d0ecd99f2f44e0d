"""A federation of separate sites without a network: agreements, nodes, and a transport of bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from dpfedc.clustering.method import with_table
from dpfedc.clustering.registry import method_named
from dpfedc.deployment.agreement import Agreement, Site
from dpfedc.deployment.coordinator import Coordinator
from dpfedc.deployment.heads import KeptHeads
from dpfedc.deployment.keys import public_key
from dpfedc.deployment.messages import Refusal
from dpfedc.deployment.proposal import proposed
from dpfedc.deployment.site_run import SiteRun
from dpfedc.engine.rounds import run
from dpfedc.engine.simulated import SimulatedSites, Sites
from dpfedc.errors import DPFedCError
from dpfedc.model_file import ClusterModel
from dpfedc.privacy.gate import Gate
from dpfedc.privacy.ledger import GaussianCap, Ledger
from dpfedc.privacy.noise import SimulatedNoise
from dpfedc.randomness import Randomness

KEY = bytes(range(32))
SIZES = {"berlin": 120, "geneva": 80, "lisbon": 100}
FEATURES = ("age", "weight", "height")


def records(n: int = sum(SIZES.values()), seed: int = 0) -> np.ndarray:
    """Return records in three clusters, in random order."""
    rng = np.random.default_rng(seed)
    middles = np.array([[0, 0, 0], [9, 0, 1], [0, 9, 2]])[rng.integers(3, size=n)]
    return middles + rng.normal(size=(n, 3))


def by_site() -> dict[str, np.ndarray]:
    ends = np.cumsum(list(SIZES.values()))[:-1]
    return dict(zip(SIZES, np.split(records(), ends), strict=True))


def agreed(method: str = "dp-lloyd", **changes: Any) -> Agreement:
    """Return an agreement on a short run with simulated noise and a weak promise."""
    settings = {"n_clusters": 3, "n_rounds": 3, **changes.pop("settings", {})}
    if "cells" in settings:  # cells are not searched for, so nobody asks for rounds of it
        settings["n_rounds"] = "auto"
    terms: dict[str, Any] = {
        "name": "study",
        "coordinator": "university",
        "receipt_key": public_key(KEY),
        "method": method,
        "settings": settings,
        "features": FEATURES,
        "sites": tuple(Site(name, n) for name, n in SIZES.items()),
        "epsilon": 50.0,
        "delta": 1e-4,
        "noise": "simulated",
        "seed": 7,
        "deadline": 5.0,
        "min_answers": 1,
    }
    return proposed(**{**terms, **changes})


class NoiseOfEach(SimulatedNoise):
    """The sum of the noises that the sites would each draw alone: what separate sites add."""

    def gaussian(self, shape, std, *, stage, t, sites):
        alone = std / len(sites) ** 0.5
        draws = [super(NoiseOfEach, self).gaussian(shape, alone, stage=stage, t=t, sites=[i])
                 for i in sites]  # fmt: skip
        return np.sum(draws, axis=0)


def in_one_process(agreement: Agreement, parts: Iterable[np.ndarray]) -> ClusterModel:
    """Return the model of the same run in the simulator, from the sites' records."""
    parts, randomness = list(parts), Randomness(agreement.seed)
    X, ids = np.vstack(parts), np.repeat(range(len(parts)), [len(part) for part in parts])
    gate = Gate(agreement.privacy, NoiseOfEach(randomness), randomness)
    last = run(
        agreement.plan.stages,
        SimulatedSites(Sites.of(X, ids), gate, randomness),
        randomness=randomness,
        state=agreement.declared,
    )
    model = method_named(agreement.method).model(
        agreement.settings, agreement.plan, last.state, feature_names=None, about={}
    )
    return with_table(model, last.state, None)


def new_ledger(folder: Path, site: str, cap: Any = None) -> None:
    cap = cap or GaussianCap(1000.0, 1e-3)
    Ledger.create(folder / f"{site}.ledger", holding=site, cap=cap).close()


def node(agreement: Agreement, site: str, ledger: Ledger, X: Any = None, **more: Any) -> SiteRun:
    X = by_site()[site] if X is None else X
    more = {"allow_simulated": True, **more}
    return SiteRun(agreement, agreement.digest, site, X, np.ones(len(X), bool), ledger, **more)


@dataclass
class MemoryTransport:
    """Sites in memory, each request served by a new node and a newly opened ledger.

    `faults` maps (site, number of the exchange) to what comes back instead of the answer; if it is
    a function, it is given the one that makes the answer. `released` is what left each site.
    """

    agreement: Agreement
    folder: Path
    faults: dict[tuple[str, int], Any] = field(default_factory=dict)
    sent: list[dict[str, bytes]] = field(default_factory=list)
    released: dict[str, set[bytes]] = field(default_factory=dict)
    X: Mapping[str, np.ndarray] = field(default_factory=by_site)

    def __post_init__(self) -> None:
        for site in self.agreement.sites:
            if not (self.folder / f"{site.name}.ledger").exists():
                new_ledger(self.folder, site.name)

    def exchange(
        self, requests: Mapping[str, bytes], deadline_s: float
    ) -> dict[str, bytes | Refusal]:
        self.sent.append(dict(requests))
        replies: dict[str, bytes | Refusal] = {}
        for site, request in requests.items():
            reply = self._served(site, request)
            if reply is not None:
                replies[site] = reply
        return replies

    def _served(self, site: str, request: bytes) -> bytes | Refusal | None:
        fault = self.faults.get((site, len(self.sent)), "none")

        def made() -> bytes | Refusal:
            with self.ledger(site) as ledger:
                try:
                    return node(self.agreement, site, ledger, self.X[site]).answer(request)
                except DPFedCError as error:
                    return Refusal.of(error)

        if fault == "none":
            reply = made()
        elif isinstance(fault, Callable):
            reply = fault(made)
        else:
            reply = fault
        if isinstance(reply, bytes):
            self.released.setdefault(site, set()).add(reply)
        return reply

    def ledger(self, site: str) -> Ledger:
        return Ledger.open(self.folder / f"{site}.ledger")

    def coordinator(self, **more: Any) -> Coordinator:
        heads = KeptHeads(self.folder)
        return Coordinator(self.agreement, self, self.folder / "run", key=KEY, heads=heads, **more)
