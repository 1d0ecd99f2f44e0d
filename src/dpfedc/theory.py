"""The paper's theorems as functions, under their short name; see `dpfedc.research.theory`."""

from dpfedc.research import theory
from dpfedc.research.theory import *  # noqa: F403

__all__ = theory.__all__
