"""A tiny random Llama as a GGUF file, written by llama.cpp's own package."""

import json

import gguf
import numpy as np
import torch
from gguf.quants import dequantize, quantize

from support.tiny_models import CHAT_TEMPLATE, END_ID, PAD_ID, SPECIAL, tiny_model

NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "model.layers": "blk",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def save_gguf(path, seed=0, architecture="llama"):
    """Write the tiny Llama of `seed` in Q4_1; return it as it is after dequantisation."""
    causal_lm = tiny_model("llama", seed)
    model, config = causal_lm.model, causal_lm.model.config
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q4_1)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_vocab_size(config.vocab_size)
    _add_tokenizer(writer, causal_lm.tokenizer)
    kept = {}
    for name, tensor in model.state_dict().items():
        heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
        turned = next((number for part, number in heads.items() if part in name), None)
        array = tensor.numpy() if turned is None else _interleave(tensor.numpy(), turned)
        if tensor.ndim == 2 and tensor.shape[1] % 32 == 0:  # whole blocks
            kind = gguf.GGMLQuantizationType.Q4_1
            packed = quantize(array, kind)
            writer.add_tensor(_renamed(name), packed, raw_dtype=kind)
            array = dequantize(packed, kind)
        else:
            writer.add_tensor(_renamed(name), array)
        kept[name] = array if turned is None else _interleave(array, turned, back=True)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    model.load_state_dict({name: torch.tensor(array) for name, array in kept.items()})
    return causal_lm


def _renamed(name):
    for ours, theirs in NAMES.items():
        name = name.replace(ours, theirs)
    return name


def _interleave(weight, heads, back=False):
    """Order the rows of each head as llama.cpp does, in pairs; or back."""
    shape = (heads, 2, weight.shape[0] // heads // 2, weight.shape[1])
    if back:
        shape = (shape[0], shape[2], shape[1], shape[3])
    return np.ascontiguousarray(weight.reshape(shape).swapaxes(1, 2).reshape(weight.shape))


def _add_tokenizer(writer, tokenizer):
    told = json.loads(tokenizer.backend_tokenizer.to_str())["model"]
    tokens = sorted(told["vocab"], key=told["vocab"].get)
    kinds = [
        gguf.TokenType.CONTROL if token in SPECIAL else gguf.TokenType.NORMAL for token in tokens
    ]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges([" ".join(pair) for pair in told["merges"]])
    writer.add_eos_token_id(END_ID)
    writer.add_pad_token_id(PAD_ID)
    writer.add_add_bos_token(False)
    writer.add_add_space_prefix(False)
    writer.add_chat_template(CHAT_TEMPLATE)
