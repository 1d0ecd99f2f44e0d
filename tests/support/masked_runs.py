"""Runs with secure aggregation over sites in memory, each with its key and its secrets."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from dpfedc.clustering.stage import SiteBatch, contributed
from dpfedc.deployment.agreement import Agreement, Site
from dpfedc.deployment.messages import UPLOAD, Answer, Refusal, Request
from dpfedc.deployment.round_calls import RoundCalls, RoundEvent
from dpfedc.deployment.round_secrets import RoundSecrets
from dpfedc.deployment.secure_aggregation.circle import usual_survivors
from dpfedc.deployment.secure_rounds import KEYS, SecureRound
from dpfedc.deployment.secure_steps import of_masks
from dpfedc.errors import DPFedCError
from dpfedc.kernels.column_view import seen
from dpfedc.privacy.gate import Gate
from dpfedc.privacy.noise import SecureNoise
from dpfedc.randomness import Randomness
from support.deployment import MemoryTransport, agreed, node, records

NAMES = ("berlin", "geneva", "lisbon", "madrid", "oslo")


def signing_key(site: str) -> Ed25519PrivateKey:
    return Ed25519PrivateKey.from_private_bytes(site.encode().ljust(32, b"."))


def roster(n_sites: int, n_records: int = 60) -> tuple[Site, ...]:
    names = [NAMES[i] if i < len(NAMES) else f"site{i:03}" for i in range(n_sites)]
    keys = [signing_key(name).public_key().public_bytes_raw().hex() for name in names]
    # Of different sizes: a share of the noise must not depend on them.
    sizes = [n_records * (1 + i % 3) for i in range(n_sites)]
    return tuple(Site(n, m, signing_key=k) for n, m, k in zip(names, sizes, keys, strict=True))


def masked(n_sites: int = 4, method: str = "dp-lloyd", **changes: Any) -> Agreement:
    """Return an agreement on a short run with secure aggregation."""
    colluding = changes.pop("colluding_sites", 1)
    survivors = changes.pop("min_survivors", usual_survivors(n_sites, colluding))
    terms = {
        "sites": roster(n_sites), "noise": "secure", "trust": "secure-aggregation",
        "min_survivors": survivors, "colluding_sites": colluding,
    }  # fmt: skip
    return agreed(method, **{**terms, **changes})


def lloyd(n_rounds: int) -> tuple[tuple[str, Any], ...]:
    """Return settings of a run that has this stage and no other."""
    return ("n_rounds", n_rounds), ("norm_bound", 14.0)


@cache
def study(
    n_sites: int = 5,
    method: str = "dp-lloyd",
    settings: tuple[tuple[str, Any], ...] = lloyd(2),
    **terms: Any,
) -> Agreement:
    """Return an agreement, planned once. Of five sites one may drop out, and one colludes."""
    return masked(n_sites, method, settings=dict(settings), **terms)


def parts_of(agreement: Agreement) -> dict[str, np.ndarray]:
    sizes = [site.n_records for site in agreement.sites]
    X = np.split(records(sum(sizes)), np.cumsum(sizes)[:-1])
    return {site.name: part for site, part in zip(agreement.sites, X, strict=True)}


@dataclass(frozen=True, eq=False)
class KnownNoise(SecureNoise):
    """Noise of a seeded generator, for a site, and all of it that was drawn, by stage and round.

    It is the same in every run. A second draw in a round is another one.
    """

    site: str
    place: Callable[[], tuple[str, int]]
    drawn: dict[tuple[str, int], list[np.ndarray]] = field(default_factory=dict)

    def integers(self, shape: tuple[int, ...], std: float) -> np.ndarray:
        stage, t = self.place()
        before = self.drawn.setdefault((stage, t), [])
        seed = [crc32(self.site.encode()), crc32(stage.encode()), t, len(before)]
        drawn = np.rint(std * np.random.default_rng(seed).standard_normal(shape))
        before.append(drawn.astype(np.int64))
        return before[-1]


@dataclass
class MaskedTransport(MemoryTransport):
    """Sites with secrets in memory. `restart` makes one forget them, as a killed process does.

    `before` is called with site, step and request of every request; what it returns, if anything,
    is the reply. `after` is called with site and step when a site has made its reply.
    """

    secrets: dict[str, RoundSecrets] = field(default_factory=dict)
    before: Callable[[str, str, bytes], Any] = lambda site, step, request: None
    after: Callable[[str, str], Any] = lambda site, step: None
    answered: list[tuple[str, str, bytes, bytes]] = field(default_factory=list)
    """All that went to and fro: site, step, request, answer."""
    noise: dict[str, Any] = field(default_factory=dict)
    now: tuple[str, int] = ("", 0)
    """Stage and round of the request that is served."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.X = parts_of(self.agreement)

    def with_known_noise(self) -> MaskedTransport:
        """Let all sites draw noise that is known, and the same in every run."""
        names = [site.name for site in self.agreement.sites]
        self.noise = {name: KnownNoise(name, lambda: self.now) for name in names}
        return self

    def restart(self, site: str) -> None:
        self.secrets.pop(site, None)

    def _served(self, site: str, request: bytes) -> bytes | Refusal | None:
        asked = Request.from_bytes(request)
        self.now = (asked.stage, asked.t)
        instead = self.before(site, asked.step, request)
        if instead is not None:
            return None if instead == "silent" else instead
        with self.ledger(site) as ledger:
            try:
                reply = self.site(site, ledger).answer(request)
            except DPFedCError as error:
                return Refusal.of(error)
        self.answered.append((site, asked.step, request, reply))
        self.after(site, asked.step)
        return reply

    def site(self, site: str, ledger: Any) -> Any:
        return node(
            self.agreement,
            site,
            ledger,
            self.X[site],
            sign=signing_key(site).sign,
            secrets=self.secrets.setdefault(site, RoundSecrets()),
            noise=self.noise.get(site),
        )


