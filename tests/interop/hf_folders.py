"""Small Hugging Face folders with random weights and a real tokeniser, written by transformers itself."""

import json
import os
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import torch

os.environ["HF_HUB_OFFLINE"] = "1"
pytest.importorskip("transformers", reason="transformers is not installed (extra: dev)")

import transformers
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from allyouneed.interop.hf.files import KEPT

TEXTS = [
    "the cat sat on the mat and looked at the dog",
    "a dog ran after the cat; the cat ran up a tree",
    "the weather is fine today, isn't it?",
    "number 42 comes after number 41, and before 43",
]
SENTENCES = ["the cat ran after the dog", "a tree", "it isn't fine today, and 42 is a number"]
VOCABULARY = 300


@cache
def byte_tokenizer(specials: tuple[str, ...], template: str | None = None) -> str:
    """Return the tokenizer.json of a byte-level BPE whose special tokens have these names and the first ids."""
    library = Tokenizer(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=list(specials), initial_alphabet=alphabet, show_progress=False
    )
    return _trained(library, trainer, specials, template)


@cache
def unigram_tokenizer(specials: tuple[str, ...], template: str | None = None) -> str:
    """Return a unigram tokenizer.json with metaspaces, like SentencePiece; `<unk>` is one of the specials."""
    library = Tokenizer(models.Unigram())
    library.normalizer = normalizers.NFKC()
    library.pre_tokenizer = pre_tokenizers.Metaspace()
    library.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=80, special_tokens=list(specials), unk_token="<unk>", show_progress=False
    )
    return _trained(library, trainer, specials, template)


@cache
def wordpiece_tokenizer(specials: tuple[str, ...], template: str | None = None) -> str:
    """Return a tokenizer.json like BERT's: lower-cased WordPiece."""
    library = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    library.normalizer = normalizers.BertNormalizer(lowercase=True)
    library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    library.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(vocab_size=120, special_tokens=list(specials), show_progress=False)
    return _trained(library, trainer, specials, template)


def _trained(library: Any, trainer: Any, specials: tuple[str, ...], template: str | None) -> str:
    library.train_from_iterator(TEXTS, trainer)
    if template is not None:
        named = [(name, library.token_to_id(name)) for name in specials]
        library.post_processor = processors.TemplateProcessing(single=template, special_tokens=named)
    text: str = library.to_str()
    return text


def size_of(tokenizer: str) -> int:
    """Return the size of a tokeniser's vocabulary."""
    size: int = Tokenizer.from_str(tokenizer).get_vocab_size(with_added_tokens=True)
    return size


def write_folder(folder: Path, model: Any, tokenizer: str, std: float = 0.2) -> Path:
    """Randomise the weights, call `save_pretrained`, and write tokenizer.json."""
    with torch.no_grad():
        for parameter in model.parameters():
            # The library's initial weights are so small that all outputs would be nearly the same.
            parameter.normal_(std=std) if parameter.dim() > 1 else parameter.add_(0.1 * torch.randn_like(parameter))
        for name, buffer in model.named_buffers():
            if name == "final_logits_bias":
                buffer.normal_()
    _restore_sines(model)
    model.eval().save_pretrained(folder)
    (folder / "tokenizer.json").write_text(tokenizer, encoding="utf-8")
    return folder


def _restore_sines(model: Any) -> None:
    """Restore sinusoidal tables, which the library stores as parameters although they are not trained."""
    for table in model.modules():
        if hasattr(table, "create_weight"):
            table.weight.data.copy_(table.create_weight().to(table.weight.dtype))


def change_config(folder: Path, **fields: Any) -> None:
    """Write fields into config.json."""
    path = folder / "config.json"
    tree = json.loads(path.read_text())
    path.write_text(json.dumps(tree | fields))


BART_SIZES = {
    "d_model": 24,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 3,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 40,
    "decoder_ffn_dim": 40,
    "max_position_embeddings": 64,
    "forced_eos_token_id": None,
}
ENCODER_SIZES = {
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 40,
    "max_position_embeddings": 66,
}


