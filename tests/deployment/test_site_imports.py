"""What runs at a site: an operator who wants to read it all must find little to read."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from dpfedc.deployment import control
from dpfedc.deployment.agreement import Site
from dpfedc.deployment.control import opened
from dpfedc.deployment.coordinator import Coordinator
from dpfedc.deployment.heads import KeptHeads
from dpfedc.deployment.model_message import model_message
from support.deployment import KEY, SIZES, agreed
from support.site_services import key_of, site_folder

# Both have grown by tables, their schema and their persons (docs/decisions/0011-tables.md), by what
# finds a ledger that lost rows and charges for them (0005-ledger.md), and by frozen records, limits
# and the wire (0013-wire.md), by secure aggregation (0014-secure-aggregation.md), by files that
# were split for their readers, by prototypes and the quality of clusters (0017-any-shape.md), and
# by the part of a mailbox that HTTPS and NATS have in common (0016-nats.md).
MAX_IMPORTED = 68, 10_500
"""Modules (packages not counted) and lines that a site's service imports, whatever it is to run."""
MAX_LOADED = 100, 16_760
"""The same in the process of a site that has served a whole run of dp-fedc with secure noise: a
method's own stages and planner are imported when a run asks for them, and so are models and their
summaries, once a run's model comes and is checked."""
NOT_AT_A_SITE = (
    "dpfedc.research",
    "dpfedc.engine",
    "dpfedc.estimators",
    "dpfedc.report",
    "dpfedc.privacy.open_gate",
    "dpfedc.deployment.checkpoint",
    "dpfedc.deployment.coordinator",
    "dpfedc.deployment.heads",
    "dpfedc.deployment.left_out",
    "dpfedc.deployment.round_calls",
    "dpfedc.deployment.runs",
    "dpfedc.deployment.secure_aggregation.server_round",
    "dpfedc.deployment.secure_rounds",
    "dpfedc.deployment.server_folder",
    "dpfedc.deployment.mailbox.door",
    "dpfedc.deployment.mailbox.https_operator",
    "dpfedc.deployment.mailbox.https_server",
    "dpfedc.deployment.mailbox.nats_config",
    "dpfedc.deployment.mailbox.nats_operator",
    "dpfedc.deployment.mailbox.nats_site",  # unless it calls over NATS
    "dpfedc.deployment.mailbox.operator_side",
)
SITE = """
import json, sys
from pathlib import Path

import pytest

from dpfedc.whole_files import locked
from dpfedc.deployment.mailbox.https_site import HttpsSite
from dpfedc.deployment.mailbox.site_side import SiteLine, attend
from dpfedc.deployment.site_folder import SiteFolder
from dpfedc.deployment.site_service import SiteService

service = SiteService(SiteFolder.open(Path(sys.argv[1])), accept=True)
for line in sys.stdin:
    print(service.reply(bytes.fromhex(line)).hex(), flush=True)
service.close()
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
        assert json.loads(pipe.asked(control.offer(agreement)))["accepted"] is True
        finished = Coordinator(agreement, pipe, home / "run", key=KEY, heads=KeptHeads(home)).run()
        assert len(finished.record.rounds) == agreement.plan.n_rounds
        message = model_message(agreement, finished.model)
        assert json.loads(pipe.asked(message)) == {"stored": True}
        process.stdin.close()
        return json.loads(process.stdout.read())


def imported_by_a_site():
    """Return the modules that a site's process has before it is asked for anything."""
    imports = "\n".join(line for line in SITE.splitlines() if line.startswith(("import", "from")))
    last = SITE[SITE.index("loaded =") :]
    done = subprocess.run(
        [sys.executable, "-c", f"{imports}\n{last}"], capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout)


@pytest.mark.parametrize("which", ["imported", "loaded"])
def test_a_site_loads_what_it_needs_and_no_more(tmp_path, which):
    loaded = imported_by_a_site() if which == "imported" else loaded_at_a_site(tmp_path)
    max_modules, max_lines = MAX_IMPORTED if which == "imported" else MAX_LOADED
    sizes = {n: len(Path(file).read_text().splitlines()) for n, file in loaded.items()}
    n_lines = sum(sizes.values())
    listing = "\n".join(f"{sizes[n]:5} {n}" for n in sorted(sizes, key=sizes.get, reverse=True))
    n_modules = sum(not file.endswith("__init__.py") for file in loaded.values())
    listing = f"{n_modules} modules, {n_lines} lines\n{listing}"
    assert ("dpfedc.clustering.dp_fedc_planner" in sizes) == (which == "loaded"), listing
    wrong = [n for n in sizes if any(n == no or n.startswith(f"{no}.") for no in NOT_AT_A_SITE)]
    assert not wrong, f"{wrong} must not be loaded at a site\n{listing}"
    assert n_modules <= max_modules, listing
    assert n_lines <= max_lines, listing
