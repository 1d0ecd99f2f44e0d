"""What a coordinator must not forget: where the run stands, and the requests it has sent.

Both are written before they are acted on. A coordinator that dies and starts again therefore sends
the very requests it sent before, to which sites have answers in store: nothing is spent twice.
"""

from __future__ import annotations

import json
import os
from base64 import b64decode, b64encode
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

from dpfedc.clustering.stage import State
from dpfedc.deployment.messages import checked_head, packed, unpacked
from dpfedc.engine.run_record import RoundRecord
from dpfedc.errors import InvalidInput
from dpfedc.privacy.ledger import Head
from dpfedc.settings import require_integer

CHECKPOINT, REQUESTS = "checkpoint.bin", "requests.json"
MAX_BYTES = 2**31


def write_whole(path: Path, content: bytes) -> None:
    """Write a file so that after a crash it is the old one or the new one, never a part."""
    draft = path.with_name(f".{path.name}.draft")
    with draft.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """A run after round t of a stage (0: the stage has started; stages count from 0).

    `heads` are the last that was seen of the sites' ledgers.
    """

    run: str
    stage: int
    t: int
    state: State
    heads: Mapping[str, Head] = field(default_factory=dict)
    rounds: tuple[RoundRecord, ...] = ()

    def save(self, folder: Path) -> None:
        """Write the checkpoint in place of the one before."""
        head = {
            "kind": "checkpoint",
            "run": self.run,
            "stage": self.stage,
            "t": self.t,
            "heads": {site: [head.n_rows, head.digest] for site, head in self.heads.items()},
            "rounds": [asdict(entry) for entry in self.rounds],
        }
        arrays = {name: np.asarray(values, np.float64) for name, values in self.state.items()}
        write_whole(folder / CHECKPOINT, packed(head, arrays))

    @classmethod
    def load(cls, folder: Path, run: str) -> Checkpoint | None:
        """Return the folder's checkpoint of this run, None if it has none."""
        path = folder / CHECKPOINT
        if not path.exists():
            return None
        head, state = unpacked(path.read_bytes(), most=MAX_BYTES, most_head=MAX_BYTES)
        try:
            if head["kind"] != "checkpoint" or head["run"] != run:
                raise InvalidInput(
                    f"{folder} must be a new folder or that of run {run[:12]}, "
                    f"got one of run {str(head['run'])[:12]}"
                )
            return cls(
                run,
                require_integer("stage", head["stage"], least=0),
                require_integer("t", head["t"], least=0),
                state,
                {site: checked_head(seen) for site, seen in head["heads"].items()},
                tuple(RoundRecord(**entry) for entry in head["rounds"]),
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise InvalidInput(f"{path} is not a checkpoint: {error}") from error


def save_requests(folder: Path, key: str, requests: Mapping[str, bytes]) -> None:
    """Write a round's requests, before the first is sent; `key` says which round's they are."""
    texts = {site: b64encode(data).decode() for site, data in requests.items()}
    write_whole(folder / REQUESTS, json.dumps({"key": key, "requests": texts}).encode())


def load_requests(folder: Path, key: str) -> dict[str, bytes] | None:
    """Return the round's requests as they were written, None if they were not."""
    path = folder / REQUESTS
    if not path.exists():
        return None
    try:
        content = json.loads(path.read_bytes())
        if content["key"] != key:
            return None
        return {site: b64decode(text) for site, text in content["requests"].items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidInput(f"{path} is damaged: {error}") from error
