"""What a coordinator must not forget: where the run stands, and the requests it has sent.

Both are written before they are acted on. A coordinator that dies and starts again therefore sends
the very requests it sent before, to which sites have answers in store: nothing is spent twice.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from dpfedc.deployment.messages import packed, unpacked
from dpfedc.engine.rounds import Position
from dpfedc.engine.run_record import RoundRecord
from dpfedc.errors import InvalidInput
from dpfedc.settings import require_integer
from dpfedc.whole_files import write_whole

CHECKPOINT, REQUESTS = "checkpoint.bin", "requests.json"
MAX_BYTES, MAX_ARRAYS = 2**31, 1000
"""Of the coordinator's own file: a state holds more than any one message does."""


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """Where a run stands."""

    run: str
    position: Position

    def save(self, folder: Path) -> None:
        """Write the checkpoint in place of the one before."""
        at = self.position
        head = {
            "kind": "checkpoint",
            "run": self.run,
            "stage": at.stage,
            "t": at.t,
            "rounds": [asdict(entry) for entry in at.rounds],
        }
        arrays = {name: np.asarray(values, np.float64) for name, values in at.state.items()}
        write_whole(folder / CHECKPOINT, packed(head, arrays))

    @classmethod
    def load(cls, folder: Path, run: str) -> Checkpoint | None:
        """Return the folder's checkpoint of this run, None if it has none."""
        path = folder / CHECKPOINT
        if not path.exists():
            return None
        head, state = unpacked(
            path.read_bytes(), most=MAX_BYTES, most_head=MAX_BYTES, most_arrays=MAX_ARRAYS
        )
        try:
            if head["kind"] != "checkpoint" or head["run"] != run:
                raise InvalidInput(
                    f"{folder} must be a new folder or that of run {run[:12]}, "
                    f"got one of run {str(head['run'])[:12]}"
                )
            position = Position(
                require_integer("stage", head["stage"], least=0),
                require_integer("t", head["t"], least=0),
                state,
                tuple(RoundRecord(**entry) for entry in head["rounds"]),
            )
            return cls(run, position)
        except (KeyError, TypeError, AttributeError) as error:
            raise InvalidInput(f"{path} is not a checkpoint: {error}") from error


def save_requests(
    folder: Path, key: str, requests: Mapping[str, bytes], *, file: str = REQUESTS
) -> None:
    """Write a round's requests, before the first is sent; `key` says which round's they are."""
    texts = {site: b64encode(data).decode() for site, data in requests.items()}
    write_whole(folder / file, json.dumps({"key": key, "requests": texts}).encode())


def load_requests(folder: Path, key: str, *, file: str = REQUESTS) -> dict[str, bytes] | None:
    """Return the round's requests as they were written, None if they were not."""
    path = folder / file
    if not path.exists():
        return None
    try:
        content = json.loads(path.read_bytes())
        if content["key"] != key:
            return None
        return {site: b64decode(text) for site, text in content["requests"].items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidInput(f"{path} is damaged: {error}") from error
