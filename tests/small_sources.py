"""A small causal language model with random weights that answers from passages, and rows for it."""

from __future__ import annotations

from typing import Any

import torch

from attnaudit.instances import Instance

WORDS = ("the", "sky", "grass", "is", "blue", "green", "red", "old", "house", "what", "colour", "has", "a", "answer")
TEMPLATE = "{passages}question : {text} answer : {answer}"
ROWS = (
    (("the sky is blue", "the grass is green", "the house is old"), "what colour has the sky", "blue"),
    (("the grass is green", "the sky is red"), "what colour has the grass", "green"),
    (("the house is red", "the house is red", "the sky is blue", "a house"), "what colour has the house", "red"),
    (("the old house",), "what is old", "house"),
)


def small_language_model() -> tuple[Any, Any]:
    """Return a Llama with random weights, and a tokenizer whose tokens are words and line breaks."""
    import transformers
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers

    entries = ["<pad>", "<unk>", "<s>", "\n", ":", "question", "a", "b", "c", "d", "e", "f", "g", "h", "i", *WORDS]
    ids = {word: number for number, word in enumerate(dict.fromkeys(entries))}
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token="<unk>"))
    splits = [pre_tokenizers.Split(Regex("\n"), "isolated"), pre_tokenizers.Split(" ", "removed")]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(splits)
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<unk>", pad_token="<pad>", bos_token="<s>", model_max_length=48
    )
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=len(ids),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=48,
        pad_token_id=0,
        bos_token_id=2,
        eos_token_id=None,
    )
    model = transformers.LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.15)
    return model, fast


def rows() -> list[Instance]:
    """Return rows with one to four passages, among them two equal ones."""
    return [
        Instance(id=str(number), text=text, answer=answer, passages=passages)
        for number, (passages, text, answer) in enumerate(ROWS)
    ]