def marian(folder: Path, **more: Any) -> tuple[Path, Any]:
    """Targets start with the padding token, which is the last id; `</s>` and `<unk>` are the first ids."""
    tokenizer = unigram_tokenizer(("</s>", "<unk>", "<pad>"))
    size = size_of(tokenizer)
    settings = {"scale_embedding": True, "activation_function": "swish", **BART_SIZES, **more}
    ids = {"pad_token_id": 2, "decoder_start_token_id": 2, "eos_token_id": 0, "bos_token_id": None}
    config = transformers.MarianConfig(vocab_size=size, **ids, **settings)
    model = transformers.MarianMTModel(config)
    return write_folder(folder, model, tokenizer), model


def pegasus(folder: Path) -> tuple[Path, Any]:
    tokenizer = unigram_tokenizer(("<pad>", "</s>", "<unk>"), "$A </s>")
    config = transformers.PegasusConfig(vocab_size=size_of(tokenizer), scale_embedding=True, **BART_SIZES)
    model = transformers.PegasusForConditionalGeneration(config)
    return write_folder(folder, model, tokenizer), model


def bart(folder: Path) -> tuple[Path, Any]:
    """Sources are framed by `<s>` and `</s>`; targets start with `</s>`. Some rows of the model have no token."""
    tokenizer = byte_tokenizer(("<s>", "<pad>", "</s>", "<unk>", "<mask>"), "<s> $A </s>")
    config = transformers.BartConfig(vocab_size=size_of(tokenizer) + 3, **BART_SIZES)
    model = transformers.BartForConditionalGeneration(config)
    return write_folder(folder, model, tokenizer), model


def mbart(folder: Path) -> tuple[Path, Any]:
    tokenizer = byte_tokenizer(("<s>", "<pad>", "</s>", "<unk>", "de_DE", "en_XX"), "$A </s> en_XX")
    config = transformers.MBartConfig(vocab_size=size_of(tokenizer), decoder_start_token_id=4, **BART_SIZES)
    model = transformers.MBartForConditionalGeneration(config)
    return write_folder(folder, model, tokenizer), model


def m2m_100(folder: Path) -> tuple[Path, Any]:
    """Like NLLB: a source starts with the tag of its language; a target starts with `</s>` and a tag."""
    tokenizer = byte_tokenizer(("<s>", "<pad>", "</s>", "<unk>", "deu_Latn", "eng_Latn"), "eng_Latn $A </s>")
    config = transformers.M2M100Config(vocab_size=size_of(tokenizer), **BART_SIZES)
    model = transformers.M2M100ForConditionalGeneration(config)
    return write_folder(folder, model, tokenizer), model


def led(folder: Path) -> tuple[Path, Any]:
    """Sources are read in windows; they may be longer than targets."""
    tokenizer = byte_tokenizer(("<s>", "<pad>", "</s>", "<unk>", "<mask>"), "<s> $A </s>")
    lengths = {"max_encoder_position_embeddings": 96, "max_decoder_position_embeddings": 40}
    settings: dict[str, Any] = {**BART_SIZES, **lengths, "attention_window": [4, 8]}
    del settings["max_position_embeddings"]
    config = transformers.LEDConfig(vocab_size=size_of(tokenizer), **settings)
    model = transformers.LEDForConditionalGeneration(config)
    return write_folder(folder, model, tokenizer), model


def t5(folder: Path, **more: Any) -> tuple[Path, Any]:
    tokenizer = unigram_tokenizer(("<pad>", "</s>", "<unk>", "<extra_id_0>"), "$A </s>")
    settings: dict[str, Any] = {"d_model": 24, "d_kv": 6, "d_ff": 40, "num_layers": 2, "num_heads": 3}
    settings |= {"decoder_start_token_id": 0, "relative_attention_num_buckets": 8}
    settings |= {"relative_attention_max_distance": 20}
    config = transformers.T5Config(vocab_size=size_of(tokenizer) + 5, **settings | more)
    model = transformers.T5ForConditionalGeneration(config)
    # T5 does not scale its attention scores: larger weights cause larger rounding errors in float32.
    return write_folder(folder, model, tokenizer, std=0.1), model


