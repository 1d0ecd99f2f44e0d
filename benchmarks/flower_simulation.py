"""The plain method under Flower's simulation engine. Run by rivals.py in its own environment.

python flower_simulation.py FOLDER ROUNDS   (standardised.npy, start.npy and plain.json lie there)

Every site is a virtual SuperNode, its work plain.site_answer, its records a slice of the mapped
file. The engine runs in this process (flwr.simulation.run_simulation): it is the one that
`flwr run` starts behind a SuperLink, and no SuperLink stays behind. Writes seconds.json: start-up,
and every round.
"""

import json
import sys
import time
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.simulation import run_simulation
from plain import Plain, server_step, site_answer

FOLDER, ROUNDS = Path(sys.argv[1]), int(sys.argv[2])
SETTINGS = json.loads((FOLDER / "plain.json").read_text())
OFFSETS, PLAIN = SETTINGS["offsets"], Plain(**SETTINGS["plain"])
BEGAN = time.perf_counter()
client, server = ClientApp(), ServerApp()


@client.train()
def train(message, context):
    site, t = int(context.node_config["partition-id"]), message.content["round"]["t"]
    mapped = np.load(FOLDER / "standardised.npy", mmap_mode="r")
    X = np.asarray(mapped[OFFSETS[site] : OFFSETS[site + 1]])
    W = message.content["state"]["W"].numpy()
    total = site_answer(X, W, t, PLAIN, np.random.default_rng([site, t]))
    content = {"answer": ArrayRecord({"sum": Array(total)}), "size": ConfigRecord({"n": len(X)})}
    return Message(content=RecordDict(content), reply_to=message)


@server.main()
def main(grid, _context):
    nodes, n_sites = [], len(OFFSETS) - 1
    while len(nodes) < n_sites:
        time.sleep(0.01)
        nodes = sorted(grid.get_node_ids())
    W = np.load(FOLDER / "start.npy")
    velocity, seconds, started = np.zeros_like(W), [], 0.0
    # Round 0 is thrown away: it waits for the engine's workers to start.
    for t in range(ROUNDS + 1):
        began = time.perf_counter()
        messages = []
        for i in PLAIN.cohort(max(t, 1), n_sites):
            state = ArrayRecord({"W": Array(W)})
            content = RecordDict({"state": state, "round": ConfigRecord({"t": max(t, 1)})})
            messages.append(Message(content=content, dst_node_id=nodes[i], message_type="train"))
        answers = list(grid.send_and_receive(messages, timeout=300))
        if len(answers) < len(messages) or not all(a.has_content() for a in answers):
            raise RuntimeError(f"{len(answers)} of {len(messages)} sites answered round {t}")
        if t == 0:
            started = time.perf_counter() - BEGAN
            continue
        total = sum(a.content["answer"]["sum"].numpy() for a in answers)
        n_records = sum(a.content["size"]["n"] for a in answers)
        W, velocity = server_step(W, velocity, total, n_records, PLAIN)
        seconds.append(time.perf_counter() - began)
    result = {"start_up": started, "rounds": seconds}
    (FOLDER / "seconds.json").write_text(json.dumps(result))


if __name__ == "__main__":
    run_simulation(
        server,
        client,
        num_supernodes=len(OFFSETS) - 1,
        backend_config={"client_resources": {"num_cpus": 1}},
    )
