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
from dpfedc.deployment.checkpoint import Checkpoint
from dpfedc.deployment.coordinator import MODEL, RECORD
from dpfedc.deployment.flower.transport import FlowerTransport
from dpfedc.deployment.keys import fingerprint, public_key
from dpfedc.deployment.messages import Refusal
from dpfedc.deployment.proposal import proposed_by_toml
from dpfedc.deployment.server_folder import ServerFolder
from dpfedc.engine.conclusion import Conclusion
from dpfedc.errors import DPFedCError, InvalidInput, NotFound
from dpfedc.whole_files import write_whole

AGREEMENT = "agreement.json"
_REPLY_S = 120.0
"""How long a site that is there may take for words around the rounds, on a busy machine too."""
_AGAIN_S = 2.0


def await_sites(
    transport: FlowerTransport,
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
                "started, and are they? --site names the sites that are to take part"
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
    folder: ServerFolder, transport: FlowerTransport, plan: Path, names: Sequence[str]
) -> Agreement:
    """Return the agreement on a plan with these sites, as many records as they declare."""
    text = plan.read_text(encoding="utf-8")
    keys = folder.enrolled()
    replies = transport.exchange({name: control.hello() for name in names}, _REPLY_S)
    sites = []
    for name in names:
        reply = replies.get(name)
        if not isinstance(reply, bytes):
            reason = "it is silent" if reply is None else reply.reason
            raise DPFedCError(f"{name} does not say how many records it has: {reason}")
        records: Any = _said(reply).get("records")
        try:
            sites.append(Site(name, records, fingerprint(keys[name])))
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
    transport: FlowerTransport,
    agreement: Agreement,
    wait_s: float,
    *,
    on_change: Callable[[set[str], Mapping[str, str]], None] = lambda _, __: None,
) -> set[str]:
    """Offer a run until every site has decided or the time is up; return who has accepted.

    Sites that are away are not waited for if the others are enough; a round asks them again. Fewer
    than the rounds need is an error: then nothing has been released.
    """
    names = {site.name for site in agreement.sites}
    accepted: set[str] = set()
    refusals: dict[str, str] = {}
    end, words, told = time.monotonic() + wait_s, control.offer(agreement), None
    while True:
        online = {name for name, there in transport.online().items() if there}
        asked = dict.fromkeys((names & online) - accepted - refusals.keys(), words)
        for name, reply in transport.exchange(asked, _REPLY_S).items():
            if isinstance(reply, Refusal):
                refusals[name] = reply.reason
            elif _said(reply).get("accepted") is True:
                accepted.add(name)
        if told != (len(accepted), len(refusals)):
            told = (len(accepted), len(refusals))
            on_change(accepted, refusals)
        undecided = names - accepted - refusals.keys()
        enough = len(accepted) >= agreement.min_answers and not undecided & online
        if not undecided or enough or time.monotonic() >= end:
            break
        time.sleep(min(_AGAIN_S, max(0.0, end - time.monotonic())))
    if len(accepted) < agreement.min_answers:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in refusals.items())
        raise DPFedCError(
            f"run {agreement.digest[:12]} must be accepted by {agreement.min_answers} sites, got "
            f"{len(accepted)}{f' ({reasons})' if reasons else ''}. Nothing has been released. "
            "Sites accept with `dpfedc site accept`; then start it again"
        )
    return accepted


def _said(reply: bytes) -> Mapping[str, Any]:
    """Return what a site said, nothing if that cannot be read: it must not stop the others."""
    try:
        return control.words_of(reply)
    except InvalidInput:
        return {}


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


def publish(transport: FlowerTransport, agreement: Agreement, folder: Path) -> set[str]:
    """Send the model to the sites; return which have it."""
    words = control.result(agreement.digest, (folder / MODEL).read_bytes())
    online = transport.online()
    names = [site.name for site in agreement.sites if online.get(site.name)]
    replies = transport.exchange(dict.fromkeys(names, words), _REPLY_S)
    return {name for name, reply in replies.items() if isinstance(reply, bytes)}


def standing(path: Path) -> str:
    """Return in words where a run stands."""
    if (path / MODEL).exists():
        return "finished"
    try:
        point = Checkpoint.load(path, path.name)
    except InvalidInput as error:
        return f"its checkpoint cannot be read: {error}"
    return (
        "offered" if point is None else f"{len(point.position.rounds)} rounds done, can be resumed"
    )


def name_of(path: Path) -> str:
    """Return the name that a run's agreement has."""
    return str(json.loads((path / AGREEMENT).read_text(encoding="utf-8"))["name"])
