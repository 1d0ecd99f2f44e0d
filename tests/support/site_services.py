"""Sites with folders of their own, asked in memory instead of over a network."""

import json

import numpy as np

from dpfedc.clustering.registry import method_named
from dpfedc.deployment import control
from dpfedc.deployment.agreement import Site
from dpfedc.deployment.certificates import write_server_certificates
from dpfedc.deployment.control import opened
from dpfedc.deployment.keys import fingerprint, read_certificate
from dpfedc.deployment.messages import Request
from dpfedc.deployment.model_message import model_message
from dpfedc.deployment.site_folder import SiteFolder
from dpfedc.deployment.site_service import SiteService
from dpfedc.privacy.ledger import GaussianCap, Ledger
from dpfedc.tables.persons import DeclaredPersons
from support.deployment import FEATURES, SIZES, agreed, by_site

PLAN = f"""
[run]
name = "study"
coordinator = "university"
method = "dp-lloyd"
clusters = 3
features = {list(FEATURES)}

[privacy]
epsilon = 50
delta = 1e-4
noise = "simulated"

[rounds]
rounds = 2
deadline = 5
"""


def write_records(path, X):
    np.savetxt(path, X, delimiter=",", header=",".join(FEATURES), comments="", fmt="%.17g")
    return path


def site_folder(home, name, *, X=None, records=None, cap=None, unit="record"):
    """Return the folder of a site of tests/deployment.py."""
    X = by_site()[name] if X is None else X
    file = write_records(home / f"{name}.csv", X)
    data = {"path": str(file)}
    if unit == "person":  # each row is a person's only one
        lines = file.read_text().splitlines()
        lines = [f"{line},{i or 'pid'}" for i, line in enumerate(lines)]
        file.write_text("\n".join(lines) + "\n")
        data["person"] = "pid"
    return SiteFolder.create(
        home / name,
        name=name,
        server="127.0.0.1:8470",
        authority=authority_in(home),
        data=data,
        records=len(X) if records is None else records,
        cap=cap or GaussianCap(1000.0, 1e-3),
        holding=name,
        persons=DeclaredPersons.of(map(str, range(1, len(X) + 1))) if unit == "person" else None,
    )


def authority_in(home):
    """Return the ca.crt of a server that is not there."""
    place = home / "authority"
    if not place.exists():
        place.mkdir()
        write_server_certificates(place, ())
    return place / "ca.crt"


def key_of(folder):
    return fingerprint(read_certificate((folder.path / "site.pub").read_bytes()))


def agreement_with(folders, **changes):
    """Return an agreement in which these sites have their keys, and the others some key."""
    keys = {folder.name: key_of(folder) for folder in folders}
    sites = tuple(Site(name, n, keys.get(name, "00" * 16)) for name, n in SIZES.items())
    return agreed(sites=sites, **changes)


def words(reply):
    """Return what a site says around a run."""
    return json.loads(opened(reply))


def offered(service, agreement):
    """Offer a run; return whether it is accepted."""
    return words(service.reply(control.offer(agreement)))["accepted"]


def first_request(agreement, site="berlin"):
    """Return the request of a run's first round."""
    exchange = agreement.exchanges[0]
    stage = exchange.stage
    state = stage.start(agreement.declared, agreement.public, None)
    return Request(agreement.digest, site, stage.name, 1, exchange.sent(state)).to_bytes()


def some_model(agreement):
    """Return a model as the run might end with it."""
    k, m = agreement.settings["n_clusters"], len(agreement.features)
    state = {"centers": np.arange(float(k * m)).reshape(k, m)}
    return method_named(agreement.method).model(
        agreement.settings, agreement.plan, state,
        feature_names=agreement.features, about={"version": "1"},
    )  # fmt: skip


def result(agreement):
    """Return the message with the model of a run that is over."""
    return model_message(agreement, some_model(agreement))


def charges(folder):
    """Return how many releases a site has charged."""
    with Ledger.open(folder.ledger) as ledger:
        return sum(stage.n_charged for stage in ledger.totals().stages)


class DeskTransport:
    """All sites are online, and answer at once."""

    def __init__(self, folders, **how):
        self.told = []
        self.services = {
            folder.name: SiteService(folder, allow_simulated=True, tell=self.told.append, **how)
            for folder in folders
        }
        self.away = set()
        self.on_delivery = lambda _: None

    def online(self):
        return {name: name not in self.away for name in self.services}

    def status(self):
        return {"online": self.online(), "refused": {"callers": 0, "last": []}}

    def exchange(self, requests, deadline_s):
        here = {name for name, there in self.online().items() if there}
        return {n: opened(self.services[n].reply(r)) for n, r in requests.items() if n in here}

    def close(self):
        for service in self.services.values():
            service.close()
