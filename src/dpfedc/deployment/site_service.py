"""What a site does with whatever reaches it: answer, refuse, or keep it for its operator.

What a refusal says depends on the request, the agreement, the ledger and what the operator decided,
never on the records. What the operator needs to know is told here, through `tell`, and not sent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpfedc.deployment import control, snapshot
from dpfedc.deployment.admission import (
    accept,
    require_affordable,
    require_fitting,
    require_schema,
    require_unit,
    signing,
)
from dpfedc.deployment.agreement import Agreement
from dpfedc.deployment.limits import MAX_WORDS
from dpfedc.deployment.messages import (
    MAX_MODEL_HEAD,
    MODEL_KIND,
    UPLOAD,
    OtherVersion,
    Refusal,
    plain_head,
    unpacked,
)
from dpfedc.deployment.offered_runs import MODEL
from dpfedc.deployment.peers import PinnedPeers
from dpfedc.deployment.round_secrets import RoundSecrets
from dpfedc.deployment.site_folder import SiteFolder
from dpfedc.deployment.site_run import LEDGER_TROUBLE, LedgerLost, SiteRun, require_held
from dpfedc.errors import DPFedCError, InvalidInput, Refused, RunClosed, printable
from dpfedc.privacy.ledger import Ledger, Unusable
from dpfedc.privacy.ledger.chain import EMPTY

if TYPE_CHECKING:
    from dpfedc.model_file import ClusterModel

NOT_OURS = "the request is not one of this protocol"
NOT_READY = "the site's records or settings are not ready for this; its operator has been told"
LOST = "goes no further here: its frozen records are gone or changed; its operator has been told"
CLOSED = {
    "declined": "was declined here",
    "cancelled": "was cancelled here",
    "finished": "is over here",
}
MAX_TOLD = 2000
"""Letters of a line for the operator: others may have a say in it."""
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
        try:
            # Says now what would keep every round from being charged: a mode of 644, say.
            self._ledger.require(EMPTY)
        except BaseException:
            self._ledger.close()
            raise
        self._settings = folder.stamp()
        self._nodes: dict[str, SiteRun] = {}
        self._sizes: dict[str, int] = {}
        self._secrets: dict[str, RoundSecrets] = {}
        snapshot.forget_what_is_over(folder)

    def close(self) -> None:
        """Close the ledger."""
        self._ledger.close()

    def most_bytes(self) -> int:
        """Return the longest message that this site has any use for, as its runs stand.

        A model has more arrays than a round sends, of the same shapes. It may come once more.
        """
        with suppress(OSError):  # a run whose folder is just being deleted
            for run in self._folder.offered():
                if run not in self._sizes and self._folder.state(run) in ("accepted", "finished"):
                    with suppress(InvalidInput):  # of another version, or damaged: not served
                        self._sizes[run] = self._folder.agreement(run).max_message_bytes
        return MAX_WORDS + MAX_MODEL_HEAD + 4 * max(self._sizes.values(), default=0)

    def _tell(self, text: str) -> None:
        with suppress(Exception):  # a terminal that is gone must not keep anyone from an answer
            self._to_operator(printable(text[:MAX_TOLD]))

    def reply(self, request: bytes) -> bytes:
        """Return the reply to a request, whatever it is: no request may end the process."""
        try:
            return self._reply(request)
        except Unusable as error:
            refusal, why = Refusal(LEDGER_TROUBLE), str(error)
        except Refused as error:
            refusal, why = Refusal.of(error), str(error)
            if isinstance(error, LedgerLost):
                with suppress(OSError):  # a full disk must not keep anyone from an answer
                    self._folder.note_lost(error.seen)
            if error.__cause__ is not None and str(error.__cause__) not in why:
                why = f"{why} ({error.__cause__})"
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # also what nobody thought of, a compiled reader's panic too
            refusal, why = Refusal(FAILED), f"{FAILED} ({type(error).__name__}: {error})"
        self._tell(f"refused: {why}")
        return control.refused(refusal)

    def _reply(self, request: bytes) -> bytes:
        if not control.is_control(request):
            return self._framed(request)
        try:
            words = control.words_of(request)
        except InvalidInput as error:
            raise Refused(NOT_OURS) from error
        if words.get("kind") in (control.HELLO, control.OFFER):
            self._take_up_settings()
        if words.get("kind") == control.HELLO:
            return self._with_ledger(words, lambda: {"records": self._folder.records})
        if words.get("kind") == control.OFFER:
            return self._with_ledger(words, lambda: {"accepted": self._offered(words)})
        raise Refused(NOT_OURS)

    def _with_ledger(
        self, words: Mapping[str, Any], said: Callable[[], Mapping[str, Any]]
    ) -> bytes:
        """Return a reply and where the ledger stands, if it holds what was seen of it before."""
        try:
            seen = control.seen_of(words)
        except InvalidInput as error:
            raise Refused(NOT_OURS) from error
        if seen is not None:
            require_held(self._ledger, seen)
        return control.answered({**said(), "ledger": plain_head(self._ledger.head())})

    def _take_up_settings(self) -> None:
        """Take up what was declared since; runs that are frozen have their records already."""
        try:
            if (stamp := self._folder.stamp()) != self._settings:
                self._folder, self._settings = SiteFolder.open(self._folder.path), stamp
                self._tell(f"settings were read again: {self._folder.records:,} declared")
        except (DPFedCError, OSError) as error:
            raise Refused(NOT_READY) from error

    def _require_open(self, run: str, *, over: bool = False) -> None:
        """Refuse all but an accepted run, or (`over`) one that has come to its end."""
        try:
            state = self._folder.state(run)
        except InvalidInput as error:
            raise Refused(NOT_OURS) from error
        if state != "accepted":
            self._nodes.pop(run, None)
            self._secrets.pop(run, None)
            if not (over and state == "finished"):
                if state in CLOSED:  # the operator decided, or it has ended: no cell matters
                    raise RunClosed(f"run {run[:12]} {CLOSED[state]}")
                raise Refused(f"run {run[:12]} has not been accepted here")

    def _framed(self, request: bytes) -> bytes:
        """Return the reply to a round's request, or to the model of a run that is over."""
        try:
            head, _ = unpacked(request, most_head=MAX_MODEL_HEAD)
        except OtherVersion as error:
            raise Refused(str(error)) from error
        except InvalidInput as error:
            raise Refused(NOT_OURS) from error
        run, is_model = str(head.get("run")), head.get("kind") == MODEL_KIND
        self._require_open(run, over=is_model)
        if is_model:
            return control.answered({"stored": self._result(run, request)})
        return control.answered(self._round(run, head, request))

    def _round(self, run: str, head: Mapping[str, Any], request: bytes) -> bytes:
        with _refused_in_fixed_words(run):
            node = self._node(run)
        try:
            answer = node.answer(request)
        except InvalidInput as error:
            raise Refused(NOT_OURS) from error
        if head.get("step") == UPLOAD:
            self._tell(f"run {run[:12]}: answered {head.get('stage')} round {head.get('t')}")
        return answer

    def _node(self, run: str) -> SiteRun:
        """Return the site in a run; its records are read once."""
        if run not in self._nodes:
            self._nodes.clear()  # the records of one run at a time
            self._nodes[run] = site_node(
                self._folder,
                run,
                self._ledger,
                allow_simulated=self._allow_simulated,
                secrets=self._secrets.setdefault(run, RoundSecrets()),
            )
        return self._nodes[run]

    def _offered(self, words: Mapping[str, Any]) -> bool:
        """Keep an offer that this site would plan itself; return whether it is accepted."""
        try:
            agreement = Agreement.from_json(str(words.get("agreement")))
            self._ledger.require_open(agreement.digest)
        except InvalidInput as error:
            raise Refused(f"the offer cannot be taken: {error}") from error
        run = agreement.digest
        state = self._folder.state(run)
        # An offer that waited is accepted by a site that was started again with --accept.
        if state == "unknown" or (self._accept and state == "offered"):
            try:
                self._take(agreement, is_new=state == "unknown")
            except InvalidInput as error:
                reason = f"the offer cannot be taken: {error}"
                self._folder.note_refusal(agreement, reason)
                raise Refused(reason) from error
            state = self._folder.state(run)
        if state == "offered":
            return False
        self._require_open(run, over=True)
        if state == "accepted":
            with _refused_in_fixed_words(run):
                if ensure_frozen(self._folder, run, self._ledger):
                    self._tell(f"run {run[:12]}: its records are frozen until it is over")
        return True

    def _strangers(self, agreement: Agreement) -> list[str]:
        """Return the peers whose keys nobody has compared, where these matter."""
        if not agreement.is_masked:
            return []
        peers = PinnedPeers(self._folder.path)
        return [site.name for site in peers.unpinned(agreement, self._folder.name)]

    def _take(self, agreement: Agreement, *, is_new: bool) -> None:
        """Keep an agreement, accepted or for the operator to read, or refuse it."""
        strangers = self._strangers(agreement)
        if strangers and not is_new:  # its operator has been told
            return
        self._check(agreement)
        run, name = agreement.digest, agreement.name
        if self._accept and not strangers:
            accept(self._folder, agreement, self._ledger)
            self._tell(f"run {run[:12]} ({name}) was offered and accepted (--accept)")
        else:
            require_affordable(agreement, self._ledger, self._folder)
            self._folder.keep(agreement)
            self._tell(
                f"run {run[:12]} ({name}) is offered. To read and accept its terms: "
                f"dpfedc site accept {self._folder.path} {run[:12]}"
            )
            if self._accept:
                self._tell(
                    f"run {run[:12]} is not accepted by itself (--accept): its uploads are hidden "
                    f"by keys of peers that are not pinned here ({', '.join(strangers)})"
                )

    def _check(self, agreement: Agreement) -> None:
        """Refuse an agreement that is not about this site or not what its own code would plan."""
        if agreement.noise != "secure" and not self._allow_simulated:
            raise InvalidInput(f"noise must be secure, got {agreement.noise}")
        require_fitting(agreement, self._folder, self._ledger)
        agreement.verified()
        if not agreement.exchanges:
            raise InvalidInput("the agreement must have stages, got none")

    def _result(self, run: str, message: bytes) -> bool:
        """Keep the model of a run that this site took part in."""
        from dpfedc.deployment.model_message import received_model  # no round needs it

        if not any(stage.run == run and stage.n_answered for stage in self._ledger.totals().stages):
            self._tell(
                f"run {run[:12]} is over without this site. To free what is reserved for it: "
                f"dpfedc site cancel {self._folder.path} {run[:12]}"
            )
            raise RunClosed(f"this site has answered nothing in run {run[:12]}, which is over")
        try:
            model = received_model(message, self._folder.agreement(run))
        except InvalidInput as error:
            raise Refused(str(error)) from error
        keep_model(self._folder.run(run) / MODEL, model)
        self._nodes.pop(run, None)
        self._secrets.pop(run, None)
        snapshot.forget(self._folder, run)
        self._tell(
            f"run {run[:12]} is over. To assign your records to its clusters: "
            f"dpfedc site labels {self._folder.path} --run {run[:12]}"
        )
        return True


