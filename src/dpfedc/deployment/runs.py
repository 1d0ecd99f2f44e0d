"""A run from the coordinator's side, around its rounds: propose, offer, wait, run, publish."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from dpfedc.clustering.registry import method_named
from dpfedc.deployment import control
from dpfedc.deployment.agreement import Agreement, Site
from dpfedc.deployment.checkpoint import REQUESTS, Checkpoint
from dpfedc.deployment.coordinator import MODEL, RECORD
from dpfedc.deployment.decisions import Decisions, named
from dpfedc.deployment.heads import KeptHeads
from dpfedc.deployment.keys import fingerprint, public_key, signing_key
from dpfedc.deployment.mailbox.mailbox import Mailbox
from dpfedc.deployment.messages import Refusal
from dpfedc.deployment.model_message import model_message
from dpfedc.deployment.proposal import proposed_by_toml
from dpfedc.deployment.server_folder import ServerFolder
from dpfedc.deployment.site_run import LEDGER_LOST
from dpfedc.engine.conclusion import Conclusion
from dpfedc.errors import DPFedCError, InvalidInput, NotFound
from dpfedc.model_file import ClusterModel
from dpfedc.privacy.statement import counted
from dpfedc.whole_files import is_locked, write_whole

AGREEMENT, LOCK = "agreement.json", "lock"
_REPLY_S = 120.0
"""How long a site that is there may take for words around the rounds, on a busy machine too."""
_LEAST_REPLY_S = 1.0
"""What it may take even if nobody wants to wait."""
_AGAIN_S = 2.0
_WITHOUT = (
    "start it (dpfedc site start), or leave it out with --site, which names those that take part"
)
_SILENT = "it is silent. Start it, or leave it out with --site"
_IN_ITS_LOG = "Ask its operator to look into the site's log, which says what to do"


def await_sites(
    transport: Mailbox,
    names: Sequence[str],
    wait_s: float,
    *,
    least: int | None = None,
    advice: str = _WITHOUT,
    on_change: Callable[[set[str]], None] = lambda _: None,
) -> None:
    """Wait until these sites are there, all or at `least` so many, or say which are not."""
    end, here = time.monotonic() + wait_s, None
    while True:
        online = {name for name, there in transport.online().items() if there}
        if here != online & set(names):
            here = online & set(names)
            on_change(here)
        absent = [name for name in names if name not in online]
        if len(absent) <= len(names) - (len(names) if least is None else least):
            return
        if time.monotonic() >= end:
            raise DPFedCError(
                f"no connection from {named(absent)} within {wait_s:g} seconds. Is the server "
                f"started (dpfedc server start)? For each of these: {advice}"
            )
        time.sleep(_AGAIN_S / 4)


def chosen_sites(folder: ServerFolder, only: Sequence[str]) -> list[str]:
    """Return the sites that take part: those named, or all that are enrolled."""
    enrolled = folder.enrolled()
    unknown = [name for name in only if name not in enrolled]
    if unknown:
        raise InvalidInput(f"--site must be enrolled, got {', '.join(unknown)}")
    if not enrolled:
        raise InvalidInput(f"{folder.path} must have enrolled sites, got none")
    return sorted(set(only)) or sorted(enrolled)


def proposal(
    folder: ServerFolder,
    transport: Mailbox,
    plan: Path,
    names: Sequence[str],
    *,
    wait_s: float = _REPLY_S,
) -> Agreement:
    """Return the agreement on a plan with these sites, as many records as they declare.

    A site that is silent for `wait_s` seconds is named.
    """
    text = plan.read_text(encoding="utf-8")
    keys = folder.enrolled()
    heads = KeptHeads(folder.path)
    sent = heads.read()
    asked = {name: control.hello(sent.get(name)) for name in names}
    replies = transport.exchange(asked, min(_REPLY_S, max(wait_s, _LEAST_REPLY_S)))
    heads.saw(_said_heads(replies), sent=sent)
    sites = []
    for name in names:
        reply = replies.get(name)
        if not isinstance(reply, bytes):
            reason = _SILENT
            if reply is not None:
                reason = f"{reply.reason}. {_IN_ITS_LOG}; or leave it out with --site"
            raise DPFedCError(f"{name} does not say how many records it has: {reason}")
        records: Any = _said(reply).get("records")
        try:
            sites.append(Site(name, records, fingerprint(keys[name]), signing_key(keys[name])))
        except InvalidInput as error:
            raise DPFedCError(f"{name} does not say how many records it has: {error}") from error
    key = public_key(folder.receipt_key)
    agreement = proposed_by_toml(text, sites=sites, receipt_key=key, folder=plan.parent)
    hopeless = agreement.plan.hopeless(agreement.facts)
    if hopeless:
        raise NotFound(f"{hopeless}. Nothing has been offered")
    return agreement


def run_folder(folder: ServerFolder, agreement: Agreement) -> Path:
    """Return the folder of a run, with its agreement in it."""
    path = folder.runs / agreement.digest
    path.mkdir(parents=True, exist_ok=True)
    if not (path / AGREEMENT).exists():
        write_whole(path / AGREEMENT, agreement.to_json().encode())
    return path


def stored_agreement(folder: ServerFolder, words: str) -> Agreement:
    """Return the agreement of the one run that is meant ("": of the latest run).

    By its first digits, or its name. Of several runs that one is meant which is not over.
    """
    files = sorted(folder.runs.glob(f"*/{AGREEMENT}"), key=lambda file: file.stat().st_mtime)
    runs = [file.parent for file in files]
    found = runs[-1:]
    if words:
        found = [run for run in runs if run.name.startswith(words)]
        found = found or [run for run in runs if name_of(run) == words]
    if len(found) > 1:
        found = [run for run in found if not (run / MODEL).exists()]
    if len(found) != 1:
        known = ", ".join(f"{r.name[:12]} ({name_of(r)}, {standing(r)})" for r in runs) or "none"
        raise InvalidInput(
            f"RUN must be the first digits or the name of one run, got {words!r}; known: {known}"
        )
    return Agreement.from_json((found[0] / AGREEMENT).read_text(encoding="utf-8"))


def is_over(folder: Path) -> bool:
    """Return whether a run has its model, and only sends it again."""
    return (folder / MODEL).exists()


def acceptances(
    transport: Mailbox,
    agreement: Agreement,
    wait_s: float,
    *,
    heads: KeptHeads,
    folder: Path,
    on_change: Callable[[set[str], Mapping[str, str]], None] = lambda _, __: None,
) -> set[str]:
    """Offer a run until every site has decided or the time is up; return who has accepted.

    Sites that are away are not waited for if the others are enough; a round asks them again. Fewer
    than the rounds need is an error, which says what was released before, by the run's `folder`.
    What sites say is kept there.
    """
    names, least = {s.name for s in agreement.sites}, agreement.least_answers(len(agreement.sites))
    accepted: set[str] = set()
    refusals: dict[str, str] = {}
    kept = Decisions.read(folder)
    end, told = time.monotonic() + wait_s, None
    while True:
        online = {name for name, there in transport.online().items() if there}
        sent, undecided = heads.read(), names - accepted - refusals.keys()
        asked = {name: control.offer(agreement, sent.get(name)) for name in undecided & online}
        replies = transport.exchange(asked, _REPLY_S)
        heads.saw(_said_heads(replies), sent=sent)
        for name, reply in replies.items():
            if isinstance(reply, Refusal):
                also = f". {_IN_ITS_LOG}" if reply.reason == LEDGER_LOST else ""
                refusals[name] = f"{reply.reason}{also}"
                kept.refuse(name, reply)
            elif _said(reply).get("accepted") is True:
                accepted.add(name)
                kept.accept(name)
        if told != (len(accepted), len(refusals)):
            told = (len(accepted), len(refusals))
            kept.write(folder)
            on_change(accepted, refusals)
        undecided = names - accepted - refusals.keys()
        enough = len(accepted) >= least and not undecided & online
        if not undecided or enough or time.monotonic() >= end:
            break
        time.sleep(min(_AGAIN_S, max(0.0, end - time.monotonic())))
    if len(accepted) < least:
        who = _who(accepted, refusals, undecided & online, undecided - online)
        raise DPFedCError(
            f"run {agreement.digest[:12]} must be accepted by {counted(least, 'site')}, got "
            f"{len(accepted)}{who[0]}. {''.join(who[1:])}{released(folder)}. "
            f"{_advice(undecided & online, undecided - online)}"
        )
    return accepted


def _who(
    accepted: set[str], refusals: Mapping[str, str], waiting: set[str], away: set[str]
) -> list[str]:
    """Return who has said what, each in a sentence, those first that have accepted."""
    return [
        f" ({named(accepted)})" if accepted else "",
        f"Not accepted yet: {named(waiting)}. " if waiting else "",
        f"Not connected: {named(away)}. " if away else "",
        *(f"{name} refuses: {reason}. " for name, reason in refusals.items()),
    ]


def _advice(waiting: set[str], away: set[str]) -> str:
    if waiting:
        return "Sites accept with `dpfedc site accept`; then start it again"
    if away:
        return "Start the sites that are away (dpfedc site start); then start it again"
    return "All sites have decided: another plan, or --site, may do"


def _said(reply: bytes) -> Mapping[str, Any]:
    """Return what a site said, nothing if that cannot be read: it must not stop the others."""
    try:
        return control.words_of(reply)
    except InvalidInput:
        return {}


def _said_heads(replies: Mapping[str, bytes | Refusal]) -> dict[str, Any]:
    """Return where the ledgers of the sites that answered stand, as they say."""
    return {n: _said(r).get("ledger") for n, r in replies.items() if isinstance(r, bytes)}


def judged(agreement: Agreement, finished: Conclusion, folder: Path) -> Conclusion:
    """Return the conclusion with a verdict in its record, and write both again.

    The server rehearses with invented records, from what the agreement says and was released.
    """
    from dpfedc.verdict.kept import kept_verdict
    from dpfedc.verdict.verdict import reached_verdict

    method = method_named(agreement.method)
    planned = (method, agreement.settings, agreement.facts, agreement.plan)
    expected = kept_verdict(*planned)
    verdict, model = reached_verdict(expected, *planned, finished.model, finished.doubts)
    record = finished.record.with_results(verdict=verdict.as_plain())
    model.write(folder / MODEL)
    record.write(folder / RECORD)
    return replace(finished, model=model, record=record)


def publish(transport: Mailbox, agreement: Agreement, folder: Path) -> set[str]:
    """Send the model to the sites that are there; return which have it, now or from before."""
    message = model_message(agreement, ClusterModel.read(folder / MODEL))
    names = [site.name for site in agreement.sites]
    end = time.monotonic() + _AGAIN_S  # one may just be calling again
    while True:
        online = transport.online()
        if all(online.get(name) for name in names) or time.monotonic() >= end:
            break
        time.sleep(_AGAIN_S / 10)
    here = [name for name in names if online.get(name)]
    replies = transport.exchange(dict.fromkeys(here, message), _REPLY_S)
    kept = Decisions.read(folder)
    for name, reply in replies.items():
        if isinstance(reply, Refusal) and reply.of_run:
            kept.refuse(name, reply)
    kept.served |= {name for name, reply in replies.items() if isinstance(reply, bytes)}
    kept.write(folder)
    return kept.served


def released(path: Path) -> str:
    """Return in words what sites have released to a run so far."""
    done = _rounds_done(path)
    if done:
        rounds = "1 round" if done == 1 else f"{done:,} rounds"
        return f"{rounds} done before; what was released in them stays released and charged"
    if (path / REQUESTS).exists():
        return "A round has been sent: what sites answered stays released and charged"
    return "Nothing has been released"


def standing(path: Path) -> str:
    """Return in words where a run stands."""
    if (path / MODEL).exists():
        return "finished"
    try:
        done = _rounds_done(path)
    except InvalidInput as error:
        return f"its checkpoint cannot be read: {error}"
    rounds = "1 round" if done == 1 else f"{done:,} rounds"
    begun, held = done or (path / REQUESTS).exists(), is_locked(path / LOCK)
    if held:
        return f"running: {rounds} done" if begun else "running: sites are asked to accept"
    return f"{rounds} done, can be resumed" if begun else "offered"


def _rounds_done(path: Path) -> int:
    point = Checkpoint.load(path, path.name)
    return 0 if point is None else len(point.position.rounds)


def name_of(path: Path) -> str:
    """Return the name that a run's agreement has."""
    return str(json.loads((path / AGREEMENT).read_text(encoding="utf-8"))["name"])


def sites_of(path: Path) -> list[str]:
    """Return the sites that a run's agreement names."""
    content = json.loads((path / AGREEMENT).read_text(encoding="utf-8"))
    return [str(site["name"]) for site in content["sites"]]