def t5_untied(folder: Path, declared: bool) -> tuple[Path, Any]:
    """v1.1 with a separate output projection. The library writes "tied" to config.json; `declared` corrects that."""
    folder, _ = t5(folder, feed_forward_proj="gated-gelu", tie_word_embeddings=False)
    tensors = load_file(folder / "model.safetensors")
    tensors["lm_head.weight"] = 0.2 * torch.randn_like(tensors["shared.weight"])
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    if declared:
        change_config(folder, tie_word_embeddings=False)
    return folder, transformers.T5ForConditionalGeneration.from_pretrained(folder).eval()


def gpt2(folder: Path, **more: Any) -> tuple[Path, Any]:
    """One token both starts and ends a text; there is no padding token and no unknown token."""
    tokenizer = byte_tokenizer(("<|endoftext|>",))
    size = {"n_positions": 64, "n_embd": 24, "n_layer": 2, "n_head": 3}
    config = transformers.GPT2Config(vocab_size=size_of(tokenizer), bos_token_id=0, eos_token_id=0, **size | more)
    model = transformers.GPT2LMHeadModel(config)
    return write_folder(folder, model, tokenizer), model


LLAMA_SIZES = {
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}


def llama(folder: Path, **more: Any) -> tuple[Path, Any]:
    tokenizer = byte_tokenizer(("<unk>", "<s>", "</s>"), "<s> $A")
    config = transformers.LlamaConfig(vocab_size=size_of(tokenizer), **LLAMA_SIZES | more)
    model = transformers.LlamaForCausalLM(config)
    return write_folder(folder, model, tokenizer), model


def like_llama(folder: Path, kind: str, **more: Any) -> tuple[Path, Any]:
    """Mistral, Qwen or Gemma."""
    tokenizer = byte_tokenizer(("<unk>", "<s>", "</s>"), "<s> $A")
    ids = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": None}
    settings: dict[str, Any] = {**LLAMA_SIZES, **ids, **more}
    config = getattr(transformers, f"{kind}Config")(vocab_size=size_of(tokenizer), **settings)
    model = getattr(transformers, f"{kind}ForCausalLM")(config)
    return write_folder(folder, model, tokenizer), model


mistral = partial(like_llama, kind="Mistral", sliding_window=None)
qwen2 = partial(like_llama, kind="Qwen2")
qwen3 = partial(like_llama, kind="Qwen3", head_dim=6)
gemma = partial(like_llama, kind="Gemma", head_dim=4)
gemma2 = partial(like_llama, kind="Gemma2", head_dim=4, query_pre_attn_scalar=4, sliding_window=4, num_hidden_layers=3)


def gpt_neox(folder: Path, **more: Any) -> tuple[Path, Any]:
    """One token both starts and ends a text; a quarter of the features is rotated."""
    tokenizer = byte_tokenizer(("<|endoftext|>",))
    sizes = {name: value for name, value in LLAMA_SIZES.items() if name != "num_key_value_heads"}
    settings: dict[str, Any] = {**sizes, "num_attention_heads": 3, "bos_token_id": 0, "eos_token_id": 0, **more}
    config = transformers.GPTNeoXConfig(vocab_size=size_of(tokenizer), **settings)
    model = transformers.GPTNeoXForCausalLM(config)
    return write_folder(folder, model, tokenizer), model


def opt(folder: Path) -> tuple[Path, Any]:
    """Positions start at row 2; `</s>` both starts and ends a text."""
    tokenizer = byte_tokenizer(("<s>", "<pad>", "</s>", "<unk>"), "</s> $A")
    sizes = {"hidden_size": 24, "num_hidden_layers": 2, "ffn_dim": 40, "num_attention_heads": 3}
    config = transformers.OPTConfig(vocab_size=size_of(tokenizer), max_position_embeddings=64, **sizes)
    model = transformers.OPTForCausalLM(config)
    return write_folder(folder, model, tokenizer), model


