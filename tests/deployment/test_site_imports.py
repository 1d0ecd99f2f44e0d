"""What runs at a site: an operator who wants to read it all must find little to read."""

import json
import subprocess
import sys
from pathlib import Path

from dpfedc.deployment import control
from dpfedc.deployment.agreement import Site
from dpfedc.deployment.control import opened
from dpfedc.deployment.coordinator import Coordinator
from support.deployment import KEY, SIZES, agreed
from support.site_services import key_of, site_folder

MAX_MODULES, MAX_LINES = 61, 8_448
"""Of the package, in the process of a site that has served a whole run with secure noise."""
NOT_AT_A_SITE = (
    "dpfedc.research",
    "dpfedc.engine",
    "dpfedc.estimators",
    "dpfedc.report",
    "dpfedc.deployment.checkpoint",
    "dpfedc.deployment.coordinator",
    "dpfedc.deployment.remote",
    "dpfedc.deployment.runs",
    "dpfedc.deployment.server_folder",
    "dpfedc.deployment.flower.fleet_server",
    "dpfedc.deployment.flower.store",
    "dpfedc.deployment.flower.transport",
)
SITE = """
import json, sys
from pathlib import Path

from dpfedc.deployment.locks import locked
from dpfedc.deployment.flower.fleet_client import FleetClient, attend
from dpfedc.deployment.keys import read_site_key
from dpfedc.deployment.site_folder import SiteFolder
from dpfedc.deployment.site_service import SiteService

desk = SiteService(SiteFolder.open(Path(sys.argv[1])), accept=True)
for line in sys.stdin:
    print(desk.reply(bytes.fromhex(line)).hex(), flush=True)
desk.close()
loaded = {name: module.__file__ for name, module in sys.modules.items()
          if name.split(".")[0] == "dpfedc"}
print(json.dumps(loaded))
"""
"""What `dpfedc site start` runs, with a pipe in place of the network."""


class Pipe:
    """The one site of a run, in a process of its own."""

    def __init__(self, process):
        self.process = process

    def asked(self, request):
        self.process.stdin.write(request.hex() + "\n")
        self.process.stdin.flush()
        return opened(bytes.fromhex(self.process.stdout.readline()))

    def exchange(self, requests, deadline_s):
        return {site: self.asked(request) for site, request in requests.items()}


def loaded_at_a_site(home):
    """Return the modules of the package in the process of a site after a run, with their files."""
    folder = site_folder(home, "berlin")
    agreement = agreed(
        "dp-fedc", sites=(Site("berlin", SIZES["berlin"], key_of(folder)),), noise="secure",
        settings={"n_rounds": 2, "refine_rounds": 1},
    )  # fmt: skip
    command = [sys.executable, "-c", SITE, str(folder.path)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        pipe = Pipe(process)
        assert json.loads(pipe.asked(control.offer(agreement))) == {"accepted": True}
        finished = Coordinator(agreement, pipe, home / "run", key=KEY).run()
        assert len(finished.record.rounds) == agreement.plan.n_rounds
        model = (home / "run" / "model.npz").read_bytes()
        assert json.loads(pipe.asked(control.result(agreement.digest, model))) == {"stored": True}
        process.stdin.close()
        return json.loads(process.stdout.read())


def test_a_site_loads_what_it_needs_and_no_more(tmp_path):
    loaded = loaded_at_a_site(tmp_path)
    sizes = {n: len(Path(file).read_text().splitlines()) for n, file in loaded.items()}
    n_lines = sum(sizes.values())
    listing = "\n".join(f"{sizes[n]:5} {n}" for n in sorted(sizes, key=sizes.get, reverse=True))
    listing = f"{len(sizes)} modules, {n_lines} lines\n{listing}"
    assert {"dpfedc.privacy.exact", "dpfedc.tables.sources"} <= set(sizes), listing
    wrong = [n for n in sizes if any(n == no or n.startswith(f"{no}.") for no in NOT_AT_A_SITE)]
    assert not wrong, f"{wrong} must not be loaded at a site\n{listing}"
    assert len(sizes) <= MAX_MODULES, listing
    assert n_lines <= MAX_LINES, listing
