"""Build small configurations of text architectures of Transformers, by shrinking the sizes in their defaults."""

from __future__ import annotations

from typing import Any

import torch

#: Name of a size -> its value in a small model. A configuration gets only the sizes that it has.
SIZES: dict[str, Any] = {
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "dim", "emb_dim", "embed_dim", "d_embed"), 32),
    **dict.fromkeys(("embedding_size", "word_embed_proj_dim", "input_embedding_size", "d_latents"), 32),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers", "num_decoder_layers"), 2),
    **dict.fromkeys(("encoder_layers", "decoder_layers", "num_encoder_layers"), 2),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads"), 4),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 4),
    **dict.fromkeys(("num_encoder_attention_heads", "num_decoder_attention_heads"), 4),
    **dict.fromkeys(("num_key_value_heads", "num_kv_heads", "multi_query_group_num"), 2),
    **dict.fromkeys(("intermediate_size", "d_ff", "ffn_dim", "encoder_ffn_dim", "decoder_ffn_dim", "n_inner"), 48),
    **dict.fromkeys(("hidden_dim", "d_inner", "moe_intermediate_size", "shared_expert_intermediate_size"), 48),
    **dict.fromkeys(("ffn_hidden_size", "shared_intermediate_size", "intermediate_size_mlp"), 48),
    **dict.fromkeys(("head_dim", "d_kv", "d_head", "v_head_dim", "qk_nope_head_dim", "qk_rope_head_dim"), 8),
    **dict.fromkeys(("qk_head_dim", "kv_channels"), 8),
    **dict.fromkeys(("q_lora_rank", "kv_lora_rank"), 16),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "max_seq_length"), 64),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "top_k_experts", "moe_k", "moe_top_k"), 2),
    **dict.fromkeys(("n_shared_experts", "n_group", "topk_group", "num_shared_experts"), 1),
    **dict.fromkeys(("sliding_window", "local_attention", "attention_chunk_size"), 32),
    **dict.fromkeys(("linear_key_head_dim", "linear_value_head_dim"), 8),
    **dict.fromkeys(("linear_num_key_heads", "linear_num_value_heads"), 4),
    **dict.fromkeys(("mamba_d_state", "state_size", "ssm_state_size"), 4),
    **dict.fromkeys(("mamba_n_heads", "mamba_num_heads", "n_mamba_heads"), 4),
    **dict.fromkeys(("mamba_n_groups", "mamba_ngroups", "n_groups"), 1),
    **dict.fromkeys(("mamba_d_head", "mamba_head_dim", "mamba_headdim"), 16),
    **dict.fromkeys(("mamba_chunk_size", "chunk_size"), 8),
    **dict.fromkeys(("mamba_dt_rank", "type_vocab_size"), 2),
    "partial_rotary_factor": 1.0, "rotary_dim": 8, "head_ratio": 2, "num_hash_buckets": 64,
    "hidden_size_per_layer_input": 8,
    "attention_type": "original_full", "use_cache": False, "first_k_dense_replace": 1, "lora_rank": 2,
    "lru_width": 32, "expert_capacity": 64,
}  # fmt: skip
#: Settings that hold the number of layers, and settings that hold the kind of each layer.
_LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
_KINDS_OF_LAYERS = ("layer_types", "layers_block_type", "layer_block_types")
#: Further settings that hold the size of the vocabulary.
_VOCABULARIES = ("vocab_size_per_layer_input", "src_vocab_size", "tgt_vocab_size")
_ROPE = {"rope_type": "default", "rope_theta": 10000.0}
#: Name of a configuration class, without "Config" -> further settings. Those of a part are under its name.
FURTHER: dict[str, dict[str, Any]] = {
    "Blt": {"encoder_hash_byte_group_vocab": 64, "patching_mode": "space"},
    "BltLocalDecoder": {"hidden_size_global": 32},
    "BltLocalEncoder": {"hidden_size_global": 32},
    "Bamba": {"attn_layer_indices": [1]},
    "Bloom": {"hidden_size": 32},
    "CTRL": {"dff": 48},
    "CohereCompassText": {"rope_parameters": {"full_attention": _ROPE}},
    "DbrxAttention": {"clip_qkv": 8.0, "kv_n_heads": 2, "rope_theta": 10000.0},
    "Dots3NoteText": {"swa_num_attention_heads": 4, "swa_num_key_value_heads": 4, "swa_q_lora_rank": 16,
                      "swa_kv_lora_rank": 16, "swa_head_dim": 16, "swa_qk_nope_head_dim": 8, "swa_v_head_dim": 8,
                      "index_n_heads": 2, "index_head_dim": 8, "shared_experts_intermediate_size": 48},
    "EncoderDecoder": {"decoder": {"is_decoder": True, "add_cross_attention": True}},
    "Esmc": {"num_key_value_heads": 4},
    "FalconH1": {"mamba_d_ssm": 64},
    "Funnel": {"attention_type": "relative_shift", "block_sizes": [1, 1], "num_decoder_layers": 1},
    "GPTNeo": {"attention_types": [[["global", "local"], 1]], "window_size": 8},
    "Gemma3nText": {"num_kv_shared_layers": 0},
    "Gemma4Assistant": {"text_config": {"hidden_size_per_layer_input": 0, "vocab_size_per_layer_input": 0}},
    "GraniteMoeHybrid": {"layer_types": ["linear_attention", "full_attention"]},
    "Jamba": {"num_hidden_layers": 4, "attn_layer_period": 2, "attn_layer_offset": 1},
    "KimiLinear": {"linear_head_dim": 8, "linear_num_heads": 4},
    "LayoutLMv3": {"coordinate_size": 6, "shape_size": 4, "input_size": 32},
    "Lfm2Moe": {"layer_types": ["conv", "full_attention"], "num_dense_layers": 1},
    "Lilt": {"hidden_size": 48},
    "LongcatFlash": {"qk_head_dim": None, "expert_ffn_hidden_size": 48},
    "Longformer": {"attention_window": 8, "max_position_embeddings": 80},
    "Luke": {"entity_vocab_size": 10, "entity_emb_size": 16},
    "Mamba2": {"num_heads": 8},
    "Mistral4": {"head_dim": 16},
    "MobileBert": {"intra_bottleneck_size": 32, "true_hidden_size": 32},
    "ModernBertDecoder": {"cls_token_id": 1, "sep_token_id": 1},
    "Mpt": {"n_heads": 4, "expansion_ratio": 2},
    "Mra": {"max_position_embeddings": 64, "block_per_row": 2},
    "Perceiver": {"num_self_attends_per_block": 2, "num_latents": 8},
    "Phi4MultimodalAudio": {"ext_pw_out_channel": 32, "depthwise_separable_out_channel": 32, "nemo_conv_channels": 32},
    "Qwen4ExpText": {"indexer_n_heads": 2, "indexer_kv_heads": 1, "indexer_head_dim": 8, "indexer_budget": 8,
                     "indexer_compress_ratio": 2},
    "RecurrentGemma": {"num_hidden_layers": 3},
    "Reformer": {"attn_layers": ["local", "lsh"], "axial_pos_shape": [8, 8], "axial_pos_embds_dim": [16, 16],
                 "attention_head_size": 8},
    "RoCBert": {"shape_vocab_size": 64, "pronunciation_vocab_size": 64, "shape_embed_dim": 8,
                "pronunciation_embed_dim": 8},
    "Xmod": {"languages": ["en_XX"], "default_language": "en_XX"},
    "Zamba": {"num_hidden_layers": 5, "attention_hidden_size": 64, "attention_head_dim": 16,
              "layers_block_type": ["linear_attention", "linear_attention", "hybrid", "linear_attention", "hybrid"]},
    "Zaya": {"num_experts_per_tok": 1},
}  # fmt: skip


