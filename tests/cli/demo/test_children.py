from __future__ import annotations

import signal
import subprocess
import sys
import time

import pytest

from sinkscope.cli.demo.children import ChildFailed, children, command


@pytest.fixture
def script(monkeypatch):
    """Children that run this Python text instead of training."""

    def use(text):
        monkeypatch.setattr("sinkscope.cli.demo.children.command", lambda plan, attention: [sys.executable, "-c", text])

    return use


def ended(started, seconds=20.0):
    until = time.monotonic() + seconds
    while any(child.running for child in started) and time.monotonic() < until:
        time.sleep(0.02)
    return not any(child.running for child in started)


def test_each_child_is_the_train_command_of_this_interpreter(plan):
    words = command(plan, "sigmoid")
    assert words[:5] == [sys.executable, "-P", "-m", "sinkscope", "train"]
    assert "attention=sigmoid" in words
    assert words[-3:] == ["--out", str(plan.runs), "--resume"]


@pytest.mark.release
def test_a_file_of_the_user_takes_no_module_s_place(plan, tmp_path):
    (tmp_path / "grp.py").write_text("raise SystemExit('imported')")  # torch imports the standard library's
    words = command(plan, "sigmoid")
    assert subprocess.run([*words[:6], "--plan"], cwd=tmp_path, capture_output=True).returncode == 0


def test_children_share_the_cores(plan, script, monkeypatch):
    monkeypatch.setattr("sinkscope.cli.demo.plan.processors", lambda: 6)
    script("import os, sys; sys.exit('threads ' + os.environ['OMP_NUM_THREADS'])")
    with children(plan) as started:
        assert ended(started)
        with pytest.raises(ChildFailed, match="threads 3"):
            started[0].check()


def test_a_failing_child_is_reported_with_its_last_lines(plan, script):
    script("import sys; print('\\n'.join(map(str, range(100))), file=sys.stderr); sys.exit(3)")
    with children(plan) as started:
        assert ended(started)
        with pytest.raises(ChildFailed) as failure:
            started[1].check()
    message = str(failure.value)
    assert "training sigmoid ended with exit code 3" in message
    assert message.splitlines()[1:] == [f"  {number}" for number in range(92, 100)]


def test_a_child_that_runs_or_ended_well_passes_the_check(plan, script):
    script("import time; time.sleep(0.2)")
    with children(plan) as started:
        started[0].check()
        assert ended(started)
        started[0].check()


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_no_child_outlives_the_block(plan, script, error):
    script("import time; time.sleep(600)")
    with pytest.raises(error), children(plan) as started:
        raise error
    assert ended(started, seconds=0)


@pytest.mark.slow
def test_a_child_that_does_not_listen_is_killed(plan, script, monkeypatch, tmp_path):
    monkeypatch.setattr("sinkscope.cli.demo.children.PATIENCE", 0.2)
    deaf = f"import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); open({str(tmp_path)!r} + '/deaf', 'w')"
    script(f"{deaf}; time.sleep(600)")
    with children(plan) as started:
        while not (tmp_path / "deaf").exists():
            time.sleep(0.02)
    assert ended(started, seconds=0)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_request_to_end_this_process_ends_the_children_too(plan, script, number):
    script("import time; time.sleep(600)")
    before = signal.getsignal(number)
    with pytest.raises(KeyboardInterrupt), children(plan) as started:
        signal.raise_signal(number)
    assert ended(started, seconds=0)
    assert signal.getsignal(number) == before
