"""Simulated noise drawn where the records are: on a GPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy.typing as npt

from dpfedc.kernels import Array
from dpfedc.privacy.noise import SimulatedNoise


@dataclass(frozen=True)
class TorchNoise(SimulatedNoise):
    """Simulated noise that Torch draws on its device; other numbers than NumPy's, the same law."""

    device: Any = "cpu"

    def gaussian(
        self, shape: tuple[int, ...], std: float, *, stage: str, t: int, sites: npt.NDArray[Any]
    ) -> Array:
        """Return noise on the device, keyed by stage, round and site."""
        import torch

        key = int(self._generator(stage, t, sites).integers(2**63))
        generator = torch.Generator(self.device).manual_seed(key)
        on = {"dtype": torch.float64, "device": self.device}
        return std * torch.randn(shape, generator=generator, **on)
