"""What a site does with whatever reaches it: answer, refuse, or keep it for its operator.

What a refusal says depends on the request, the agreement and the ledger, never on the records. What
the operator needs to know is told here, through `tell`, and not sent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from dpfedc.deployment import control
from dpfedc.deployment.agreement import Agreement
from dpfedc.deployment.keys import fingerprint
from dpfedc.deployment.messages import unpacked
from dpfedc.deployment.site_folder import MODEL, SiteFolder
from dpfedc.deployment.site_run import LEDGER_TROUBLE, SiteRun
from dpfedc.errors import DPFedCError, InvalidInput, Refused, printable
from dpfedc.privacy.ledger import Ledger, Unusable
from dpfedc.privacy.ledger.caps import cap_of
from dpfedc.tables.schema import Schema, difference
from dpfedc.whole_files import write_whole

NOT_OURS = "the request is not one of this protocol"
NOT_READY = "the site's records or settings are not as declared; its operator has been told"
FAILED = "the site could not work on this request; its operator has been told"


class SiteService:
    """A site at work: its folder, its ledger, and its runs as they are asked for."""

    def __init__(
        self,
        folder: SiteFolder,
        *,
        accept: bool = False,
        allow_simulated: bool = False,
        tell: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._folder = folder
        self._accept = accept
        self._allow_simulated = allow_simulated
        self._to_operator = tell
        self._ledger = Ledger.open(folder.ledger)
        self._key = fingerprint((folder.path / "site.pub").read_text(encoding="utf-8"))
        self._nodes: dict[str, SiteRun] = {}

    def close(self) -> None:
        """Close the ledger."""
        self._ledger.close()

    def _tell(self, text: str) -> None:
        self._to_operator(printable(text))

    def reply(self, request: bytes) -> bytes:
        """Return the reply to a request, whatever it is: no request may end the process."""
        try:
            return self._reply(request)
        except Unusable as error:
            reason, why = LEDGER_TROUBLE, str(error)
        except Refused as error:
            reason = why = str(error)
            if error.__cause__ is not None and str(error.__cause__) != reason:
                why = f"{reason} ({error.__cause__})"
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # also what nobody thought of, a compiled reader's panic too
            reason, why = FAILED, f"{FAILED} ({type(error).__name__}: {error})"
        self._tell(f"refused: {why}")
        return control.refused(reason)

    def _reply(self, request: bytes) -> bytes:
        if not control.is_control(request):
            return control.answered(self._round(request))
        try:
            words = control.words_of(request)
        except InvalidInput as error:
            raise Refused(NOT_OURS) from error
        if words.get("kind") == control.HELLO:
            return control.answered({"records": self._folder.records})
        if words.get("kind") == control.OFFER:
            return control.answered({"accepted": self._offered(words)})
        if words.get("kind") == control.RESULT:
            return control.answered({"stored": self._result(words)})
        raise Refused(NOT_OURS)

    def _round(self, request: bytes) -> bytes:
        try:
            head, _ = unpacked(request)
            run = str(head.get("run"))
            known = self._folder.is_accepted(run)
        except InvalidInput as error:
            raise Refused(NOT_OURS) from error
        if not known:
            raise Refused(f"run {run[:12]} has not been accepted here")
        try:
            node = self._node(run)
        except DPFedCError as error:
            raise Refused(NOT_READY) from error
        try:
            answer = node.answer(request)
        except InvalidInput as error:
            raise Refused(NOT_OURS) from error
        self._tell(f"run {run[:12]}: answered {head.get('stage')} round {head.get('t')}")
        return answer

    def _node(self, run: str) -> SiteRun:
        """Return the site in a run; its records are read once."""
        if run not in self._nodes:
            self._nodes.clear()  # the records of one run at a time
            self._nodes[run] = site_node(
                self._folder, run, self._ledger, allow_simulated=self._allow_simulated
            )
        return self._nodes[run]

    def _offered(self, words: Mapping[str, Any]) -> bool:
        """Keep an offer that this site would plan itself; return whether it is accepted."""
        try:
            agreement = Agreement.from_json(str(words.get("agreement")))
            run = agreement.digest
            new = run not in self._folder.offered()
            # An offer that waited is accepted by a site that was started again with --accept.
            if new or (self._accept and not self._folder.is_accepted(run)):
                self._check(agreement)
                self._folder.keep(agreement)
                self._announce(agreement)
        except InvalidInput as error:
            raise Refused(f"the offer cannot be taken: {error}") from error
        return self._folder.is_accepted(run)

    def _announce(self, agreement: Agreement) -> None:
        run, name = agreement.digest, agreement.name
        if self._accept:
            self._folder.accept(run)
            self._tell(f"run {run[:12]} ({name}) was offered and accepted (--accept)")
        else:
            self._tell(
                f"run {run[:12]} ({name}) is offered. To read and accept its terms: "
                f"dpfedc site accept {self._folder.path} {run[:12]}"
            )

    def _check(self, agreement: Agreement) -> None:
        """Refuse an agreement that is not about this site or not what its own code would plan."""
        here = agreement.sites[agreement.number_of(self._folder.name)]
        if here.key != self._key or here.n_records != self._folder.records:
            raise InvalidInput(
                f"{here.name} must have key {self._key} and {self._folder.records} records, "
                f"got {here.key} and {here.n_records}"
            )
        if agreement.noise != "secure" and not self._allow_simulated:
            raise InvalidInput(f"noise must be secure, got {agreement.noise}")
        require_schema(agreement, self._folder.schema)
        require_unit(agreement, self._folder.unit, self._ledger)
        agreement.verified()
        require_affordable(agreement, self._ledger)
        if not agreement.exchanges:
            raise InvalidInput("the agreement must have stages, got none")

    def _result(self, words: Mapping[str, Any]) -> bool:
        run = str(words.get("run"))
        try:
            if not self._folder.is_accepted(run):
                raise Refused(f"run {run[:12]} has not been accepted here")
            keep_model(self._folder.run(run) / MODEL, control.model_of(words))
        except InvalidInput as error:
            raise Refused(str(error)) from error
        self._tell(
            f"run {run[:12]} is over. To assign your records to its clusters: "
            f"dpfedc site labels {self._folder.path} --run {run[:12]}"
        )
        return True


def keep_model(path: Path, model: bytes) -> None:
    """Keep a model that was sent; names that clusters have been given here stay."""
    if path.exists():
        from dpfedc.model_file import with_names_of  # for a model that is sent again only

        model = with_names_of(path.read_bytes(), model)
    write_whole(path, model)


def require_affordable(agreement: Agreement, ledger: Ledger) -> float:
    """Refuse a run that the lifetime cap would stop halfway; runs under way are not counted.

    Returns the epsilon that will have been spent, at the cap's delta, when the run is over.
    """
    opening, totals = ledger.opening, ledger.totals()
    left = totals.left
    cap, plan = cap_of(opening.cap_kind, opening.cap), agreement.privacy
    total, first = dict.fromkeys(left, 0.0), True
    for release in plan.releases:
        n, z = release.rounds_per_site, release.noise_multiplier
        once, _ = cap.costs(plan, z, shares=1, first=first)
        more, _ = cap.costs(plan, z, shares=1, first=False)
        total = {name: total[name] + once[name] + (n - 1) * more[name] for name in total}
        first = False
    for name, cost_in_all in total.items():
        if cost_in_all > left[name]:
            raise InvalidInput(
                f"the run must fit into what is left of the site's lifetime cap, {left[name]:.4g} "
                f"of {name}, got {cost_in_all:.4g}"
            )
    return cap.epsilon_of({name: totals.spent[name] + total[name] for name in total})


def require_unit(agreement: Agreement, slots: str, ledger: Ledger) -> None:
    """Refuse a run unless it promises for what the site's slots are, and its ledger charges."""
    planned = agreement.privacy.unit
    if planned != ledger.unit:
        raise InvalidInput(
            f"the run must be for unit {ledger.unit}, as the site's ledger is, got {planned}; "
            "its operator can change that by `dpfedc ledger change-unit`"
        )
    if planned != slots:
        raise InvalidInput(
            f"the run must be for unit {slots}, as the site's slots are, got {planned}; its "
            "operator can change that by `dpfedc site check --schema`"
        )


def require_schema(agreement: Agreement, own: Schema | None) -> None:
    """Refuse a run about other tables than the site's; both schemas are public."""
    theirs = agreement.schema
    if own is not None and theirs is not None:
        if (entry := difference(own, theirs)) is not None:
            raise InvalidInput(f"the run's schema must be the site's, which differs: {entry}")
    elif own is not theirs:
        which = "a schema, as the site has one" if own else "no schema, as the site has none"
        raise InvalidInput(f"the run must have {which}")


def site_node(
    folder: SiteFolder, run: str, ledger: Ledger, *, allow_simulated: bool = False
) -> SiteRun:
    """Return the site in an accepted run, with its records; says what is not as it should be."""
    agreement = folder.agreement(run)
    require_schema(agreement, folder.schema)
    require_unit(agreement, folder.unit, ledger)
    if folder.is_accepted(run):
        folder.require_same_slots(run)
    records = folder.load(agreement)
    return SiteRun(
        agreement, run, folder.name, records.X, records.present, ledger,
        allow_simulated=allow_simulated,
    )  # fmt: skip
