from spanlite.schema import LAUNCH_COLUMNS
from spanlite_collectors.agent import layout, ring
from spanlite_collectors.agent.layout import KERNEL, RECORDS, RecordType
from spanlite_collectors.agent.rows import DEVICE


def test_every_record_has_the_size_that_the_library_says():
    library = ring.library()
    sizes = {kind: library.spanlite_record_bytes(kind) for kind in range(layout.TYPES)}
    ours = {int(kind): dtype.itemsize for kind, dtype in RECORDS.items()}
    assert {kind: size for kind, size in sizes.items() if size} == ours
    assert set(RECORDS) == set(RecordType) - {RecordType.STRING}


def test_control_and_state_lie_where_the_library_says():
    library = ring.library()
    control, state, dropped = (library.spanlite_ring_offset(i) for i in range(3))
    assert -(-layout.HEADER.itemsize // 64) * 64 == control
    assert control + -(-layout.CONTROL.itemsize // 64) * 64 == state
    assert state + -(-layout.STATE.itemsize // 64) * 64 == dropped
    # What the daemon keeps for itself lies behind everything of the agent's.
    assert library.spanlite_ring_offset(4) + 8 <= layout.HEADER_BYTES - 64


def test_launch_columns_lie_side_by_side_in_records_and_rows():
    """They are copied as one block."""
    for dtype in (KERNEL, DEVICE):
        offsets = [dtype.fields[name][1] for name in LAUNCH_COLUMNS]
        assert offsets == list(range(offsets[0], offsets[0] + 4 * len(offsets), 4))
