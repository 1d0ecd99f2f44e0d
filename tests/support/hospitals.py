"""The invented hospitals of the examples."""

from __future__ import annotations

import importlib.util
from pathlib import Path

_FILE = Path(__file__).parents[2] / "examples" / "three_hospitals.py"
_SPEC = importlib.util.spec_from_file_location("three_hospitals", _FILE)
_MODULE = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(_MODULE)
write_hospitals = _MODULE.write_hospitals
