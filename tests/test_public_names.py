"""What `from dpfedc import ...` gives, and that asking for it costs nothing before it is used."""

import subprocess
import sys
from pathlib import Path

import pytest

import dpfedc

ROOT = Path(__file__).parents[1]


def test_every_public_name_is_there():
    assert dir(dpfedc) == sorted(dpfedc.__all__)
    assert {*dpfedc._HOMES, "theory", "__version__"} == set(dpfedc.__all__)
    for name in dpfedc.__all__:
        assert getattr(dpfedc, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'KMeans'"):
        _ = dpfedc.KMeans


def test_the_readme_names_no_estimator_that_cannot_be_imported():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    for name in dpfedc._HOMES:
        assert f"`{name}`" in text or f" {name}" in text, name


def test_theory_is_a_module():
    import dpfedc.theory

    assert dpfedc.theory.noise_variance
    assert set(dpfedc.theory.__all__) <= set(dir(dpfedc.theory))


def test_importing_the_package_imports_nothing_heavy():
    code = (
        "import sys, dpfedc; dir(dpfedc); "
        "print([m for m in ('numpy', 'scipy', 'sklearn') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_no_two_modules_have_the_same_name():
    files = (ROOT / "src").rglob("*.py")
    names = [file.stem for file in files if file.stem not in ("__init__", "__main__")]
    assert len(names) == len(set(names)), sorted(n for n in set(names) if names.count(n) > 1)