def bloom(folder: Path, heads: int = 4) -> tuple[Path, Any]:
    tokenizer = byte_tokenizer(("<unk>", "<s>", "</s>", "<pad>"))
    sizes = {"hidden_size": 24, "n_layer": 2, "n_head": heads, "pad_token_id": 3}
    config = transformers.BloomConfig(vocab_size=size_of(tokenizer), **sizes)
    model = transformers.BloomForCausalLM(config)
    return write_folder(folder, model, tokenizer), model


def encoder(folder: Path, kind: str, head: str, **more: Any) -> tuple[Path, Any]:
    """BERT or a relative with the given head."""
    if kind in ("Longformer", "Roberta", "XLMRoberta", "Camembert"):
        make = unigram_tokenizer if kind in ("XLMRoberta", "Camembert") else byte_tokenizer
        tokenizer = make(("<s>", "<pad>", "</s>", "<unk>", "<mask>"), "<s> $A </s>")
        ids = {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2, "type_vocab_size": 1}
        ids |= {"attention_window": 8} if kind == "Longformer" else {}
    else:
        tokenizer = wordpiece_tokenizer(("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"), "[CLS] $A [SEP]")
        ids = {"pad_token_id": 0}
    if kind == "BigBird":
        ids |= {"block_size": 4, "num_random_blocks": 1, "bos_token_id": 2, "eos_token_id": 3, "sep_token_id": 3}
    settings: dict[str, Any] = {**ENCODER_SIZES, **ids, **more}
    if kind == "DistilBert":
        settings["hidden_dim"] = settings.pop("intermediate_size")
    if kind == "RoFormer":
        settings |= {"num_attention_heads": 2}
    if kind == "FNet":
        del settings["num_attention_heads"]
    if kind == "Nystromformer":
        settings |= {"conv_kernel_size": 3, "bos_token_id": None, "eos_token_id": None, **more}
    config = getattr(transformers, f"{kind}Config")(vocab_size=size_of(tokenizer), **settings)
    if head in ("ForSequenceClassification", "ForTokenClassification"):
        config.id2label, config.label2id = {0: "bad", 1: "so-so", 2: "good"}, {"bad": 0, "so-so": 1, "good": 2}
    model = getattr(transformers, kind + head)(config)
    return write_folder(folder, model, tokenizer), model


def reformer(folder: Path, axial: bool = False) -> tuple[Path, Any]:
    """Local and LSH layers; texts beyond 24 tokens are hashed. The library does not add the bias of its head."""
    tokenizer = byte_tokenizer(("<unk>", "<s>", "</s>", "<pad>"))
    settings: dict[str, Any] = {"hidden_size": 24, "num_attention_heads": 3, "attention_head_size": 8}
    settings |= {"feed_forward_size": 40, "attn_layers": ["local", "lsh", "local"], "is_decoder": True}
    settings |= {"local_attn_chunk_length": 4, "lsh_attn_chunk_length": 24, "num_buckets": 2, "num_hashes": 1}
    settings |= {"max_position_embeddings": 96, "axial_pos_embds": axial, "pad_token_id": 3, "bos_token_id": 1}
    settings |= {"axial_pos_shape": [8, 12], "axial_pos_embds_dim": [10, 14]}
    config = transformers.ReformerConfig(vocab_size=size_of(tokenizer), **settings)
    model = transformers.ReformerModelWithLMHead(config)
    write_folder(folder, model, tokenizer)
    with torch.no_grad():
        model.lm_head.bias.zero_()
    model.save_pretrained(folder)
    return folder, model


def same_vocabulary(first: Path, second: Path) -> None:
    """Require the same ids of special tokens, and the same files of the tokenizer."""
    configs = [json.loads((folder / "config.json").read_text()) for folder in (first, second)]
    numbers = [{name: tree[name] for name in tree if name.endswith("_token_id")} for tree in configs]
    assert numbers[0].items() <= numbers[1].items()
    assert all(value is None for name, value in numbers[1].items() if name not in numbers[0])
    assert configs[0]["vocab_size"] == configs[1]["vocab_size"]
    for name in KEPT:
        if (first / name).exists():
            assert (second / name).read_bytes() == (first / name).read_bytes(), name
