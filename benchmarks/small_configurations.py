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
    "lru_width": 32, "expert_capacity": 64, "vocab_size_per_layer_input": 64,
}  # fmt: skip
#: Class -> further settings.
FURTHER: dict[str, dict[str, Any]] = {
    "JambaForSequenceClassification": {"num_hidden_layers": 4, "attn_layer_period": 2, "attn_layer_offset": 1},
    "JambaForCausalLM": {"num_hidden_layers": 4, "attn_layer_period": 2, "attn_layer_offset": 1},
    "LongformerForSequenceClassification": {"attention_window": 8, "max_position_embeddings": 80},
    "ReformerForSequenceClassification": {"attn_layers": ["local", "lsh"], "axial_pos_shape": [8, 8],
                                          "axial_pos_embds_dim": [16, 16], "attention_head_size": 8},
    "FunnelForSequenceClassification": {"attention_type": "relative_shift", "block_sizes": [1, 1],
                                        "num_decoder_layers": 1},
    "PerceiverForSequenceClassification": {"num_self_attends_per_block": 2, "num_latents": 8},
    "GPTNeoForSequenceClassification": {"attention_types": [[["global", "local"], 1]], "window_size": 8},
    "GPTNeoForCausalLM": {"attention_types": [[["global", "local"], 1]], "window_size": 8},
    "ZambaForSequenceClassification": {"num_hidden_layers": 4, "attn_layer_period": 2, "attn_layer_offset": 1,
                                       "attention_hidden_size": 64, "attention_head_dim": 16},
    "CTRLForSequenceClassification": {"dff": 48},
    "MobileBertForSequenceClassification": {"intra_bottleneck_size": 32, "true_hidden_size": 32},
    "MptForSequenceClassification": {"n_heads": 4, "expansion_ratio": 2},
    "BloomForSequenceClassification": {"hidden_size": 32},
    "EsmcForSequenceClassification": {"num_key_value_heads": 4},
    "XmodForSequenceClassification": {"languages": ["en_XX"], "default_language": "en_XX"},
    "LukeForSequenceClassification": {"entity_vocab_size": 10, "entity_emb_size": 16},
    "ModernBertDecoderForSequenceClassification": {"bos_token_id": 1, "cls_token_id": 1, "sep_token_id": 1},
    "Qwen3NextForSequenceClassification": {"layer_types": ["linear_attention", "full_attention"]},
    "Qwen3_5TextForSequenceClassification": {"layer_types": ["linear_attention", "full_attention"]},
    "MraForSequenceClassification": {"max_position_embeddings": 64, "block_per_row": 2},
}  # fmt: skip


def tiny_config(model_class: Any, tokenizer: Any, *, classifies: bool) -> Any:
    """Return a small configuration of a model class.

    Args:
        model_class: A model class of Transformers.
        tokenizer: The tokenizer, whose vocabulary the model gets.
        classifies: Whether the model is a classifier, which gets two classes.
    """
    config_class = model_class.config_class
    known = {*vars(config_class()), *config_class.attribute_map}
    given = {name: value for name, value in SIZES.items() if name in known}
    if "kv_lora_rank" in known:  # every head has its own keys
        given["num_key_value_heads"] = 4
    given |= {"vocab_size": len(tokenizer), "pad_token_id": tokenizer.pad_token_id}
    given |= {"eos_token_id": tokenizer.eos_token_id, "bos_token_id": tokenizer.bos_token_id}
    if "is_encoder_decoder" in known and config_class().is_encoder_decoder:
        given |= {"decoder_start_token_id": tokenizer.eos_token_id, "forced_eos_token_id": None}
    if classifies:
        given |= {"id2label": {0: "negative", 1: "positive"}, "label2id": {"negative": 0, "positive": 1}}
    return config_class(**{**given, **FURTHER.get(model_class.__name__, {})})


def spread_weights(model: Any, seed: int = 0) -> None:
    """Draw random weights with so large a spread that the attention of the model is far from uniform."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            matrix = parameter.dim() > 1 and parameter.is_floating_point()
            if matrix and "norm" not in name.lower() and "A_log" not in name:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.2)
    model.tie_weights()
