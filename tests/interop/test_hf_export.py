"""Our models as Hugging Face folders: transformers loads them and computes the same; others are refused."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import hf_folders as their
import pytest
import torch
import transformers

from allyouneed.config import parse
from allyouneed.decode import SearchConfig, search
from allyouneed.errors import ConfigError, FolderError
from allyouneed.folder import Bundle, load_folder
from allyouneed.interop.hf import files
from allyouneed.interop.hf.export import export_folder
from allyouneed.interop.hf.load import import_folder, read_folder
from allyouneed.models import MODELS, Model
from allyouneed.shortlist.table import SPECIALS, Shortlist
from allyouneed.sizes import Sizes
from allyouneed.text.codec import Codec
from allyouneed.text.specials import BOS, EOS
from allyouneed.text.tokenizer import TokenizerConfig, train

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")

SMALL = {"width": 24, "hidden": 40, "mixer": {"heads": 3}}
PAIRS = {"type": "encoder-decoder", "encoder_layers": 2, "decoder_layers": 2, **SMALL}
TRANSLATORS: dict[str, tuple[str, dict[str, Any]]] = {
    "as in 2017": ("MarianMTModel", {}),
    "sines first, gelu": (
        "MarianMTModel",
        {"positions": {"type": "sinusoidal", "halves": True}, "feedforward": "gelu"},
    ),
    "with a bias": ("MarianMTModel", {"output_bias": True, "feedforward": "silu"}),
    "pre-norm": ("PegasusForConditionalGeneration", {"norm": "pre"}),
    "more heads to read": ("PegasusForConditionalGeneration", {"norm": "pre", "encoder_mixer": {"heads": 6}}),
    "inclusive": (
        "M2M100ForConditionalGeneration",
        {"norm": "pre", "positions": {"type": "sinusoidal", "inclusive": True, "first": 1}},
    ),
    "learned": (
        "BartForConditionalGeneration",
        {"positions": {"type": "learned", "max_length": 64}, "embedding_norm": True},
    ),
    "learned, pre-norm": (
        "MBartForConditionalGeneration",
        {"positions": {"type": "learned", "max_length": 64}, "embedding_norm": True, "norm": "pre"},
    ),
    "buckets": (
        "T5ForConditionalGeneration",
        {
            "positions": {"type": "t5", "buckets": 8, "max_distance": 20},
            "norm": "pre",
            "normalisation": "rms",
            "feedforward_bias": False,
            "mixer": {"heads": 3, "bias": False},
        },
    ),
}
PLAIN = {"type": "decoder", "layers": 2, "norm": "pre", **SMALL}
ROTARY = {"positions": "rotary", "normalisation": "rms", "feedforward": "swiglu"}
UNBIASED = {**ROTARY, "feedforward_bias": False}
WRITERS: dict[str, tuple[str, dict[str, Any]]] = {
    "sines": ("GPT2LMHeadModel", {"positions": "sinusoidal", "feedforward": "gelu"}),
    "learned, not scaled": (
        "GPT2LMHeadModel",
        {"positions": {"type": "learned", "max_length": 64}, "embedding_scale": False, "feedforward": "gelu-tanh"},
    ),
    "untied": ("GPT2LMHeadModel", {"positions": "sinusoidal", "tied": False}),
    "rotary": ("LlamaForCausalLM", ROTARY),
    "rotary, groups": (
        "LlamaForCausalLM",
        {**ROTARY, "mixer": {"heads": 6, "key_heads": 2, "bias": False}, "tied": False},
    ),
    "rotary, biases of inputs": ("Qwen2ForCausalLM", {**UNBIASED, "mixer": {"heads": 3, "bias": "inputs"}}),
    "rotary, norms of heads": ("Qwen3ForCausalLM", {**UNBIASED, "mixer": {"heads": 3, "head_norm": 1e-6}}),
    "rotary, gelu": ("GemmaForCausalLM", {**UNBIASED, "feedforward": "geglu-tanh"}),
    "rotary, window": ("MistralForCausalLM", {**UNBIASED, "mixer": {"heads": 3, "bias": False, "window": 3}}),
    "rotary, norms around": ("Gemma2ForCausalLM", {**UNBIASED, "feedforward": "geglu-tanh", "norm": "both"}),
    "rotary, layer norms": (
        "GPTNeoXForCausalLM",
        {"positions": {"type": "rotary", "pairs": 3, "base": 500.0}, "parallel": True, "feedforward": "gelu"},
    ),
    "alibi": (
        "BloomForCausalLM",
        {"positions": "alibi", "embedding_norm": True, "feedforward": "gelu-tanh", "hidden": 96, "mixer": {"heads": 4}},
    ),
}


def bundle_of(settings: dict[str, Any], codec: Codec, sizes: Sizes) -> Bundle:
    """Return a model with random weights, far enough from their initial values that every weight matters."""
    model: Model = parse(MODELS[settings["type"]], {"dropout": 0.0, **settings}).build(sizes).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return Bundle(Path("ours"), model, codec, {"decode": {"beam": 3}}, "a card", "0")


def codec_for_pairs(kind: str = "bpe") -> Codec:
    tokenizer = train(their.TEXTS, TokenizerConfig(kind=kind, size=300))  # type: ignore[arg-type]
    return Codec(source=tokenizer, target=tokenizer)


@pytest.mark.parametrize("name", TRANSLATORS)
def test_encoder_decoders(tmp_path: Path, name: str) -> None:
    right, settings = TRANSLATORS[name]
    codec = replace(codec_for_pairs("unigram" if name == "pre-norm" else "bpe"), sentences=2)
    size = codec.both()[0].size
    ours = bundle_of({**PAIRS, **settings}, codec, Sizes(size, size, shared=True))
    (note,) = export_folder(ours, tmp_path / "theirs")
    assert note.startswith(right)
    theirs: Any = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "theirs").eval()
    tokenizer: Any = transformers.AutoTokenizer.from_pretrained(tmp_path / "theirs")
    assert type(theirs).__name__ == right
    batch = tokenizer(their.SENTENCES, padding=True, return_tensors="pt")
    sources = codec.encode_sources(their.SENTENCES)
    assert [row[: len(ids)] for row, ids in zip(batch.input_ids.tolist(), sources, strict=True)] == sources
    target_BT = torch.tensor(
        [[BOS, *codec.encode_target(text)[:5]] for text in their.SENTENCES[::-1] if len(text) > 9] * 2
    )[:3]
    target_BT = target_BT[[0, 1, 0]]
    with torch.no_grad():
        state = ours.model.condition(batch.input_ids, batch.attention_mask.bool())
        our_logits, _ = ours.model.step(target_BT, state)
        arguments = {name: batch[name] for name in ("input_ids", "attention_mask")}
        their_logits = theirs(**arguments, decoder_input_ids=target_BT).logits
    torch.testing.assert_close(our_logits, their_logits, rtol=0, atol=1e-5)
    for beam in (1, 4):
        found = search(ours.model, sources, SearchConfig(beam=beam, length_penalty=0.0, max_length=10))
        generated = theirs.generate(
            **arguments,
            num_beams=beam,
            length_penalty=0.0,
            max_new_tokens=10,
            do_sample=False,
            bad_words_ids=[[0], [1]],
        )
        for (best,), row in zip(found, generated.tolist(), strict=True):
            whole = [*best.ids, EOS] if best.finished else best.ids
            assert row[1 : 1 + len(whole)] == whole
            assert tokenizer.decode(row, skip_special_tokens=True) == codec.decode_target(best.ids)
    back = read_folder(tmp_path / "theirs")
    with torch.no_grad():
        state = back.model.condition(batch.input_ids, batch.attention_mask.bool())
        torch.testing.assert_close(back.model.step(target_BT, state)[0], our_logits, rtol=0, atol=1e-5)
    assert back.codec.encode_sources(their.SENTENCES) == sources
    assert back.codec.sentences == 2


@pytest.mark.parametrize("name", WRITERS)
def test_decoders(tmp_path: Path, name: str) -> None:
    right, settings = WRITERS[name]
    tokenizer = train(
        their.TEXTS, TokenizerConfig(kind="characters" if name == "alibi" else "bpe", size=300), sentences=False
    )
    ours = bundle_of({**PLAIN, **settings}, Codec(target=tokenizer), Sizes(tokenizer.size, tokenizer.size, shared=True))
    export_folder(ours, tmp_path / "theirs")
    theirs: Any = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "theirs").eval()
    assert type(theirs).__name__ == right
    read: Any = transformers.AutoTokenizer.from_pretrained(tmp_path / "theirs")
    row = [BOS, *tokenizer.encode(their.SENTENCES[0])]
    assert read(their.SENTENCES[0]).input_ids == row
    ids = torch.tensor([row])
    back = read_folder(tmp_path / "theirs")
    with torch.no_grad():
        logits, _ = ours.model.step(ids, ours.model.start())
        torch.testing.assert_close(logits, theirs(ids).logits, rtol=0, atol=1e-5)
        torch.testing.assert_close(back.model.step(ids, back.model.start())[0], logits, rtol=0, atol=1e-5)


ANSWERS: dict[str, tuple[str, dict[str, Any]]] = {
    "relu": ("DistilBertForSequenceClassification", {"pool": "first", "transform": "relu", "epsilon": 1e-12}),
    "rotary": (
        "RoFormerForSequenceClassification",
        {"pool": "first", "transform": "function", "positions": "rotary", "mixer": {"heads": 2}},
    ),
    "rotary tags": ("RoFormerForTokenClassification", {"pool": "none", "positions": "rotary", "mixer": {"heads": 2}}),
    "classes": ("BertForSequenceClassification", {"pool": "first", "transform": "tanh"}),
    "tags": ("BertForTokenClassification", {"pool": "none", "positions": {"type": "learned", "max_length": 64}}),
    "segments": (
        "BertForSequenceClassification",
        {"pool": "first", "transform": "tanh", "segments": 2, "embedding_scale": False},
    ),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_encoders(tmp_path: Path, name: str) -> None:
    right, settings = ANSWERS[name]
    tokenizer = train(their.TEXTS, TokenizerConfig(kind="words"))
    codec = Codec(source=tokenizer, classes=("a", "b", "c"), per_position=settings["pool"] == "none")
    shape = {"type": "encoder", "layers": 2, "embedding_norm": True, "feedforward": "gelu", **SMALL}
    ours = bundle_of({**shape, **settings}, codec, Sizes(tokenizer.size, 3))
    export_folder(ours, tmp_path / "theirs")
    kind = getattr(transformers, "AutoModel" + right[right.rindex("For") :])
    theirs: Any = kind.from_pretrained(tmp_path / "theirs").eval()
    assert theirs.config.id2label == {0: "a", 1: "b", 2: "c"}
    (row,) = codec.encode_sources(their.SENTENCES[:1])
    ids = torch.tensor([row])
    read: Any = transformers.AutoTokenizer.from_pretrained(tmp_path / "theirs")
    assert read(their.SENTENCES[0]).input_ids == row
    model: Any = ours.model
    with torch.no_grad():
        torch.testing.assert_close(model.classify(ids), theirs(ids).logits, rtol=0, atol=1e-5)


ROUND_TRIPS = [their.marian, their.bart, their.m2m_100, their.t5, their.gpt2, their.llama, their.bloom]
ROUND_TRIPS += [their.qwen2, their.qwen3, their.gemma, their.gemma2, their.gpt_neox, their.opt]


@pytest.mark.parametrize("make", ROUND_TRIPS)
def test_round_trip(tmp_path: Path, make: Any) -> None:
    """Exporting an imported model keeps its ids, its files and its logits."""
    folder, theirs = make(tmp_path / "theirs")
    import_folder(folder, tmp_path / "ours")
    export_folder(load_folder(tmp_path / "ours"), tmp_path / "again")
    their.same_vocabulary(folder, tmp_path / "again")
    (name,) = json.loads((tmp_path / "again" / "config.json").read_text())["architectures"]
    again: Any = getattr(transformers, name).from_pretrained(tmp_path / "again").eval()
    ids = torch.tensor([[5, 7, 4, 9]])
    arguments = {"input_ids": ids} | ({"decoder_input_ids": ids} if theirs.config.is_encoder_decoder else {})
    with torch.no_grad():
        torch.testing.assert_close(again(**arguments).logits, theirs.float()(**arguments).logits, rtol=0, atol=1e-5)
    first, second = read_folder(folder), read_folder(tmp_path / "again")
    assert second.vocabulary.rows == first.vocabulary.rows
    assert second.codec.encode_prompt("the cat sat") == first.codec.encode_prompt("the cat sat")


def test_a_token_that_pads_and_begins_is_exported_as_it_begins(tmp_path: Path) -> None:
    """Training changes the vector of BOS, which is that of padding in Marian: the token is only ever read as BOS."""
    folder, _ = their.marian(tmp_path / "theirs")
    import_folder(folder, tmp_path / "ours")
    bundle = load_folder(tmp_path / "ours")
    model: Any = bundle.model
    with torch.no_grad():
        model.source.weight_VD[BOS] += 1.0
    export_folder(bundle, tmp_path / "again")
    again: Any = transformers.MarianMTModel.from_pretrained(tmp_path / "again").eval()
    source, begin = torch.tensor([[5, 7, EOS]]), torch.tensor([[BOS, 6]])
    place: Any = bundle.codec.origin and bundle.codec.origin.theirs
    theirs = [torch.tensor([[place[number] for number in ids[0].tolist()]]) for ids in (source, begin)]
    with torch.no_grad():
        ours, _ = model.step(begin, model.condition(source))
        right = again(input_ids=theirs[0], decoder_input_ids=theirs[1]).logits
    order = list(range(4, len(place)))
    torch.testing.assert_close(ours[..., order], right[..., [place[n] for n in order]], rtol=0, atol=1e-5)


@pytest.mark.parametrize("make", [their.t5, their.gpt2, their.llama, their.bart])
def test_a_trained_import_is_exported(tmp_path: Path, make: Any) -> None:
    """Ids that hide a copy need an output bias; training does not change it where the original has none."""
    folder, theirs = make(tmp_path / "theirs")
    import_folder(folder, tmp_path / "ours")
    bundle = load_folder(tmp_path / "ours")
    model: Any = bundle.model
    ids = torch.tensor([[5, 7, 6, 9]])
    state = model.condition(ids) if theirs.config.is_encoder_decoder else model.start()
    model.step(ids, state)[0].log_softmax(-1)[..., 8].sum().backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.sub_(0.01 * parameter.grad)
    export_folder(bundle, tmp_path / "again")
    again: Any = type(theirs).from_pretrained(tmp_path / "again").eval()
    place: Any = bundle.codec.origin and bundle.codec.origin.theirs
    numbers = torch.tensor([[place[number] for number in ids[0].tolist()]])
    arguments = {"input_ids": numbers} | ({"decoder_input_ids": numbers} if theirs.config.is_encoder_decoder else {})
    with torch.no_grad():
        state = model.condition(ids) if theirs.config.is_encoder_decoder else model.start()
        ours, right = model.step(ids, state)[0], again(**arguments).logits
    order = range(4, len(place))
    torch.testing.assert_close(ours[..., order], right[..., [place[n] for n in order]], rtol=0, atol=1e-5)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "mixer": ({**PLAIN, "mixer": {"type": "window", "heads": 3}}, r"model.mixer: window; only softmax"),
    "positions": (
        {**PLAIN, "positions": "shaw"},
        r"model.positions=shaw with model.norm=pre has no counterpart .* of type decoder; .* rotary with pre",
    ),
    "norm": ({**PLAIN, "norm": "post"}, r"model.norm=post has no counterpart"),
    "normalisation": ({**PLAIN, "normalisation": "rms"}, r"model.normalisation: rms; gpt2 of transformers has layer"),
    "feedforward": ({**PLAIN, "feedforward": "swiglu"}, r"model.feedforward: swiglu; should be one of relu, gelu"),
    "rotary": (
        {**PLAIN, "positions": "rotary", "normalisation": "rms"},
        r"model.feedforward: relu; should be swiglu, as in Llama",
    ),
    "pairs": (
        {**PLAIN, **ROTARY, "positions": {"type": "rotary", "pairs": 2}},
        r"partial_rotary_factor: 0.56.*; only 1.0 is supported",
    ),
    "score_cap": ({**PLAIN, **ROTARY, "mixer": {"heads": 3, "score_cap": 2.0}}, r"model.mixer: .*'score_cap': 2.0"),
    "feedforward_bias": (
        {**PLAIN, **ROTARY, "mixer": {"heads": 3, "bias": "inputs"}},
        r"model.feedforward_bias: True; qwen2 of transformers has False",
    ),
    "embedding_norm": (
        {**PLAIN, **ROTARY, "embedding_norm": True},
        r"model.embedding_norm: True; llama of transformers has False",
    ),
    "bias": ({**PLAIN, **ROTARY, "output_bias": True}, r"model.output_bias: llama has no output bias"),
    "tied": ({**PAIRS, "tied": False}, r"model.tied: False; marian of transformers has True"),
    "cross": ({**PAIRS, "cross": {"heads": 6}}, r"model.cross: .*'heads': 6"),
    "widths": ({**PAIRS, "mixer": {"heads": 3, "key_width": 4}}, r"model.mixer: .*'key_width': 4"),
    "model": ({"type": "seq2seq", "width": 24}, r"model.type: seq2seq has no counterpart"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_unsupported_settings_are_named(tmp_path: Path, name: str) -> None:
    settings, message = REFUSED[name]
    codec = codec_for_pairs()
    size = codec.both()[0].size
    with pytest.raises(ConfigError, match=message):
        export_folder(bundle_of(settings, codec, Sizes(size, size, shared=True)), tmp_path / "theirs")
    assert not (tmp_path / "theirs").exists()


def test_leaving_out_a_shortlist_is_reported(tmp_path: Path) -> None:
    codec = codec_for_pairs()
    size = codec.both()[0].size
    some = Shortlist(torch.arange(SPECIALS), torch.arange(0), torch.zeros(size, dtype=torch.long))
    bundle = replace(bundle_of(PAIRS, codec, Sizes(size, size, shared=True)), shortlist=some)
    assert export_folder(bundle, tmp_path / "theirs")[1:] == [
        "the shortlist is left out: transformers has no shortlists"
    ]


def test_an_exported_folder_refers_to_no_code(tmp_path: Path) -> None:
    codec = codec_for_pairs()
    size = codec.both()[0].size
    export_folder(bundle_of(PAIRS, codec, Sizes(size, size, shared=True)), tmp_path / "theirs")
    assert {path.suffix for path in (tmp_path / "theirs").iterdir()} <= {".json", ".safetensors", ".md"}
    assert "auto_map" not in json.loads((tmp_path / "theirs" / "config.json").read_text())


def test_large_models_are_written_in_several_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, theirs = their.llama(tmp_path / "theirs")
    import_folder(folder, tmp_path / "ours")
    monkeypatch.setattr(files, "LARGEST_SHARD", 5000)
    for _ in range(2):  # the second one replaces the first
        export_folder(load_folder(tmp_path / "ours"), tmp_path / "again")
    shards = sorted(tmp_path.glob("again/model-*.safetensors"))
    assert len(shards) > 2
    assert not (tmp_path / "again" / "model.safetensors").exists()
    again: Any = transformers.LlamaForCausalLM.from_pretrained(tmp_path / "again").eval()
    ids = torch.tensor([[5, 7, 4, 9]])
    with torch.no_grad():
        torch.testing.assert_close(again(ids).logits, theirs.float()(ids).logits, rtol=0, atol=1e-5)
    first, second = read_folder(folder).model, read_folder(tmp_path / "again").model
    assert all(torch.equal(one, other) for one, other in zip(first.parameters(), second.parameters(), strict=True))
    shards[1].unlink()
    with pytest.raises(FolderError, match=f"{shards[1].name} is missing"):
        read_folder(tmp_path / "again")
