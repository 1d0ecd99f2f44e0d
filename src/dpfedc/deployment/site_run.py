"""What a deployed site does with a request: bytes in, bytes out.

A site remembers nothing but its ledger, so every request may be served by a new process; with
secure aggregation also the secrets of the round it is in. A refusal depends on the ledger, the
agreement and the broadcast, never on the records; the work is the same whatever the records are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from dpfedc.clustering.stage import SiteBatch, State, contributed
from dpfedc.deployment.agreement import Agreement
from dpfedc.deployment.exchanges import Exchange
from dpfedc.deployment.keys import is_signed
from dpfedc.deployment.messages import UPLOAD, Answer, Request, StepAnswer, digest
from dpfedc.deployment.round_secrets import RoundSecrets, require_step
from dpfedc.deployment.secure_steps import of_masks
from dpfedc.errors import DPFedCError, InvalidInput, Refused, RoundSpent
from dpfedc.kernels.column_view import seen
from dpfedc.kernels.threads import rows_over_threads
from dpfedc.privacy.exact_sums import Upload
from dpfedc.privacy.gate import Gate
from dpfedc.privacy.ledger import Head, Ledger, RowsLost, Unusable
from dpfedc.privacy.noise import SecureNoise, SimulatedNoise
from dpfedc.randomness import Randomness

LEDGER_TROUBLE = "the site's ledger cannot be used now; its operator has been told"
LEDGER_LOST = (
    "the ledger does not hold what the coordinator has seen of it; was it restored from a backup?"
)


class LedgerLost(Refused):
    """The ledger does not hold what was `seen` of it."""

    def __init__(self, seen: Head) -> None:
        super().__init__(LEDGER_LOST)
        self.seen = seen


def require_held(ledger: Ledger, seen: Head) -> None:
    """Refuse, in words that may be sent, unless the ledger holds what was seen of it."""
    try:
        ledger.require(seen)
    except RowsLost as error:
        raise LedgerLost(seen) from error


@dataclass(frozen=True, eq=False)
class SiteRun:
    """One site in one run.

    `accepted` is the digest that the operator accepted after reading the terms, which verified it
    (`Agreement.verified`). X has one row per
    declared record; a row that is not `present`, or not finite, is null. Simulated noise protects
    nobody and must be allowed by name. `noise` is the secure noise that the site draws from.
    """

    agreement: Agreement
    accepted: str
    site: str
    X: npt.NDArray[np.float64]
    present: npt.NDArray[np.bool_]
    ledger: Ledger
    allow_simulated: bool = False
    noise: SecureNoise | None = None
    sign: Callable[[bytes], bytes] | None = None
    """Signs with the key that the agreement has for this site (secure aggregation)."""
    secrets: RoundSecrets = field(default_factory=RoundSecrets)
    _number: int = field(init=False)

    def __post_init__(self) -> None:
        agreement = self.agreement
        if self.accepted != agreement.digest:
            raise InvalidInput(
                f"the agreement must be the accepted one {self.accepted[:12]}, "
                f"got {agreement.digest[:12]}"
            )
        if agreement.noise != "secure" and not self.allow_simulated:
            raise InvalidInput(
                f"noise must be secure unless simulated noise is allowed, got {agreement.noise}"
            )
        if agreement.is_masked and self.sign is None:
            raise InvalidInput("a site must have the key of the run's roster to sign with")
        self._gate()  # a package that is missing must be told now, not after a charge
        _ = agreement.exchanges  # so must a plan that is not that of the settings
        number = agreement.number_of(self.site)
        expected = (agreement.sites[number].n_records, len(agreement.features))
        X = np.asarray(self.X, dtype=np.float64)
        if X.shape != expected or np.shape(self.present) != expected[:1]:
            raise InvalidInput(
                f"the records must have the declared shape {expected}, got {X.shape}"
            )
        present = np.asarray(self.present, dtype=bool)
        if agreement.schema is None:
            present &= np.isfinite(X).all(axis=1)
        object.__setattr__(self, "X", np.where(present[:, None], X, 0.0))
        object.__setattr__(self, "present", present)
        object.__setattr__(self, "_number", number)

    def answer(self, data: bytes) -> bytes:
        """Return the answer to a request, the stored one if it has been answered before.

        The charge is on the disk before anything is computed, and the answer before it is sent: a
        crash in between costs a round, never a second release.
        """
        try:
            return self._answer(data)
        except Unusable as error:  # its own words hold a path, which is nobody else's business
            raise Refused(LEDGER_TROUBLE) from error

    def _answer(self, data: bytes) -> bytes:
        request = Request.from_bytes(data, most=self.agreement.max_message_bytes)
        exchange = self._admitted(request)
        masked, name = self.agreement.is_masked, digest(data)
        place = (request.run, request.stage, request.t)
        require_step(request, masked=masked)
        if request.step != UPLOAD:
            return self._stepped(request, name)
        told, _ = of_masks(request.arrays) if masked else (request.arrays, {})
        state = exchange.accepted(told, self.agreement.fixed)
        stored = self.ledger.answer(*place, name)
        if stored is not None:
            return stored
        if masked:
            self.secrets.receive(request, name)
        self._check_first(request.run)
        plan = self.agreement.privacy
        z = plan.of_stage(request.stage).noise_multiplier
        head = self.ledger.charge(
            request.run, plan, request.stage, request.t, name, noise_multiplier=z
        )
        upload = self._upload(exchange, state, request.t)
        if masked:
            hidden = self.secrets.of(request).masked(upload.values)
            upload = replace(upload, values=hidden)
        answer = Answer(
            request.run, self.site, request.stage, request.t, name, head, upload
        ).to_bytes()
        self.ledger.settle(*place, answer)
        return answer

    def _stepped(self, request: Request, name: str) -> bytes:
        """Return the answer to a step of secure aggregation in which nothing is released."""
        assert self.sign is not None
        place = (request.run, request.stage, request.t)
        arrays = self.secrets.answer(
            request,
            name,
            self.agreement,
            sign=self.sign,
            persist=lambda: self.ledger.unmask(*place, name),
        )
        return StepAnswer(
            request.run, self.site, request.stage, request.t, request.step, name, arrays
        ).to_bytes()

    def _admitted(self, request: Request) -> Exchange:
        """Return the stage of a request that is for this site, now, and from the coordinator."""
        agreement = self.agreement
        if request.run != agreement.digest:
            raise Refused(f"run {request.run[:12]} has not been accepted here")
        if request.site != self.site:
            raise Refused(f"a request must be for {self.site}, got one for {request.site}")
        try:
            exchange = agreement.exchange(request.stage)
            cohort = agreement.cohort(request.stage, request.t)
        except InvalidInput as error:
            raise Refused(str(error)) from error
        if self._number not in cohort:
            raise Refused(f"{self.site} is not in round {request.t} of stage {request.stage!r}")
        self.ledger.require_open(request.run)
        self._check_receipt(request)
        return exchange

    def _check_receipt(self, request: Request) -> None:
        receipt = request.receipt
        if receipt is None:
            return
        if not is_signed(receipt, self.agreement.receipt_key, request.run, self.site):
            raise Refused("a receipt must be signed by the coordinator, got another signature")
        require_held(self.ledger, receipt.head)

    def _check_first(self, run: str) -> None:
        """Verify the plan before the first charge of a run; the ledger holds it to it from then.

        The operator's terms did so too. This is for an acceptance that was not given by them.
        """
        if any(stage.run == run for stage in self.ledger.totals().stages):
            return
        try:
            self.agreement.verified()
        except InvalidInput as error:
            raise Refused(str(error)) from error

    def _upload(self, exchange: Exchange, state: State, t: int) -> Upload:
        stage, gate = exchange.stage, self._gate()
        randomness = Randomness(self.agreement.seed)  # no proved stage draws from it at a site
        try:
            with np.errstate(all="ignore"), rows_over_threads():
                batch = SiteBatch(
                    seen(self.X, state), np.array([0, len(self.X)]), np.array([self._number]),
                    self.present,
                )  # fmt: skip
                batch.memory = stage.prepare(batch, state, randomness)
                part = contributed(stage, batch, state, t, gate, randomness)
                sensitivity = stage.sensitivity(state, stage.turn(t))
                return gate.upload(
                    [part], batch.sites, stage=stage.name, t=t, sensitivity=sensitivity
                )
        except (DPFedCError, ArithmeticError, ValueError) as error:
            raise RoundSpent("the round's work failed at the site; it stays charged") from error

    def _gate(self) -> Gate:
        agreement = self.agreement
        if agreement.noise == "secure":
            return Gate(agreement.privacy, self.noise or SecureNoise(), of_one_site=True)
        randomness = Randomness(agreement.seed)
        noise = SimulatedNoise(randomness)
        return Gate(agreement.privacy, noise, randomness, of_one_site=True)