def tiny_config(model_class: Any, tokenizer: Any, *, classifies: bool) -> Any:
    """Return a small configuration of a model class.

    Args:
        model_class: A model class from Transformers.
        tokenizer: The tokenizer, whose vocabulary the model gets.
        classifies: Whether the model is a classifier, which gets two classes. Otherwise, it is a language model.
    """
    default = model_class.config_class()
    settings: dict[str, Any] = {}
    if classifies:
        settings = {"id2label": {0: "negative", 1: "positive"}, "label2id": {"negative": 0, "positive": 1}}
    elif hasattr(default, "is_decoder") and not getattr(default, "is_encoder_decoder", False):
        settings = {"is_decoder": True}
    return _small(default, tokenizer, settings)


def _small(default: Any, tokenizer: Any, further: dict[str, Any]) -> Any:
    """Return a small configuration of the class of a default configuration.

    The configurations of its parts, such as `text_config`, are made small as well. Lists with one entry per layer, such
    as `layer_types`, keep one entry of each kind, in the order of the layers.

    Args:
        default: The default configuration.
        tokenizer: The tokenizer, whose vocabulary the model gets.
        further: Settings that replace the chosen ones.
    """
    further = FURTHER.get(type(default).__name__.removesuffix("Config"), {}) | further
    known = {*vars(default), *type(default).attribute_map}
    given = {name: value for name, value in SIZES.items() if name in known}
    given |= _layers(default, given)
    if "kv_lora_rank" in known:  # every head has its own keys
        given["num_key_value_heads"] = 4
    start = tokenizer.eos_token_id if tokenizer.bos_token_id is None else tokenizer.bos_token_id
    tokens = {"pad_token_id": tokenizer.pad_token_id, "eos_token_id": tokenizer.eos_token_id, "bos_token_id": start}
    given |= {"vocab_size": len(tokenizer)} | tokens
    given |= {name: len(tokenizer) for name in _VOCABULARIES if name in known}
    if getattr(default, "is_encoder_decoder", False):
        given |= {"decoder_start_token_id": tokenizer.eos_token_id, "forced_eos_token_id": None}
    given |= further
    for name in type(default).sub_configs:
        part = getattr(default, name, None)
        if part is not None:
            given[name] = _small(part, tokenizer, further.get(name, {}))
    return type(default)(**given)


