import json
import threading
from contextlib import closing

import numpy as np
import pytest
from ring_writer import RingWriter
from spanlite.cli import main
from spanlite_collectors.agent.layout import STATE, Detach, Level
from spanlite_collectors.agent.ring import Ring


@pytest.fixture
def writer(tmp_path):
    return RingWriter(tmp_path, pid=4711)


def capture(writer, *words):
    return main(["capture", "--agent-dir", str(writer.path.parent), *words])


def test_steps_are_asked_for_by_pid(writer, capsys):
    assert capture(writer, "--pid", "4711", "--steps", "50") == 0
    assert (writer.control_word(1), writer.control_word(2)) == (1, 50)
    assert capture(writer, "--all", "--steps", "3") == 0
    assert (writer.control_word(1), writer.control_word(2)) == (2, 3)
    assert "steps: 3" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("threads", "detach", "words", "warned"),
    [
        (2, Detach.WHEN_PROVEN, ["--steps", "5"], True),
        (2, Detach.NEVER, ["--level", "continuous"], True),
        (1, Detach.WHEN_PROVEN, ["--steps", "5"], False),
        (2, Detach.WHEN_HELD, ["--steps", "5"], False),
        (2, Detach.WHEN_PROVEN, ["--level", "ranges"], False),
        (2, Detach.WHEN_PROVEN, ["--level", "windows"], False),
    ],
)
def test_it_warns_where_cupti_stays_beside_several_threads(
    writer, capsys, threads, detach, words, warned
):
    with closing(Ring(writer.path)) as ring:
        ring.set_control("detach", detach)
    writer.state("launch_threads", threads)
    assert capture(writer, "--all", *words) == 0
    assert ("SPANLITE_AGENT_DETACH=held" in capsys.readouterr().err) == warned


@pytest.mark.parametrize("level", ["off", "ranges", "windows", "continuous"])
def test_the_level_changes_at_run_time(writer, level):
    assert capture(writer, "--all", "--level", level) == 0
    assert writer.control_word(0) == Level[level.upper()]


def test_limit_and_budget_change_at_run_time(writer):
    assert capture(writer, "--all", "--step-slo-ms", "12.5", "--budget-pct", "0.5") == 0
    assert writer.control_word(3) == 5000
    assert writer.control_word(4) == 12_500_000
    assert capture(writer, "--all", "--budget-pct", "-1") == 2


def test_list_shows_processes_and_drops(writer, capsys):
    writer.drop(0, 5)
    assert capture(writer, "--list") == 0
    assert "4711  /usr/bin/server" in capsys.readouterr().out
    assert capture(writer, "--list", "--json") == 0
    status = json.loads(capsys.readouterr().out)
    assert (status["pid"], status["level"], status["dropped"]) == (4711, "off", {"ring_full": 5})


def test_the_dead_are_not_listed(writer, capsys):
    writer.die()
    assert capture(writer, "--list") == 0
    assert capsys.readouterr().out == "no process with an agent\n"


def test_waiting_ends_with_1_where_no_step_comes(writer, capsys):
    assert capture(writer, "--all", "--steps", "1", "--wait", "0.1") == 1
    assert "not captured" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--pid", "1", "--steps", "5"], "no agent of process 1"),
        (["--steps", "5"], "--pid"),
        (["--all"], "--steps"),
        (["--all", "--steps", "0"], "give 1 to"),
        (["--all", "--steps", "99999999999"], "give 1 to 4294967295"),
        (["--all", "--budget-pct", "900000"], "from 0 to 100"),
        (["--all", "--step-slo-ms", "nan"], "from 0 to"),
        (["--all", "--steps", "5", "--wait", "nan"], "from 0 to"),
        (["--all", "--steps", "5", "--level", "ranges"], "no kernels"),
        (["--all", "--level", "ranges", "--wait", "3"], "--wait needs"),
    ],
)
def test_what_cannot_be_done_is_said(writer, capsys, words, said):
    assert capture(writer, *words) == 2
    assert said in capsys.readouterr().err


def test_steps_at_a_level_without_kernels_are_refused(writer, capsys):
    capture(writer, "--all", "--level", "ranges")
    assert capture(writer, "--all", "--steps", "5") == 2
    assert "add --level windows" in capsys.readouterr().err


def test_rings_that_cannot_be_read_are_told(writer, capsys):
    """Not left out silently: who looks for a process must learn why it is not there."""
    writer.u32(8, 99)
    assert capture(writer, "--list") == 0
    told = capsys.readouterr()
    assert told.out == "no process with an agent\n"
    assert f"warning: {writer.path} is not a ring of layout" in told.err
    assert capture(writer, "--pid", "4711", "--steps", "5") == 2
    assert "is not a ring of layout" in capsys.readouterr().err


def test_a_folder_that_is_a_file_is_refused(writer, capsys):
    assert main(["capture", "--list", "--agent-dir", str(writer.path)]) == 2
    assert "not a folder" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("covered", "windows", "dies", "code"),
    [(5, 1, False, 0), (5, 1, True, 0), (4, 1, False, 1), (4, 1, True, 1), (5, 0, False, 0)],
)
def test_captured_are_whole_steps_as_many_as_were_asked_for(
    writer, capsys, covered, windows, dies, code
):
    """In whatever windows; not some window that closed, with the process's end for instance."""
    writer.state("steps_covered", 100)
    writer.state("windows", 7)

    def act() -> None:
        writer.state("steps_covered", 100 + covered)
        writer.state("windows", 7 + windows)
        if dies:
            writer.die()

    timer = threading.Timer(0.3, act)
    timer.start()
    assert capture(writer, "--all", "--steps", "5", "--wait", "2") == code
    timer.join()
    said = capsys.readouterr().out
    assert said.endswith("captured\n") == (code == 0)
    assert ("process 4711 ended before" in said) == (dies and code == 1)


def test_what_an_agent_says_of_itself_is_fit_to_be_printed(writer, capsys):
    at = STATE.fields["reason"][1] + writer._state
    writer.map[at : at + 8] = np.frombuffer(b"\x1b[31m\n9\n", np.uint8)
    at = STATE.fields["disabled"][1] + writer._state
    writer.u32(at, 1)
    assert capture(writer, "--list") == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out and len(out.splitlines()) == 3
