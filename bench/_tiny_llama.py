"""Writes a llama of random weights as GGUF: `python -m bench._tiny_llama FILE`, needs `gguf`.

Two layers, 64 wide, 32,000 tokens: it says nothing, at once, so that what is tried is the server.
"""

from __future__ import annotations

import sys

import gguf
import numpy as np

VOCABULARY, WIDE, HEADS, LAYERS, FORWARD = 32_000, 64, 4, 2, 128
_NORMAL, _UNKNOWN, _CONTROL, _BYTE = 1, 2, 3, 6


def write(path: str) -> None:
    out = gguf.GGUFWriter(path, "llama")
    out.add_name("tiny-random")
    out.add_context_length(8_192)
    out.add_embedding_length(WIDE)
    out.add_block_count(LAYERS)
    out.add_feed_forward_length(FORWARD)
    out.add_head_count(HEADS)
    out.add_head_count_kv(HEADS)
    out.add_layer_norm_rms_eps(1e-5)
    out.add_rope_dimension_count(WIDE // HEADS)
    out.add_vocab_size(VOCABULARY)
    _add_tokens(out)
    _add_tensors(out)
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()


def _add_tokens(out: gguf.GGUFWriter) -> None:
    tokens = [b"<unk>", b"<s>", b"</s>", *(f"<0x{byte:02X}>".encode() for byte in range(256))]
    words = VOCABULARY - len(tokens)
    out.add_tokenizer_model("llama")
    out.add_token_list(tokens + [f"\u2581w{number}".encode() for number in range(words)])
    out.add_token_scores([0.0] * len(tokens) + [-float(number) for number in range(words)])
    kinds = [_UNKNOWN, _CONTROL, _CONTROL] + [_BYTE] * 256 + [_NORMAL] * words
    out.add_token_types(kinds)
    out.add_unk_token_id(0)
    out.add_bos_token_id(1)
    out.add_eos_token_id(2)
    out.add_add_bos_token(False)


def _add_tensors(out: gguf.GGUFWriter) -> None:
    random = np.random.default_rng(0)

    def add(name: str, *shape: int) -> None:
        out.add_tensor(name, (random.standard_normal(shape) * 0.05).astype(np.float32))

    def norm(name: str) -> None:
        out.add_tensor(name, np.ones(WIDE, np.float32))

    add("token_embd.weight", VOCABULARY, WIDE)
    add("output.weight", VOCABULARY, WIDE)
    norm("output_norm.weight")
    for layer in range(LAYERS):
        block = f"blk.{layer}"
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            add(f"{block}.{name}.weight", WIDE, WIDE)
        add(f"{block}.ffn_gate.weight", FORWARD, WIDE)
        add(f"{block}.ffn_up.weight", FORWARD, WIDE)
        add(f"{block}.ffn_down.weight", WIDE, FORWARD)
        norm(f"{block}.attn_norm.weight")
        norm(f"{block}.ffn_norm.weight")


if __name__ == "__main__":
    write(sys.argv[1])
