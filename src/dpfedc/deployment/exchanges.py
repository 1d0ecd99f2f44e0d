"""What goes back and forth in each stage: the arrays a site is sent, and the one it returns.

All of it is what the stages say of themselves; nothing here knows one stage from another.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dpfedc.clustering.stage import Entry, Form, Shape, Stage, State, known_to, sent
from dpfedc.errors import InvalidInput, Refused
from dpfedc.privacy.exact_sums import Upload, unit_of


@dataclass(frozen=True)
class Exchange:
    """A stage, the arrays that its rounds broadcast, and the form of an upload."""

    stage: Stage
    broadcast: Mapping[str, Entry]
    form: Form

    def sent(self, state: State) -> dict[str, npt.NDArray[np.float64]]:
        """Return what a site is sent of the coordinator's state."""
        return {name: np.asarray(state[name], dtype=np.float64) for name in self.broadcast}

    def accepted(self, arrays: State, planned: State) -> State:
        """Return what was sent, refused unless names, shapes and ranges are as the stages say.

        What the plan fixes (`planned`) must be equal to it. All else may be any value that the
        stages before could have made. The refusal depends on the broadcast alone.
        """
        expected = {name: entry.shape for name, entry in self.broadcast.items()}
        if {name: values.shape for name, values in arrays.items()} != expected:
            got = ", ".join(f"{name} {values.shape}" for name, values in arrays.items())
            words = ", ".join(f"{name} {shape}" for name, shape in expected.items())
            raise Refused(f"stage {self.stage.name!r} must be sent {words}, got {got}")
        for name, values in arrays.items():
            if values.dtype != np.float64 or not np.isfinite(values).all():
                raise Refused(f"the broadcast {name!r} must be finite floats, got other values")
            if name in planned and not np.array_equal(values, planned[name]):
                raise Refused(f"the broadcast {name!r} must be what was agreed, got other values")
        with np.errstate(all="ignore"):
            for name, entry in self.broadcast.items():
                if name not in planned and not entry.within(arrays[name], arrays):
                    what = f"the broadcast {name!r} must be in the range of its stage"
                    raise Refused(f"{what}, got other values")
        return arrays

    def checked(self, upload: Upload, sensitivity: float, *, exact: bool) -> Upload:
        """Return what a site uploaded, refused unless it has the form of its round."""
        shape, symmetric = self.form.shape, exact and self.form.symmetric
        unit = unit_of(sensitivity) if exact else 1.0
        if symmetric:
            shape = (shape[0] * (shape[0] + 1) // 2,)
        expected = (shape, "uint64" if exact else "float64", unit, symmetric)
        if upload.kind != expected:
            raise InvalidInput(f"an upload must be of kind {expected}, got {upload.kind}")
        if not np.isfinite(upload.values).all():
            raise InvalidInput("an upload must be finite, got other values")
        return upload

    @property
    def shapes(self) -> list[Shape]:
        """Return the shapes of all that travels."""
        return [*(entry.shape for entry in self.broadcast.values()), self.form.shape]


def exchanges(
    stages: Sequence[Stage], declared: Mapping[str, Entry], n_features: int
) -> tuple[Exchange, ...]:
    """Return what each stage exchanges; refuses one that separate sites cannot run."""
    found = []
    for stage, known in zip(stages, known_to(stages, declared, n_features), strict=True):
        if not stage.deployed:
            raise InvalidInput(
                f"stage {stage.name!r} must release one exact sum per round and keep nothing "
                "between rounds to be deployed, got one that does not (extra_steps must be 0)"
            )
        found.append(Exchange(stage, sent(stage, known), stage.upload(known, n_features)))
    return tuple(found)