def sites_in(folder: Path, agreement: Agreement) -> MaskedTransport:
    """Return the sites of a run in a folder, with noise that is known."""
    folder.mkdir(exist_ok=True)
    return MaskedTransport(agreement, folder).with_known_noise()


def counts(transport: MaskedTransport, site: str) -> list[set[tuple[str, int]]]:
    """Return the places (stage, t) of a site's charges, answers and unmaskings.

    That none comes twice is the ledger's own rule, which it verifies.
    """
    with transport.ledger(site) as ledger:
        ledger.verify()
        book = ledger._read()
    charged = {(stage, t) for (_, stage), done in book.charges.items() for t in done}
    return [charged, {place[1:] for place in book.answers}, {place[1:] for place in book.unmasked}]


def summed_here(transport: MaskedTransport, stage: str, t: int, sites: Iterable[str]) -> np.ndarray:
    """Return the sum over these sites in one process, records and noise, modulo 2^64."""
    sites = list(sites)
    sent = (Request.from_bytes(data) for _, step, data, _ in transport.answered if step == UPLOAD)
    request = next(r for r in sent if (r.stage, r.t) == (stage, t))
    broadcast, _ = of_masks(request.arrays)
    tables = [transport.X[site] for site in sites]
    total = exact_sum_of(transport.agreement, tables, stage, t, broadcast)
    noise = [whole_noise(transport.noise[site].drawn[stage, t]) for site in sites]
    return np.sum([total, *noise], axis=0, dtype=np.uint64)