@contextmanager
def _refused_in_fixed_words(run: str) -> Iterator[None]:
    """Send nothing of what is wrong with a site's records or settings."""
    try:
        yield
    except Unusable:
        raise
    except snapshot.SnapshotLost as error:  # a file is not as it was written, whatever was in it
        raise RunClosed(f"run {run[:12]} {LOST}") from error
    except (DPFedCError, OSError) as error:
        raise Refused(NOT_READY) from error


def keep_model(path: Path, model: ClusterModel) -> None:
    """Keep a model that was sent; names that clusters have been given here stay."""
    model.named_as_in(path).write(path)


def ensure_frozen(folder: SiteFolder, run: str, ledger: Ledger) -> bool:
    """Freeze the records of an accepted run unless they are; return whether that was to be done.

    Once something was charged they must be there: other records would be another run's.
    """
    if snapshot.is_frozen(folder, run):
        return False
    if any(stage.run == run for stage in ledger.totals().stages):
        raise snapshot.SnapshotLost(
            f"the frozen records of run {run[:12]} are gone; it can only be cancelled"
        )
    agreement = folder.agreement(run)
    require_schema(agreement, folder.schema)
    require_unit(agreement, folder.unit, ledger)
    snapshot.freeze(folder, agreement)
    return True


def _signed_now(folder: SiteFolder, agreement: Agreement, content: bytes) -> bytes:
    """Sign with a key that is looked up each time: it may be exchanged while a run goes on."""
    return signing(folder, agreement)(content)


def site_node(
    folder: SiteFolder,
    run: str,
    ledger: Ledger,
    *,
    allow_simulated: bool = False,
    secrets: RoundSecrets | None = None,
) -> SiteRun:
    """Return the site in an accepted run, with its frozen records."""
    ensure_frozen(folder, run, ledger)
    agreement = folder.agreement(run)
    X, present = snapshot.frozen(folder, agreement)
    return SiteRun(
        agreement,
        run,
        folder.name,
        X,
        present,
        ledger,
        allow_simulated=allow_simulated,
        sign=partial(_signed_now, folder, agreement) if agreement.is_masked else None,
        secrets=secrets or RoundSecrets(),
    )
