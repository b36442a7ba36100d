"""Small Hugging Face folders whose tokenizers are SentencePiece models, trained here by `sentencepiece` itself."""

import io
import json
import random
from functools import cache
from pathlib import Path
from typing import Any

import hf_folders as their
import pytest

spm = pytest.importorskip("sentencepiece", reason="sentencepiece is not installed (extra: spm)")
import transformers  # noqa: E402

GERMAN = ["die Katze saß auf der Matte", "ein Hund lief über die Straße", "schönes Wetter heute, nicht wahr?"]
LETTERS = "abcdefghijklmnopqrstuvwxyzäöüß0123456789.,;?'"
# Texts in which normal forms, graphemes, blanks, unknown characters and symbols meet.
PARTS = [
    *("a", "e", "the", "cat", "▁", " ", "  ", "\t", "\n", "\u3000", "\u00a0", "é", "e\u0301", "ﬁ", "ﬁ\u0301", "ß", "Ö"),
    *("A\u030a", "½", "①", "ｶ\uff9e", "\u1112\u1161\u11ab", "你", "😀", "👩\u200d👩", "\u200b", "\ufeff", "\u0000"),
    *("\u0007", "\ufffd", "…", "<sep>", "<0x41>", "İ", "ﷺ", "لا", "\u0651", "ำ", ".", "0", "42", "\u2028", "\u0085"),
    *(">>de<<", ">>xx<<", "<<", "d", "Hund"),
]


def nasty_texts(count: int, seed: int = 1) -> list[str]:
    """Return random texts, and some ordinary ones."""
    dice = random.Random(seed)
    made = ["".join(dice.choice(PARTS) for _ in range(dice.randint(1, 10))) for _ in range(count)]
    return [*made, *their.TEXTS, *GERMAN, ">>de<< the cat", "", " "]


@cache
def trained(kind: str, german: bool = False, **more: Any) -> bytes:
    """Return the bytes of a trained model."""
    lines = [*(GERMAN if german else their.TEXTS), *(f"{a}{b}" for a in LETTERS for b in "et")] * 3
    settings = {"model_type": kind, "vocab_size": 90, "minloglevel": 2, "hard_vocab_limit": False, **more}
    file = io.BytesIO()
    spm.SentencePieceTrainer.train(sentence_iterator=iter(lines), model_writer=file, **settings)
    return file.getvalue()


def processor(data: bytes) -> Any:
    """Return a processor of the package."""
    return spm.SentencePieceProcessor(model_proto=data)


def pieces_of(data: bytes) -> list[str]:
    """Return the pieces of a model."""
    found = processor(data)
    return [found.id_to_piece(number) for number in range(found.get_piece_size())]


def without_tokenizer(folder: Path) -> None:
    """Remove the tokenizer.json that `write_folder` wrote."""
    (folder / "tokenizer.json").unlink()


def opus(folder: Path) -> tuple[Path, Any]:
    """Write a folder like OPUS-MT's: two models, and a vocabulary of both without some pieces, in another order."""
    files = {"source.spm": trained("unigram", bos_id=-1), "target.spm": trained("unigram", german=True, bos_id=-1)}
    both = {piece for data in files.values() for piece in pieces_of(data)} - {"</s>", "<unk>"}
    kept = [piece for number, piece in enumerate(sorted(both)) if number % 17 != 5]
    names = ["</s>", "<unk>", *kept, ">>de<<", "<pad>"]
    last = len(names) - 1
    ids = {"pad_token_id": last, "decoder_start_token_id": last, "eos_token_id": 0, "bos_token_id": 0}
    settings = {"scale_embedding": True, "activation_function": "swish", **their.BART_SIZES}
    config = transformers.MarianConfig(vocab_size=len(names), **ids, **settings)
    model = transformers.MarianMTModel(config)
    their.write_folder(folder, model, "{}")
    without_tokenizer(folder)
    their.change_config(folder, num_beams=3, bad_words_ids=[[last]], max_length=512, _num_labels=3, output_past=True)
    for name, data in files.items():
        (folder / name).write_bytes(data)
    (folder / "vocab.json").write_text(json.dumps({name: number for number, name in enumerate(names)}))
    return folder, model


def t5(folder: Path) -> tuple[Path, Any]:
    """Write a folder like T5's, with a user-defined symbol, three extra ids and rows without a token."""
    data = trained("unigram", pad_id=0, eos_id=1, unk_id=2, bos_id=-1, user_defined_symbols="<sep>")
    settings: dict[str, Any] = {"d_model": 24, "d_kv": 6, "d_ff": 40, "num_layers": 2, "num_heads": 3}
    settings |= {"decoder_start_token_id": 0, "relative_attention_num_buckets": 8}
    config = transformers.T5Config(vocab_size=len(pieces_of(data)) + 8, relative_attention_max_distance=20, **settings)
    model = transformers.T5ForConditionalGeneration(config)
    their.write_folder(folder, model, "{}", std=0.1)
    without_tokenizer(folder)
    (folder / "spiece.model").write_bytes(data)
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "T5Tokenizer", "extra_ids": 3}))
    return folder, model


CHAT = (
    "{{ bos_token }}{% for message in messages %}{{ '[' + message['role'] + '] ' + message['content'] + eos_token }}"
    "{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"
)


def llama(folder: Path, bos: bool = True) -> tuple[Path, Any]:
    """Write a folder like Llama's: BPE with bytes for unknown characters, no normal forms."""
    data = trained(
        "bpe",
        vocab_size=360,
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        split_digits=True,
        user_defined_symbols="<sep>",
    )
    config = transformers.LlamaConfig(vocab_size=len(pieces_of(data)), **their.LLAMA_SIZES)
    model = transformers.LlamaForCausalLM(config)
    their.write_folder(folder, model, "{}")
    without_tokenizer(folder)
    (folder / "tokenizer.model").write_bytes(data)
    names = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    settings = {"tokenizer_class": "LlamaTokenizer", **names, "chat_template": CHAT}
    settings |= {"add_bos_token": True} if bos else {}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder, model