class OneRound:
    """The first round of a run, by a server that may do with it what it likes."""

    def __init__(self, transport: MaskedTransport, folder: Path) -> None:
        agreement = self.agreement = transport.agreement
        self.transport, self.folder = transport, folder
        self.exchange = agreement.exchanges[0]
        stage, randomness = self.exchange.stage, Randomness(agreement.seed)
        start = stage.start(agreement.declared, agreement.public, randomness)
        self.arrays = self.exchange.sent(start)
        self.requests: dict[str, bytes] = {}
        self.answers: dict[str, Answer] = {}
        self.refused: dict[str, str] = {}
        """What sites said in the last steps."""

    def _secret(self, attempt: str) -> SecureRound:
        (self.folder / attempt).mkdir(parents=True, exist_ok=True)
        names = tuple(site.name for site in self.agreement.sites)
        event = RoundEvent(self.exchange.stage.name, 1, 1, 1, 1, names)
        calls = RoundCalls(event, self.transport, 1.0, len(names), lambda _: None)
        self.refused = calls.refused
        return SecureRound(self.agreement, calls, self.folder / attempt, event.stage, 1)

    def prepared(self, attempt: str = "first") -> dict[str, bytes]:
        """Have keys and shares made, and return requests for uploads."""
        number, masks = self._secret(attempt).prepared()
        names, run = [site.name for site in self.agreement.sites], self.agreement.digest
        place = (self.exchange.stage.name, 1)
        self.requests = {
            names[n]: Request(
                run, names[n], *place, {**self.arrays, **more}, attempt=number
            ).to_bytes()
            for n, more in masks.items()
        }
        return self.requests

    def uploaded(self, sites: Iterable[str] | None = None) -> dict[str, Answer]:
        """Have these sites, or all, make their uploads."""
        chosen = self.requests if sites is None else {s: self.requests[s] for s in sites}
        replies = self.transport.exchange(chosen, 1.0)
        self.answers = {s: Answer.from_bytes(r) for s, r in replies.items() if type(r) is bytes}
        return self.answers

    def opened(
        self, sites: Iterable[str] | None = None, attempt: str = "first"
    ) -> tuple[np.ndarray, list[str]]:
        """Return the sum over these sites, or all that have uploaded, and who is in it.

        Another `attempt` is one of a server that says nothing of what it asked for before.
        """
        secret = self._secret(attempt)
        if attempt != "first":
            shutil.copy(self.folder / "first" / KEYS, self.folder / attempt / KEYS)
        chosen = self.answers if sites is None else {s: self.answers[s] for s in sites}
        total, survivors = secret.opened(self.requests, chosen, {})
        return total.values, survivors

    def exact(self, sites: Iterable[str]) -> np.ndarray:
        """Return the sum of these sites' records."""
        tables = [self.transport.X[site] for site in sites]
        return exact_sum_of(self.agreement, tables, self.exchange.stage.name, 1, self.arrays)


def exact_sum_of(
    agreement: Agreement,
    tables: Iterable[np.ndarray],
    stage: str,
    t: int,
    arrays: Mapping[str, np.ndarray],
) -> np.ndarray:
    """Return the sum of all these records in a round, in grid units modulo 2^64, without noise."""
    exchange, X = agreement.exchange(stage), np.concatenate(list(tables))
    state = exchange.accepted(arrays, agreement.fixed)
    gate, randomness = Gate(agreement.privacy, SecureNoise()), Randomness(agreement.seed)
    ends, site = np.array([0, len(X)]), np.array([0])
    batch = SiteBatch(seen(X, state), ends, site, np.ones(len(X), bool))
    batch.memory = exchange.stage.prepare(batch, state, randomness)
    part = contributed(exchange.stage, batch, state, t, gate, randomness)
    bound = exchange.stage.sensitivity(state, exchange.stage.turn(t))
    return gate._sum(part, stage, bound).view(np.uint64)


def whole_noise(drawn: list[np.ndarray]) -> np.ndarray:
    """Return the noise of one upload from its draws: one, or of a symmetric sum two.

    Of a packed triangle the diagonal is drawn first, and then the rest.
    """
    if len(drawn) == 1:
        return drawn[0].view(np.uint64)
    on, off = drawn
    diagonal = np.equal(*np.triu_indices(len(on)))
    found = np.empty(len(on) + len(off), np.int64)
    found[diagonal], found[~diagonal] = on, off
    return found.view(np.uint64)
