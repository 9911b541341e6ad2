"""Jobs shared among processes."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from noted_jobs import Killed, Noted

from torchtagi.experiments.jobs import for_a_worker, in_processes


def never():
    return False


def test_jobs_are_shared_among_processes_of_one_thread():
    rows = list(in_processes([Noted(str(number)) for number in range(30)], 2, never))
    assert sorted(int(row["name"]) for row in rows) == list(range(30))
    assert {row["threads"] for row in rows} == {1}
    assert os.getpid() not in {row["process"] for row in rows}
    assert 1 <= len({row["process"] for row in rows}) <= 2
    for process in {row["process"] for row in rows}:
        with pytest.raises(ProcessLookupError):
            os.kill(process, 0)
    assert list(in_processes([], 2, never)) == []


def test_a_job_that_fails_is_named():
    jobs = [Noted("1"), Noted("2", "as it must"), Noted("3")]
    with pytest.raises(RuntimeError, match="2: ZeroDivisionError: as it must") as caught:
        list(in_processes(jobs, 1, never))
    assert "raise ZeroDivisionError" in str(caught.value.__cause__.__cause__), "where it happened"


def test_a_job_whose_process_was_killed_is_named():
    with pytest.raises(RuntimeError, match="2: its process has ended; was there too little memory"):
        list(in_processes([Noted("1"), Killed("2"), Noted("3")], 1, never))


def test_no_process_outlives_a_killed_command(tmp_path):
    code = (
        "if __name__ == '__main__':\n"
        "    from noted_jobs import Asleep\n"
        "    from torchtagi.experiments.jobs import in_processes\n"
        f"    list(in_processes([Asleep({str(tmp_path / 'pid')!r})], 1, lambda: False))\n"
    )
    script = tmp_path / "command.py"
    script.write_text(code)
    command = subprocess.Popen([sys.executable, script], env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)})
    wait_until((tmp_path / "pid").is_file)
    command.kill()
    command.wait()
    worker = int((tmp_path / "pid").read_text())

    def gone():
        try:
            os.kill(worker, 0)
        except ProcessLookupError:
            return True
        return "Z" in Path(f"/proc/{worker}/stat").read_text().split()[2]

    wait_until(gone)


def wait_until(happened, seconds=120):
    end = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.05)


def test_what_processes_inherit_is_put_back(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.delenv("MKL_NUM_THREADS", raising=False)
    handler = signal.getsignal(signal.SIGINT)
    with for_a_worker():
        assert os.environ["OMP_NUM_THREADS"] == os.environ["MKL_NUM_THREADS"] == "1"
        assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    assert os.environ["OMP_NUM_THREADS"] == "3"
    assert "MKL_NUM_THREADS" not in os.environ
    assert signal.getsignal(signal.SIGINT) == handler
