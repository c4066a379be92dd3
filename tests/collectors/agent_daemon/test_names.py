"""Names of kernels and ranges."""

from hypothesis import given
from hypothesis import strategies as st
from ring_writer import string_record
from spanlite_collectors.agent import string_table
from spanlite_collectors.agent.names import demangled
from spanlite_collectors.agent.string_table import StringTable


def test_names_of_kernels_are_written_as_other_profilers_do():
    mangled = "_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_15CUDAFunctor_addIfEEEEviT0_"
    told = demangled(mangled)
    assert told.startswith("void at::native::vectorized_elementwise_kernel<4, ")
    assert told.endswith("(int, at::native::CUDAFunctor_add<float>)")


@given(st.text())
def test_any_other_text_stays(text):
    assert demangled(text) == text or text.startswith("_Z")
    assert isinstance(demangled("_Z" + text.replace("\0", "")), str)


def test_a_request_keeps_its_name_over_many_tables_of_texts():
    """Steps that name their requests fill an agent's table in seconds; a request may last longer,
    and its range comes at its end, with the number that its name had at its begin."""
    table, number, steps = StringTable(), 1, []
    table.take(string_record(1, "spanlite") + string_record(2, "request:chat;own=00-1-1-01;free=1"))
    number = 3
    for _ in range(20):
        for _ in range(100):
            table.take(string_record(number, f"step:;links={number:08192x}"))
            steps.append(number)
            number += 1
        table.take(string_record(0, ""))
        assert table.text(steps[-1]).startswith("step:")  # records of a moment ago
    assert table.text(1) == "spanlite"
    assert table.text(2).startswith("request:chat")
    assert table.text(steps[0]) == ""
    assert len(table._old) < 200


def test_names_of_old_requests_are_bounded(monkeypatch):
    monkeypatch.setattr(string_table, "_MAX_OLD_TEXTS", 50)
    monkeypatch.setattr(string_table, "_MOMENT_BYTES", 100)
    table = StringTable()
    for number in range(1, 2001):
        table.take(string_record(number, f"request:{number}"))
        if number % 40 == 0:
            table.take(string_record(0, ""))
    assert len(table._old) <= 50 + 40
    assert table.text(2000) == "request:2000"
    assert table.text(1) == ""
