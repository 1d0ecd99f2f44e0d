"""Virtual environments for rivals that cannot share ours; made once, under results/envs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

ENVS = Path(__file__).parents[1] / "results" / "envs"
REQUIREMENTS = {
    "diffprivlib": ("diffprivlib==0.6.5", "scikit-learn<1.6"),
    "flower": ("flwr[simulation]>=1.41,<1.42",),
}


class Unavailable(Exception):
    """A rival that could not be run here, and why."""


def run_in(name: str, script: str, *arguments: str, timeout_s: float, **variables: str) -> None:
    """Run a script of this folder in the named environment, with one thread of each kind."""
    threads = {f"{kind}_NUM_THREADS": "1" for kind in ("OMP", "OPENBLAS", "MKL")}
    command = [str(_python(name)), str(Path(__file__).with_name(script)), *arguments]
    _checked(command, script, timeout_s, {**os.environ, **threads, **variables})


def _python(name: str) -> Path:
    """Return the environment's interpreter, made and filled if it is not there yet."""
    folder, wanted = ENVS / name, "\n".join(REQUIREMENTS[name])
    python, filled = folder / "bin" / "python", folder / "requirements.txt"
    if filled.exists() and filled.read_text() == wanted:
        return python
    print(f"making an environment for {name} ...", flush=True)
    env = dict(os.environ)
    _checked([sys.executable, "-m", "venv", "--clear", str(folder)], "venv", 120, env)
    install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    _checked([*install, *REQUIREMENTS[name]], "pip install", 900, env)
    filled.write_text(wanted)
    return python


def _checked(command: list[str], what: str, timeout_s: float, env: dict[str, str]) -> None:
    pipe = subprocess.PIPE
    try:
        # In a session of its own, so that a timeout ends its own children with it.
        child = subprocess.Popen(
            command, stdout=pipe, stderr=pipe, text=True, env=env, start_new_session=True
        )
    except OSError as error:
        raise Unavailable(f"{what}: {error}") from error
    try:
        _, errors = child.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired as error:
        os.killpg(child.pid, signal.SIGKILL)
        child.communicate()
        raise Unavailable(f"{what} took more than {timeout_s:.0f} s") from error
    if child.returncode:
        lines = errors.strip().splitlines() or ["no message"]
        raise Unavailable(f"{what} failed: {lines[-1]}")