def _layers(default: Any, sizes: dict[str, Any]) -> dict[str, Any]:
    """Return the number of layers, and the settings with one entry per layer, of a model with layers of several kinds.

    Args:
        default: The default configuration.
        sizes: The sizes of the small model.
    """
    name = next((name for name in _LAYERS if getattr(default, name, None) is not None and name in sizes), None)
    if name is None:
        return {}
    count = getattr(default, name)
    lists = {
        key: value
        for key, value in vars(default).items()
        if isinstance(value, list) and len(value) == count and not key.startswith("_")
    }
    kinds = next((value for key, value in lists.items() if key in _KINDS_OF_LAYERS), None)
    if kinds is None:
        return {key: value[:2] for key, value in lists.items()}
    first = [kinds.index(kind) for kind in dict.fromkeys(kinds)]
    kept = first if len(first) > 1 else [0, 1]
    return {name: len(kept)} | {key: [value[i] for i in kept] for key, value in lists.items()}


def spread_weights(model: Any) -> None:
    """Draw random weights with so large a spread that the attention of the model is far from uniform.

    T5 and its relatives do not divide attention scores by the square root of the dimension, so their spread is smaller.
    """
    unscaled = model.config.is_encoder_decoder and hasattr(model.config, "relative_attention_num_buckets")
    spread = 0.12 if unscaled else 0.2
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            matrix = parameter.dim() > 1 and parameter.is_floating_point()
            if matrix and "norm" not in name.lower() and "A_log" not in name:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * spread)
    model.tie_weights()
