"""What /proc says of a process, from a folder that looks like it."""

import os
import subprocess
import sys

import pytest
from spanlite_collectors.agent import ring
from spanlite_collectors.agent.resource import describe, host_pid, start_ticks
from spanlite_collectors.agent.source import RingOptions, RingSource
from spanlite_collectors.sinks import MemorySink

CONTAINER = "0123456789abcdef" * 4
POD = "11111111-2222-3333-4444-555555555555"


@pytest.fixture
def proc(tmp_path):
    """Process 77, in a container where it is 1."""
    folder = tmp_path / "77"
    folder.mkdir()
    (folder / "stat").write_text("77 (a ) name) S " + " ".join(["0"] * 18) + " 4242 0")
    (folder / "status").write_text("Name:\ta\nNSpid:\t77\t1\nThreads:\t1\n")
    (folder / "cgroup").write_text(
        f"0::/kubepods.slice/kubepods-pod{POD.replace('-', '_')}.slice/cri-{CONTAINER}.scope\n"
    )
    (folder / "environ").write_text(
        "OTEL_SERVICE_NAME=llm\0POD_NAME=llm-0\0SECRET=x\0"
        "OTEL_RESOURCE_ATTRIBUTES=deployment.environment=prod,service.version=3\0"
    )
    return tmp_path


def test_a_pid_is_told_apart_by_its_start(proc):
    assert start_ticks(77, proc) == 4242
    assert host_pid(77, 4242, proc) == 77
    assert host_pid(77, 1, proc) is None
    assert start_ticks(78, proc) is None


def test_a_process_in_a_container_is_found(proc):
    assert host_pid(1, 4242, proc) == 77


def test_container_pod_and_service_are_named_and_nothing_else_of_the_environment(proc):
    said = describe("/usr/bin/python3", 1, 77, proc)
    assert said["container.id"] == CONTAINER
    assert said["k8s.pod.uid"] == POD
    assert said["k8s.pod.name"] == "llm-0"
    assert said["service.name"] == "llm"
    assert said["deployment.environment"] == "prod"
    assert (said["process.pid"], said["process.host_pid"]) == (1, 77)
    assert "x" not in said.values()


def test_a_dead_process_has_at_least_a_name(proc):
    said = describe("/usr/bin/python3", 5, None, proc)
    assert said["service.name"] == "python3"


def test_our_own_start_is_readable():
    assert host_pid(os.getpid(), start_ticks(os.getpid()) or 0) == os.getpid()


def test_a_living_process_is_known_by_its_environment(tmp_path):
    """The agent says when the process started, and only then /proc is believed."""
    agent = ring.library_path().with_name("libspanlite_agent.so")
    if not agent.exists():
        pytest.skip("the agent is not built: make agent")
    env = os.environ | {
        "NVTX_INJECTION64_PATH": str(agent),
        "SPANLITE_AGENT_DIR": str(tmp_path),
        "OTEL_SERVICE_NAME": "llm",
    }
    code = (
        "from spanlite import instrument\n"
        "with instrument.stage('x'): pass\n"
        "print('ready', flush=True); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        process.stdout.readline()
        sink = MemorySink()
        source = RingSource(sink, RingOptions([tmp_path]))
        source.step()
        process.communicate(b"\n")
    source.step()
    (_, resource), *_ = sink.written
    assert (resource["service.name"], resource["process.pid"]) == ("llm", process.pid)
