"""Ready-made probes on models of other shapes, Triton's hooks beside those of others, tasks."""

from applications import FAKE_TORCH, FAKE_TRITON, by_name

MODEL = (
    FAKE_TORCH
    + """
class LlamaRotaryEmbedding(Module): pass
class BertSelfAttention(Module): pass
class BertAttention(Module): pass
"""
)


def samples(spans, code):
    """Key and value of what probes measured, but times."""
    seen = []
    spans(MODEL + code, lambda resource, sample: seen.append((sample.metric.key, sample.value)))
    return [(key, value) for key, value in seen if key != "rope.cosine_compute_ms"]


def test_a_table_that_takes_the_place_of_one_that_is_gone_is_another(spans):
    tops = [1 - v / 10 for v in range(10)]
    seen = samples(
        spans,
        f"""
rope = LlamaRotaryEmbedding()
instrument.probe_modules(Model({{"rope": rope}}), sequence=lambda: "s")
for top in {tops!r}:
    rope.inv_freq = None
    rope.inv_freq = Table(top)
    rope()
""",
    )
    assert seen == [("rope.freq_inv_max{sequence=s}", top) for top in tops]


def test_each_sequence_has_its_own_gauge(spans):
    seen = samples(
        spans,
        """
rope, now = LlamaRotaryEmbedding(), [0]
rope.inv_freq = Table(0.5)
instrument.probe_modules(Model({"rope": rope}), sequence=lambda: now[0])
for now[0] in (0, 1, 1, 2, 0): rope()
""",
    )
    assert seen == [(f"rope.freq_inv_max{{sequence={number}}}", 0.5) for number in (0, 1, 2)]


def test_attention_in_attention_counts_once_and_layers_are_told_apart(spans):
    seen = samples(
        spans,
        """
modules = {}
for path in ("encoder.layers.3", "decoder.layers.3", "0.layers.7"):
    inner = BertSelfAttention()
    modules[path + ".attention"] = BertAttention(inner)
    modules[path + ".attention.self"] = inner
instrument.probe_modules(Model(modules))
fake_torch.in_backward = 5
for path, module in modules.items():
    if not path.endswith("self"): module()
""",
    )
    assert seen == [
        ("flash_attn.recompute_count{layer=encoder.layers.3.attention}", 1.0),
        ("flash_attn.recompute_count{layer=decoder.layers.3.attention}", 1.0),
        ("flash_attn.recompute_count{layer=7}", 1.0),
    ]


def test_what_has_wrapped_our_triton_hook_stays_when_ours_goes(spans):
    rows = spans(
        FAKE_TRITON
        + """
called = []
hooks = instrument.hook_triton()
ours = triton.knobs.runtime.jit_post_compile_hook
def theirs(**said): called.append(1); return ours(**said)
triton.knobs.runtime.jit_post_compile_hook = theirs
hooks.remove()
assert triton.knobs.runtime.jit_post_compile_hook is theirs
kernel.launch(BLOCK=1)
"""
    )
    assert rows == []


def test_the_range_of_a_launch_that_failed_ends_before_what_comes_next(spans):
    rows = by_name(
        spans(
            FAKE_TRITON
            + """
import time
hooks = instrument.hook_triton()
with instrument.step(number=1):
    with instrument.stage("attention"):
        try: kernel.launch(fail=True, BLOCK=1)
        except RuntimeError: pass
    with instrument.stage("mlp"):
        time.sleep(0.02)
"""
        )
    )
    assert rows["mlp"]["parent_span_id"] == rows["attention"]["parent_span_id"]
    attention, mlp = rows["attention"], rows["mlp"]
    assert attention["start_ns"] + attention["duration_ns"] <= mlp["start_ns"]
    assert mlp["duration_ns"] >= 20_000_000


def test_stages_of_two_tasks_keep_their_times(spans):
    rows = by_name(
        spans(
            """
import asyncio
async def one(name, before_s, s):
    await asyncio.sleep(before_s)
    async with instrument.stage(name): await asyncio.sleep(s)
async def main(): await asyncio.gather(one("long", 0, 0.2), one("short", 0.02, 0.02))
asyncio.run(main())
"""
        )
    )
    assert rows["long"]["duration_ns"] >= 200_000_000
    assert 20_000_000 <= rows["short"]["duration_ns"] < rows["long"]["duration_ns"]
