"""Arrays in, arrays out: no randomness, no input or output.

Kernels use the paper's letters (docs/notation.md): X records as rows, W centres as rows (k x m),
H memberships as rows (n x k). They follow the array-API standard, so they run on NumPy, Torch or
CuPy arrays alike.
"""

from typing import Any, TypeAlias

Array: TypeAlias = Any
"""An array of any library that follows the array-API standard."""
