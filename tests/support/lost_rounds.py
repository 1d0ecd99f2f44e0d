"""Federations whose sites crash between a charge and its answer, deployed and simulated."""

from dataclasses import dataclass, field
from unittest.mock import patch

from dpfedc.clustering.registry import method_named
from dpfedc.deployment.messages import Request
from dpfedc.engine.backend import RoundLost
from dpfedc.engine.rounds import run
from dpfedc.engine.simulated import SimulatedSites, Sites
from dpfedc.privacy.gate import Gate
from dpfedc.privacy.ledger import Ledger
from dpfedc.randomness import Randomness
from support.deployment import MemoryTransport, NoiseOfEach


class Crashed(BaseException):
    """The process ends here."""


class Deaths:
    """Ends the coordinator before or after its n-th action: a write or an exchange."""

    def __init__(self, n, *, after):
        self.n, self.after, self.done = n, after, 0

    def around(self, action):
        def watched(*args, **more):
            self.done += 1
            if self.done == self.n and not self.after:
                raise Crashed
            result = action(*args, **more)
            if self.done == self.n and self.after:
                raise Crashed
            return result

        return watched


def _crash(*_):
    raise Crashed


@dataclass
class CrashingSites(MemoryTransport):
    """Sites of which some crash, once, in the rounds (site, stage, t) of `crashes`.

    A crashed site is started again and gets the same request, as over any transport.
    """

    crashes: set[tuple[str, str, int]] = field(default_factory=set)

    def _served(self, site, request):
        asked = Request.from_bytes(request)
        if (site, asked.stage, asked.t) in self.crashes:
            try:
                with patch.object(Ledger, "settle", _crash):
                    super()._served(site, request)
            except Crashed:
                pass
        return super()._served(site, request)


@dataclass
class LosingSites(SimulatedSites):
    """Simulated sites whose rounds (stage, t) in `lost` are charged and never answered."""

    lost: frozenset = frozenset()

    def round(self, stage, state, t, cohort):
        released = super().round(stage, state, t, cohort)
        if (stage.name, t) in self.lost:
            raise RoundLost(f"round {t} of stage {stage.name!r}")
        return released


def losing(agreement, X, ids, lost):
    """Return the simulated sites of an agreement that lose these rounds."""
    randomness = Randomness(agreement.seed)
    gate = Gate(agreement.privacy, NoiseOfEach(randomness), randomness)
    return LosingSites(Sites.of(X, ids), gate, randomness, lost=frozenset(lost))


def end_of(agreement, sites):
    """Return where the agreement's run over these simulated sites ends."""
    return run(
        agreement.plan.stages,
        sites,
        randomness=Randomness(agreement.seed),
        state=agreement.declared,
        spare_rounds=agreement.plan.spare_rounds,
    )


def centers_of(agreement, state):
    method = method_named(agreement.method)
    model = method.model(agreement.settings, agreement.plan, state, feature_names=None, about={})
    return model.cluster_centers
