"""A ledger whose processes are killed, race each other, or find the disk full.

Everything happens to real processes. A process is killed before each of its SQL statements, and in
the middle of its writes: the system kills it at the first byte beyond a file size limit.
"""

import multiprocessing
import os
import re
import shutil
import signal

import pytest

from dpfedc.errors import Refused
from dpfedc.privacy.ledger import GaussianCap, Ledger
from dpfedc.privacy.privacy_plan import PlannedRelease, PrivacyPlan
from support.ledgers import charge

resource = pytest.importorskip("resource")

MANY = PrivacyPlan((PlannedRelease("rounds", 99, 4, 99, 2.0),), 1e-6, "local", 4)
CAP = GaussianCap(8.0, 1e-5)
ANSWER = bytes(range(256)) * 60  # several pages
SHARED_MEMORY = 1 << 15
"""SQLite's own file of this size must be allowed, so the limits are above it."""


def started(target, *arguments):
    """Start a process that has nothing of this one's threads and open files."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["dpfedc.privacy.ledger.site_ledger"])
    process = context.Process(target=target, args=arguments)
    process.start()
    return process


def exit_code(target, *arguments):
    process = started(target, *arguments)
    process.join(120)
    return process.exitcode


def release(ledger, outbox):
    """Do what a site does for a round, noting what has left it."""
    charge(ledger, plan=MANY, t=5)
    (outbox / "computed").touch()
    ledger.settle("r", "rounds", 5, ANSWER)
    (outbox / "sent").write_bytes(ANSWER)


def killed_at_statement(path, outbox, n):
    """Release, and die before the n-th SQL statement."""
    ledger, count = Ledger.open(path), 0

    def die(_):
        nonlocal count
        count += 1
        if count == n:
            os.kill(os.getpid(), signal.SIGKILL)

    ledger._chain._db.set_trace_callback(die)
    release(ledger, outbox)
    ledger._chain._db.set_trace_callback(None)
    (outbox / "n_statements").write_text(str(count))
    os._exit(0)


def killed_at_size(path, outbox, size):
    """Release, and die when a file grows beyond a size."""
    ledger = Ledger.open(path)
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
    release(ledger, outbox)
    os._exit(0)


def killed_at_close(path, size):
    """Open and close, which moves what is in the log to the file proper; die at a size."""
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
    Ledger.open(path).close()


def state(path, outbox):
    """Return what a ledger says of the round, having checked that it says enough."""
    with Ledger.open(path) as ledger:
        ledger.verify()
        try:
            answer = ledger.answer("r", "rounds", 5, "q")
            found = "nothing" if answer is None else "answered"
        except Refused:
            answer, found = None, "charged"
        if (outbox / "sent").exists():
            assert answer == ANSWER
        if (outbox / "computed").exists():
            assert found != "nothing"
        if found == "nothing":
            release(ledger, outbox)
        else:
            with pytest.raises(Refused, match="must come after round 5"):
                charge(ledger, plan=MANY, t=5)
        charge(ledger, plan=MANY, t=6)
        ledger.verify()
    return found


def prepared(folder):
    """Return the path of a ledger in use, and an empty outbox."""
    outbox = folder / "outbox"
    outbox.mkdir(parents=True)
    with Ledger.create(folder / "l", holding="h", cap=CAP) as ledger:
        charge(ledger, plan=MANY, t=1)
        ledger.settle("r", "rounds", 1, b"first")
    return folder / "l", outbox


def test_killed_before_every_statement(tmp_path):
    path, outbox = prepared(tmp_path / "whole")
    assert exit_code(killed_at_statement, path, outbox, 0) == 0
    n_statements = int((outbox / "n_statements").read_text())
    assert n_statements >= 9  # begin, read, insert, commit; and the same with two inserts
    found = []
    for n in range(1, n_statements + 1):
        path, outbox = prepared(tmp_path / str(n))
        assert exit_code(killed_at_statement, path, outbox, n) == -signal.SIGKILL
        found.append(state(path, outbox))
    # In this order, and never is one of the three left out.
    assert found == sorted(found, key=["nothing", "charged", "answered"].index)
    assert found.count("nothing") >= 4
    assert found.count("charged") >= 5


@pytest.fixture
def in_use(tmp_path):
    """Return a function that copies a ledger with a long log; the log's length; its growth.

    The log (SQLite's -wal file) is as a killed process leaves it.
    """
    path, outbox = prepared(tmp_path / "used")
    with Ledger.open(path) as ledger:
        charge(ledger, plan=MANY, t=2)
        ledger.settle("r", "rounds", 2, bytes(SHARED_MEMORY + 5000))
        copies = tmp_path / "left"
        copies.mkdir()
        log = path.with_name("l-wal")
        shutil.copy(path, copies / "l")
        shutil.copy(log, copies / "l-wal")
        before = log.stat().st_size
        release(ledger, outbox)
        growth = log.stat().st_size - before

    def copy(name):
        folder = tmp_path / name
        shutil.copytree(copies, folder)
        (folder / "outbox").mkdir()
        return folder / "l", folder / "outbox"

    assert before > SHARED_MEMORY
    return copy, before, growth


def test_killed_in_the_middle_of_every_write(in_use):
    copy, before, growth = in_use
    found = []
    for size in range(before + 1, before + growth, 797):
        path, outbox = copy(str(size))
        assert exit_code(killed_at_size, path, outbox, size) == -signal.SIGXFSZ
        found.append(state(path, outbox))
    assert found == sorted(found, key=["nothing", "charged"].index)
    assert min(found.count("nothing"), found.count("charged")) > 5


def test_killed_while_the_log_is_moved_to_the_file(in_use):
    copy, before, _ = in_use
    codes = []
    for size in range(before + 1, SHARED_MEMORY, -1499):
        path, outbox = copy(str(size))
        codes.append(exit_code(killed_at_close, path, size))
        with Ledger.open(path) as ledger:
            assert ledger.verify().n_rows == 5
            assert ledger.answer("r", "rounds", 1, "q") == b"first"
        assert state(path, outbox) == "nothing"
    assert codes.count(-signal.SIGXFSZ) > 3


def finds_disk_full(path, outbox, size):
    """Release with a limit on files, then once more without."""
    ledger = Ledger.open(path)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
    try:
        release(ledger, outbox)
    except Refused as error:
        (outbox / "refused").write_text(str(error))
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    ledger.verify()
    found = state(path, outbox)
    (outbox / "found").write_text(found)
    assert ledger.head().n_rows >= 6
    ledger.close()


def test_disk_full_is_a_refusal_that_leaves_nothing_behind(in_use):
    copy, before, growth = in_use
    found = []
    for size in range(before + 1, before + growth, 1999):
        path, outbox = copy(str(size))
        assert exit_code(finds_disk_full, path, outbox, size) == 0
        assert "cannot be used" in (outbox / "refused").read_text()
        found.append((outbox / "found").read_text())
    assert found == sorted(found, key=["nothing", "charged"].index)
    assert set(found) == {"nothing", "charged"}


def test_no_ledger_is_left_where_it_cannot_be_written(tmp_path):
    assert exit_code(_creates_on_full_disk, tmp_path / "l") == 0
    assert not list(tmp_path.iterdir())


def _creates_on_full_disk(path):
    resource.setrlimit(resource.RLIMIT_FSIZE, (6000, resource.RLIM_INFINITY))
    with pytest.raises(Refused, match="cannot be used"):
        Ledger.create(path, holding="h", cap=CAP)


def _races(paths, barrier, results, me):
    """Try to charge once to each ledger, at the same moment as the others."""
    for path, run in paths:
        with Ledger.open(path) as ledger:
            barrier.wait(120)
            try:
                charge(ledger, run=run or me, plan=MANY, t=50, request=me)
                results.put((str(path), me))
            except Refused as refusal:
                # Anything else, such as a lock that could not be had, is an error of this process.
                if not re.search("over the lifetime cap|must come after", str(refusal)):
                    raise


@pytest.mark.parametrize("run", [None, "shared"])
def test_the_last_charge_is_admitted_once(tmp_path, run):
    """Rivals want what the cap has left for one of them, or the same round of the same run."""
    paths = []
    for i in range(12):
        path = tmp_path / str(i)
        with Ledger.create(path, holding="h", cap=CAP) as ledger:
            room = ledger.totals().limits["inverse_squares"]
            for t in range(1, int(room * 4) if run is None else 2):
                charge(ledger, run="before", plan=MANY, t=t)
        paths.append((path, run))
    context = multiprocessing.get_context("forkserver")
    rivals = ("a", "b", "c")
    barrier, results = context.Barrier(len(rivals)), context.Queue()
    processes = [started(_races, paths, barrier, results, me) for me in rivals]
    for process in processes:
        process.join(120)
        assert process.exitcode == 0
    won = dict(results.get(timeout=120) for _ in paths)
    assert set(won) == {str(path) for path, _ in paths}
    assert results.empty()
    for path, winner in won.items():
        with Ledger.open(path) as ledger:
            ledger.verify()
            with pytest.raises(Refused, match="is spent"):
                ledger.answer(run or winner, "rounds", 50, winner)
    results.close()
    results.join_thread()
