"""Small random models of many Transformers architectures, saved as ordinary checkpoint folders: for tests only.

`save(name, folder)` writes the model and its tokenizer; `NAMES` lists them. Weights are drawn wide enough that
attention is far from uniform, and the same each time.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

#: What the tokenizers are made from; tests draw their texts from it.
SENTENCES = (
    "a wonderful film, unbelievably moving and never dull",
    "the plot is dull and the acting is terrible",
    "it was not good, but it was never boring either",
    "I did not like the ending of this strange movie",
    "great acting in a movie that is otherwise a waste of time",
    "this is the best thing that I have seen in years",
    "good", "bad", "the end of the film is surprisingly uninteresting",
    "what a beautiful, sad and clever story they tell",
)  # fmt: skip
HIDDEN, HEADS, LAYERS = 32, 4, 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """kind: the model class without its task. tokenizer: "wordpiece", "bytes" or "unigram". settings: of the config.
    kernel: how its attention is reached. task: the ending of the class name. spread: standard deviation of weights."""

    kind: str
    tokenizer: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    kernel: str = "interface"
    task: str = "ForSequenceClassification"
    spread: float = 0.2

    @property
    def writes(self) -> bool:
        """A language model, audited with labels."""
        return self.task != "ForSequenceClassification"


_BERT = {
    "hidden_size": HIDDEN, "num_attention_heads": HEADS, "num_hidden_layers": LAYERS, "intermediate_size": 48,
    "max_position_embeddings": 64,
}  # fmt: skip
_LLAMA = {**_BERT, "num_key_value_heads": 2, "head_dim": 8}
_GPT2 = {"n_embd": HIDDEN, "n_head": HEADS, "n_layer": LAYERS, "n_positions": 64}
_T5 = {
    "d_model": HIDDEN, "d_kv": 8, "d_ff": 48, "num_heads": HEADS, "num_layers": LAYERS, "num_decoder_layers": 2,
}  # fmt: skip
_BART = {
    "d_model": HIDDEN, "encoder_layers": LAYERS, "decoder_layers": 2, "encoder_attention_heads": HEADS,
    "decoder_attention_heads": HEADS, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "max_position_embeddings": 64,
}  # fmt: skip
_OSS = {
    **_LLAMA, "num_local_experts": 2, "num_experts_per_tok": 1, "sliding_window": 4,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
}  # fmt: skip
_DEBERTA = {**_BERT, "relative_attention": True, "pos_att_type": ["c2p", "p2c"], "position_biased_input": False}

ARCHITECTURES: dict[str, Architecture] = {
    "bert": Architecture(kind="Bert", tokenizer="wordpiece", settings=_BERT),
    "distilbert": Architecture(
        kind="DistilBert",
        tokenizer="wordpiece",
        settings={"dim": HIDDEN, "n_heads": HEADS, "n_layers": LAYERS, "hidden_dim": 48, "max_position_embeddings": 64},
    ),
    "roberta": Architecture(kind="Roberta", tokenizer="bytes", settings=_BERT),
    "albert": Architecture(kind="Albert", tokenizer="unigram", settings={**_BERT, "embedding_size": 16}),
    "electra": Architecture(kind="Electra", tokenizer="wordpiece", settings={**_BERT, "embedding_size": 16}),
    "modernbert": Architecture(
        kind="ModernBert",
        tokenizer="bytes",
        settings={**_BERT, "local_attention": 8, "global_attn_every_n_layers": 2, "classifier_pooling": "mean"},
    ),
    "gpt2": Architecture(kind="GPT2", tokenizer="bytes", settings=_GPT2),
    "llama": Architecture(kind="Llama", tokenizer="unigram", settings=_LLAMA),
    "mistral": Architecture(kind="Mistral", tokenizer="unigram", settings={**_LLAMA, "sliding_window": 4}),
    "gemma2": Architecture(
        kind="Gemma2",
        tokenizer="unigram",
        settings={**_LLAMA, "sliding_window": 4, "attn_logit_softcapping": 2.0, "query_pre_attn_scalar": 8},
    ),
    "qwen3": Architecture(kind="Qwen3", tokenizer="bytes", settings=_LLAMA),
    "gpt-oss": Architecture(kind="GptOss", tokenizer="bytes", settings=_OSS),
    "t5": Architecture(kind="T5", tokenizer="unigram", settings=_T5, spread=0.12),
    "bart": Architecture(kind="Bart", tokenizer="bytes", settings=_BART),
    "deberta-v2": Architecture(
        kind="DebertaV2", tokenizer="unigram", settings={**_DEBERTA, "type_vocab_size": 0}, kernel="fallback: softmax"
    ),
    "deberta": Architecture(
        kind="Deberta", tokenizer="bytes", settings={**_DEBERTA, "type_vocab_size": 0}, kernel="fallback: softmax"
    ),
    "mpnet": Architecture(kind="MPNet", tokenizer="wordpiece", settings=_BERT, kernel="fallback: softmax"),
    "xlnet": Architecture(
        kind="XLNet",
        tokenizer="unigram",
        settings={"d_model": HIDDEN, "n_head": HEADS, "n_layer": LAYERS, "d_inner": 48},
        kernel="fallback: softmax",
    ),
    "gpt2-lm": Architecture(kind="GPT2", tokenizer="bytes", settings=_GPT2, task="LMHeadModel"),
    "llama-lm": Architecture(kind="Llama", tokenizer="unigram", settings=_LLAMA, task="ForCausalLM"),
    "t5-lm": Architecture(
        kind="T5", tokenizer="unigram", settings=_T5, task="ForConditionalGeneration", spread=0.12
    ),
    "bart-lm": Architecture(kind="Bart", tokenizer="bytes", settings=_BART, task="ForConditionalGeneration"),
}  # fmt: skip
NAMES = tuple(ARCHITECTURES)
#: For language models: class name -> word, and the text around an instance.
LABELS = {"positive": " good", "negative": " bad"}
TEMPLATE = "{text} it was"


def word_pieces() -> list[str]:
    """Return the beginnings of words, and after "##" their other pieces: the vocabulary, without special tokens.

    Words that occur twice are entries. Other words have two pieces. The vocabulary is the same in each process; that of
    the trainers in the tokenizers library is not.
    """
    words = re.findall(r"\w+|[^\w\s]", " ".join(SENTENCES).lower())
    counts = Counter(words)
    whole = [word for word in counts if counts[word] > 1 or word in ("good", "bad")]
    halves = [half for word in counts if len(word) > 3 for half in (word[:3], "##" + word[3:])]
    letters = sorted(set("abcdefghijklmnopqrstuvwxyz").union(*words))
    return list(dict.fromkeys([*whole, *halves, *letters, *("##" + letter for letter in letters)]))


def tokenizer(kind: str) -> Any:
    """A tokenizer for SENTENCES. Special tokens are those of the family: [CLS] and [SEP], or <s> and </s>."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    if kind == "wordpiece":
        names = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
        entries = {piece: n for n, piece in enumerate([*names.values(), *word_pieces()])}
        made = Tokenizer(models.WordPiece(entries, unk_token="[UNK]"))
        made.normalizer = normalizers.BertNormalizer(lowercase=True)
        made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        made.decoder = decoders.WordPiece(prefix="##")
        single, pair = "[CLS]:0 $A:0 [SEP]:0", "[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1"
        added = ("[CLS]", "[SEP]")
    elif kind == "bytes":
        names = {"bos": "<s>", "pad": "<pad>", "eos": "</s>", "unk": "<unk>", "mask": "<mask>"}
        made = Tokenizer(models.BPE())
        made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        made.decoder = decoders.ByteLevel()
        # The 256 bytes are an alphabet, and the rest merges.
        trainer = trainers.BpeTrainer(
            vocab_size=340,
            special_tokens=list(names.values()),
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
        # Frequent words are entries of their own.
        made.train_from_iterator([*SENTENCES, *(["the movie is good and bad, it was"] * 6)], trainer=trainer)
        single, pair = "<s> $A </s>", "<s> $A </s> </s> $B </s>"
        added = ("<s>", "</s>")
    else:
        names = {"pad": "<pad>", "eos": "</s>", "unk": "<unk>", "mask": "<mask>"}
        pieces = [piece.removeprefix("##") if piece.startswith("##") else f"▁{piece}" for piece in word_pieces()]
        scores = {piece: -10.0 + 1.5 * len(piece) for piece in ["▁I", "I", "▁", *pieces]}
        made = Tokenizer(models.Unigram([*((name, 0.0) for name in names.values()), *scores.items()], unk_id=2))
        made.pre_tokenizer = pre_tokenizers.Metaspace()
        made.decoder = decoders.Metaspace()
        single, pair = "$A </s>", "$A </s> $B </s>"
        added = ("</s>",)
    made.add_special_tokens(list(names.values()))
    made.post_processor = processors.TemplateProcessing(
        single=single, pair=pair, special_tokens=[(name, made.token_to_id(name)) for name in added]
    )
    inputs = ["input_ids", "attention_mask"] + ["token_type_ids"] * (kind == "wordpiece")
    return PreTrainedTokenizerFast(
        tokenizer_object=made,
        model_max_length=64,
        model_input_names=inputs,
        **{f"{role}_token": name for role, name in names.items()},
    )


def build(
    name: str, *, seed: int = 0, implementation: str | None = None, task: str = "", **settings: Any
) -> tuple[Any, Any]:
    """The model in evaluation mode, and its tokenizer. task: another ending of the class name. settings: of the
    config."""
    import transformers

    one = ARCHITECTURES[name]
    one = replace(one, task=task or one.task)
    reader = tokenizer(one.tokenizer)
    start = reader.pad_token_id if one.kind == "T5" else reader.eos_token_id
    given: dict[str, Any] = {
        "vocab_size": len(reader),
        "pad_token_id": reader.pad_token_id,
        "eos_token_id": reader.eos_token_id,
        "bos_token_id": reader.bos_token_id,
        **one.settings,
    }
    if one.kind in ("T5", "Bart"):
        given["decoder_start_token_id"] = start
    if one.kind == "Bart":
        given["forced_eos_token_id"] = reader.eos_token_id
    if not one.writes:
        given["id2label"] = {0: "negative", 1: "positive"}
        given["label2id"] = {"negative": 0, "positive": 1}
    given.update(settings)
    if implementation is not None:
        given["attn_implementation"] = implementation
    config = getattr(transformers, f"{one.kind}Config")(**given)
    torch.manual_seed(seed)
    model = getattr(transformers, f"{one.kind}{one.task}")(config)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for label, parameter in model.named_parameters():
            if "norm" not in label.lower():
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * one.spread)
        for label, parameter in model.named_parameters():
            if "norm" in label.lower():  # with equal weights, all normalised states would have the same length
                parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.1)
    model.tie_weights()
    return model.eval(), reader


def save(name: str, folder: Path, **settings: Any) -> Path:
    """Write a checkpoint folder, with an attnaudit.toml where the model writes."""
    model, reader = build(name, **settings)
    model.save_pretrained(folder)
    reader.save_pretrained(folder)
    if ARCHITECTURES[name].writes:
        labels = "\n".join(f'{label} = "{word}"' for label, word in LABELS.items())
        text = f'template = "{TEMPLATE}"\n\n[labels]\n{labels}\n'
        (Path(folder) / "attnaudit.toml").write_text(text, encoding="utf-8")
    return Path(folder)
