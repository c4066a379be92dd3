"""Names of kernels."""

from hypothesis import given
from hypothesis import strategies as st
from spanlite_collectors.agent.names import demangled


def test_names_of_kernels_are_written_as_other_profilers_do():
    mangled = "_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_15CUDAFunctor_addIfEEEEviT0_"
    told = demangled(mangled)
    assert told.startswith("void at::native::vectorized_elementwise_kernel<4, ")
    assert told.endswith("(int, at::native::CUDAFunctor_add<float>)")


@given(st.text())
def test_any_other_text_stays(text):
    assert demangled(text) == text or text.startswith("_Z")
    assert isinstance(demangled("_Z" + text.replace("\0", "")), str)
