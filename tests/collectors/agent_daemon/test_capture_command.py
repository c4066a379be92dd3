import json
import threading
from contextlib import closing

import pytest
from ring_writer import RingWriter
from spanlite.cli import main
from spanlite_collectors.agent.layout import Detach, Level
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
    assert (status["pid"], status["dropped"]) == (4711, {"ring_full": 5})


@pytest.mark.parametrize(
    ("wanted", "said", "window_open", "now"),
    [
        ("off", Level.RANGES, False, "off"),  # its last word is of a window's end
        ("windows", Level.OFF, False, "ranges"),
        ("windows", Level.WINDOWS, True, "windows"),
        ("off", Level.WINDOWS, True, "windows"),  # until its step ends
    ],
)
def test_list_says_what_is_wanted_and_what_is_so_now(
    writer, capsys, wanted, said, window_open, now
):
    capture(writer, "--all", "--level", wanted)
    writer.level_now(said, window_open)
    capsys.readouterr()
    assert capture(writer, "--list", "--json") == 0
    status = json.loads(capsys.readouterr().out)
    assert (status["level"], status["now"]) == (wanted, now)
    assert capture(writer, "--list") == 0
    assert f"level {wanted} (now {now})" in capsys.readouterr().out


def test_list_shows_the_limits_that_were_set(writer, capsys):
    assert capture(writer, "--list") == 0
    assert "budget 0 %, no step SLO" in capsys.readouterr().out
    capture(writer, "--all", "--step-slo-ms", "12.5", "--budget-pct", "0.5")
    capsys.readouterr()
    assert capture(writer, "--list") == 0
    assert "budget 0.5 %, step SLO 12.5 ms" in capsys.readouterr().out
    assert capture(writer, "--list", "--json") == 0
    status = json.loads(capsys.readouterr().out)
    assert (status["budget_ppm"], status["step_slo_ms"]) == (5000, 12.5)


def test_list_shows_the_named_process_alone(writer, capsys):
    other = RingWriter(writer.path.parent, pid=4712)
    assert capture(writer, "--list", "--pid", "4712") == 0
    out = capsys.readouterr().out
    assert "4712  " in out and "4711  " not in out
    other.die()
    assert capture(writer, "--list", "--pid", "4712") == 2
    assert "no agent of process 4712" in capsys.readouterr().err


def test_a_folder_that_is_named_must_be_there(tmp_path, monkeypatch, capsys):
    missing = tmp_path / "missing"
    assert main(["capture", "--list", "--agent-dir", str(missing)]) == 2
    assert f"{missing}: no such folder" in capsys.readouterr().err
    monkeypatch.setattr("spanlite_collectors.agent.source.DEFAULT_FOLDER", str(missing))
    assert main(["capture", "--list"]) == 0
    assert capsys.readouterr().out == "no process with an agent\n"


def test_steps_of_a_process_without_kernels_are_refused_with_the_reason(writer, capsys):
    writer.disable("no libcupti")
    assert capture(writer, "--pid", "4711", "--steps", "5", "--wait", "60") == 2
    told = capsys.readouterr()
    assert "process 4711 records no kernels: no libcupti" in told.err and told.out == ""
    assert writer.control_word(1) == 0
    assert capture(writer, "--all", "--steps", "5") == 2
    assert "no process records kernels" in capsys.readouterr().err


def test_all_leaves_out_what_records_no_kernels(writer, capsys):
    child = RingWriter(writer.path.parent, pid=4712)
    child.disable("forked after cuInit")
    assert capture(writer, "--all", "--steps", "5") == 0
    assert "process 4712 is left out" in capsys.readouterr().err
    assert (writer.control_word(1), child.control_word(1)) == (1, 0)


@pytest.mark.parametrize(("level", "warned"), [("continuous", True), ("ranges", False)])
def test_a_level_that_a_process_cannot_reach_is_warned_of(writer, capsys, level, warned):
    writer.disable("no libcupti")
    assert capture(writer, "--all", "--level", level) == 0
    said = "records no kernels, whatever its level: no libcupti"
    assert (said in capsys.readouterr().err) == warned


def test_waiting_ends_where_the_agent_switches_kernels_off(writer, capsys):
    timer = threading.Timer(0.3, writer.disable, ["no libcupti"])
    timer.start()
    assert capture(writer, "--all", "--steps", "5", "--wait", "600") == 1
    timer.join()
    assert "process 4711 records no kernels: no libcupti" in capsys.readouterr().out


def test_it_warns_where_no_daemon_reads_what_is_recorded(writer, capsys):
    assert capture(writer, "--all", "--steps", "5") == 0
    assert "no `spanlite collect` reads the ring of process 4711" in capsys.readouterr().err
    with closing(Ring(writer.path)) as ring:
        assert ring.claim()
        assert capture(writer, "--all", "--steps", "5") == 0
        assert capsys.readouterr().err == ""
    assert capture(writer, "--all", "--level", "off") == 0
    assert capsys.readouterr().err == ""


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
    writer.disable("\x1b[31m\n9\n")
    assert capture(writer, "--list") == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out and len(out.splitlines()) == 3
