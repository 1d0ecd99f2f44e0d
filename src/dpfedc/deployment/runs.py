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
from dpfedc.deployment.heads import KeptHeads
from dpfedc.deployment.keys import fingerprint, public_key, signing_key
from dpfedc.deployment.mailbox.mailbox import Mailbox
from dpfedc.deployment.messages import Refusal
from dpfedc.deployment.model_message import model_message
from dpfedc.deployment.proposal import proposed_by_toml
from dpfedc.deployment.server_folder import ServerFolder
from dpfedc.engine.conclusion import Conclusion
from dpfedc.errors import DPFedCError, InvalidInput, NotFound
from dpfedc.model_file import ClusterModel
from dpfedc.whole_files import is_locked, write_whole

AGREEMENT, LOCK = "agreement.json", "lock"
_REPLY_S = 120.0
"""How long a site that is there may take for words around the rounds, on a busy machine too."""
_LEAST_REPLY_S = 1.0
"""What it may take even if nobody wants to wait."""
_AGAIN_S = 2.0
_SILENT = "it is silent. Start it, or leave it out with --site"


def await_sites(
    transport: Mailbox,
    names: Sequence[str],
    wait_s: float,
    *,
    on_change: Callable[[set[str]], None] = lambda _: None,
) -> None:
    """Wait until all these sites are there, or say which are not."""
    end, here = time.monotonic() + wait_s, None
    while True:
        online = {name for name, there in transport.online().items() if there}
        if here != online & set(names):
            here = online & set(names)
            on_change(here)
        absent = [name for name in names if name not in online]
        if not absent:
            return
        if time.monotonic() >= end:
            raise DPFedCError(
                f"no connection from {', '.join(absent)} within {wait_s:g} seconds. Is the server "
                "started (dpfedc server start)? For each of these: start it (dpfedc site start), "
                "or leave it out with --site, which names those that take part"
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
            reason = _SILENT if reply is None else reply.reason
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


def stored_agreement(folder: ServerFolder, start: str) -> Agreement:
    """Return the agreement of the one run whose digest starts so ("": of the latest run)."""
    files = sorted(folder.runs.glob(f"*/{AGREEMENT}"), key=lambda file: file.stat().st_mtime)
    found = [file for file in files if file.parent.name.startswith(start)]
    if not found or (start and len(found) > 1):
        known = ", ".join(file.parent.name[:12] for file in files) or "none"
        raise InvalidInput(f"{start!r} must be the start of one run, known: {known}")
    return Agreement.from_json(found[-1].read_text(encoding="utf-8"))


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
    """
    names, least = {s.name for s in agreement.sites}, agreement.least_answers(len(agreement.sites))
    accepted: set[str] = set()
    refusals: dict[str, str] = {}
    end, told = time.monotonic() + wait_s, None
    while True:
        online = {name for name, there in transport.online().items() if there}
        sent, undecided = heads.read(), names - accepted - refusals.keys()
        asked = {name: control.offer(agreement, sent.get(name)) for name in undecided & online}
        replies = transport.exchange(asked, _REPLY_S)
        heads.saw(_said_heads(replies), sent=sent)
        for name, reply in replies.items():
            if isinstance(reply, Refusal):
                refusals[name] = reply.reason
            elif _said(reply).get("accepted") is True:
                accepted.add(name)
        if told != (len(accepted), len(refusals)):
            told = (len(accepted), len(refusals))
            on_change(accepted, refusals)
        undecided = names - accepted - refusals.keys()
        enough = len(accepted) >= least and not undecided & online
        if not undecided or enough or time.monotonic() >= end:
            break
        time.sleep(min(_AGAIN_S, max(0.0, end - time.monotonic())))
    if len(accepted) < least:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in refusals.items())
        advice = "Sites accept with `dpfedc site accept`; then start it again"
        if not names - accepted - refusals.keys():
            advice = "All sites have decided: another plan, or --site, may do"
        raise DPFedCError(
            f"run {agreement.digest[:12]} must be accepted by {least} sites, got "
            f"{len(accepted)}{f' ({reasons})' if reasons else ''}. {released(folder)}. "
            f"{advice}"
        )
    return accepted


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
    """Send the model to the sites; return which have it."""
    message = model_message(agreement, ClusterModel.read(folder / MODEL))
    names = [site.name for site in agreement.sites]
    end = time.monotonic() + _AGAIN_S  # one may just be calling again
    while True:
        online = transport.online()
        if all(online.get(name) for name in names) or time.monotonic() >= end:
            break
        time.sleep(_AGAIN_S / 10)
    names = [name for name in names if online.get(name)]
    replies = transport.exchange(dict.fromkeys(names, message), _REPLY_S)
    return {name for name, reply in replies.items() if isinstance(reply, bytes)}


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
    begun, held = done or (path / REQUESTS).exists(), is_locked(path / LOCK)
    if held:
        return f"running: {done} rounds done" if begun else "running: sites are asked to accept"
    return f"{done} rounds done, can be resumed" if begun else "offered"


def _rounds_done(path: Path) -> int:
    point = Checkpoint.load(path, path.name)
    return 0 if point is None else len(point.position.rounds)


def name_of(path: Path) -> str:
    """Return the name that a run's agreement has."""
    return str(json.loads((path / AGREEMENT).read_text(encoding="utf-8"))["name"])
