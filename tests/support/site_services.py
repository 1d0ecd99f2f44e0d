"""Sites with folders of their own, asked in memory instead of over a network."""

import numpy as np

from dpfedc.deployment.agreement import Site
from dpfedc.deployment.control import opened
from dpfedc.deployment.keys import fingerprint
from dpfedc.deployment.site_folder import SiteFolder
from dpfedc.deployment.site_service import SiteService
from dpfedc.privacy.ledger import GaussianCap
from dpfedc.tables.persons import DeclaredPersons
from support.deployment import FEATURES, SIZES, agreed, by_site


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
        authority=None,
        data=data,
        records=len(X) if records is None else records,
        cap=cap or GaussianCap(1000.0, 1e-3),
        holding=name,
        persons=DeclaredPersons.of(map(str, range(1, len(X) + 1))) if unit == "person" else None,
    )


def key_of(folder):
    return fingerprint((folder.path / "site.pub").read_text())


def agreement_with(folders, **changes):
    """Return an agreement in which these sites have their keys, and the others some key."""
    keys = {folder.name: key_of(folder) for folder in folders}
    sites = tuple(Site(name, n, keys.get(name, "00" * 16)) for name, n in SIZES.items())
    return agreed(sites=sites, **changes)


class DeskTransport:
    """All sites are online, and answer at once."""

    def __init__(self, folders, **how):
        self.told = []
        self.services = {
            folder.name: SiteService(folder, allow_simulated=True, tell=self.told.append, **how)
            for folder in folders
        }
        self.away = set()
        self.on_answer = lambda _: None

    def online(self):
        return {name: name not in self.away for name in self.services}

    def exchange(self, requests, deadline_s):
        here = {name for name, there in self.online().items() if there}
        return {n: opened(self.services[n].reply(r)) for n, r in requests.items() if n in here}

    def close(self):
        for service in self.services.values():
            service.close()
