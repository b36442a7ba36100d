"""Folders with SentencePiece models: ids, decoded texts and searches are those of transformers and sentencepiece."""

import random
from pathlib import Path
from typing import Any

import hf_folders as their
import pytest
import spm_folders as folders
import torch
import transformers
from engine_models import run_alone
from test_hf_import import same_searches, to_theirs

from allyouneed.folder import load_folder
from allyouneed.interop.ctranslate2.export import export_folder as ctranslate2_folder
from allyouneed.interop.hf.export import export_folder
from allyouneed.interop.hf.load import Imported, import_folder, read_folder
from allyouneed.interop.onnx.export import export_folder as onnx_folder
from allyouneed.pipeline import load
from allyouneed.text.specials import EOS, UNK
from allyouneed.text.tokenizer import Tokenizer

pytestmark = [
    pytest.mark.no_shapes,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning"),
]
COUNT = 400


@pytest.fixture(scope="module")
def opus(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any, Imported]:
    folder, model = folders.opus(tmp_path_factory.mktemp("opus") / "theirs")
    return folder, model, read_folder(folder)


@pytest.fixture(scope="module")
def t5(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any, Imported]:
    folder, model = folders.t5(tmp_path_factory.mktemp("t5") / "theirs")
    return folder, model, read_folder(folder)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any, Imported]:
    folder, model = folders.llama(tmp_path_factory.mktemp("llama") / "theirs")
    return folder, model, read_folder(folder)


def random_ids(read: Imported, most: int) -> list[list[int]]:
    """Return random ids that have names, special ones excepted."""
    dice, target = random.Random(3), read.codec.target
    assert target is not None
    usable = [number for number in range(target.size) if number not in target.controls]
    return [[dice.choice(usable) for _ in range(dice.randint(0, most))] for _ in range(COUNT)]


def test_opus_texts(opus: tuple[Path, Any, Imported]) -> None:
    """Each side has its own model, pieces that the vocabulary lacks are unknown, and tags are tokens."""
    folder, _, read = opus
    tokenizer: Any = transformers.MarianTokenizer.from_pretrained(folder)
    texts = folders.nasty_texts(COUNT)
    sources = read.codec.encode_sources(texts)
    assert [to_theirs(read, ids) for ids in sources] == [tokenizer(text).input_ids for text in texts]
    targets = [to_theirs(read, read.codec.encode_target(text)) for text in texts]
    assert targets == [tokenizer(text_target=text).input_ids for text in texts]
    assert any(UNK in ids for ids in sources)
    for ids in random_ids(read, 12):
        assert read.codec.decode_target(ids) == tokenizer.decode(to_theirs(read, ids), skip_special_tokens=True)


def searches(read: Imported, theirs: Any, texts: list[str]) -> None:
    """Require the same greedy and beam searches, in float64."""
    sources = read.codec.encode_sources(texts)
    longest = max(map(len, sources))
    source_BS = torch.tensor([[*ids, *[0] * (longest - len(ids))] for ids in sources])
    mask_BS = torch.tensor([[n < len(ids) for n in range(longest)] for ids in sources])
    read.model.double()
    same_searches(read, theirs.double(), source_BS, mask_BS, sources)


def test_opus_searches(opus: tuple[Path, Any, Imported]) -> None:
    _, theirs, read = opus
    searches(read, theirs, [*their.SENTENCES, ">>de<< the cat"])


def test_an_opus_folder_translates(opus: tuple[Path, Any, Imported], tmp_path: Path) -> None:
    folder, theirs, read = opus
    import_folder(folder, tmp_path / "ours")
    bundle = load_folder(tmp_path / "ours")
    assert bundle.recipe["decode"]["beam"] == 3
    texts = folders.nasty_texts(20)
    assert bundle.codec.encode_sources(texts) == read.codec.encode_sources(texts)
    tokenizer: Any = transformers.MarianTokenizer.from_pretrained(folder)
    batch = tokenizer(their.SENTENCES[:2], padding=True, return_tensors="pt")
    pad = theirs.config.pad_token_id
    settings = {"max_new_tokens": 12, "num_beams": 1, "bad_words_ids": [[pad]], "do_sample": False}
    right = tokenizer.batch_decode(theirs.float().generate(**batch, **settings), skip_special_tokens=True)
    assert load(tmp_path / "ours").translate(their.SENTENCES[:2], beam=1, max_length=12) == right


def test_t5_texts(t5: tuple[Path, Any, Imported]) -> None:
    folder, _, read = t5
    data = (folder / "spiece.model").read_bytes()
    right = folders.processor(data)
    texts = folders.nasty_texts(COUNT)
    assert [to_theirs(read, read.codec.encode_source(text)) for text in texts] == [
        [*right.encode(text), 1] for text in texts
    ]
    tokenizer: Any = transformers.T5Tokenizer.from_pretrained(folder)
    for text in [*their.TEXTS, *their.SENTENCES]:
        assert to_theirs(read, read.codec.encode_source(text)) == tokenizer(text).input_ids
    for number in range(3):
        theirs = tokenizer.convert_tokens_to_ids(f"<extra_id_{number}>")
        name = read.codec.both()[1].names([read.vocabulary.ours[theirs]])
        assert name == [f"< <extra_id_{number}> >"]
    for ids in random_ids(read, 12):
        numbers = to_theirs(read, ids)
        assert read.codec.decode_target(ids) == right.decode(numbers)


def test_t5_searches(t5: tuple[Path, Any, Imported]) -> None:
    _, theirs, read = t5
    searches(read, theirs, their.SENTENCES)


def test_llama_texts(llama: tuple[Path, Any, Imported]) -> None:
    folder, _, read = llama
    right = folders.processor((folder / "tokenizer.model").read_bytes())
    texts = folders.nasty_texts(COUNT)
    assert [to_theirs(read, read.codec.encode_prompt(text)) for text in texts] == [
        [1, *right.encode(text)] for text in texts
    ]
    tokenizer: Any = transformers.LlamaTokenizer.from_pretrained(folder)
    for text in [*their.TEXTS, *their.SENTENCES, "Größe 😀", "a  b "]:
        ids = read.codec.encode_prompt(text)
        assert to_theirs(read, ids) == tokenizer(text).input_ids
        assert read.codec.decode_target(ids) == tokenizer.decode(tokenizer(text).input_ids, skip_special_tokens=True)
    for ids in random_ids(read, 12):
        assert read.codec.decode_target(ids) == right.decode(to_theirs(read, ids))


def test_llama_generates(llama: tuple[Path, Any, Imported], tmp_path: Path) -> None:
    folder, theirs, _ = llama
    import_folder(folder, tmp_path / "ours")
    pipeline = load(tmp_path / "ours")
    tokenizer: Any = transformers.LlamaTokenizer.from_pretrained(folder)
    for prompt in ["the cat", "Größe 😀", "a"]:
        batch = tokenizer(prompt, return_tensors="pt", return_token_type_ids=False)
        given = batch.input_ids.shape[1]
        found = theirs.generate(**batch, max_new_tokens=10, do_sample=False, bad_words_ids=[[1]], pad_token_id=2)
        right = folders.processor((folder / "tokenizer.model").read_bytes())
        whole, before = right.decode(found[0].tolist()), right.decode(found[0, :given].tolist())
        assert pipeline.generate(prompt, temperature=0, max_length=10) == whole[len(before) :]


def test_a_folder_that_states_no_begin_gets_none(tmp_path: Path) -> None:
    folder, _ = folders.llama(tmp_path / "theirs", bos=False)
    read = read_folder(folder)
    assert not read.codec.bos
    tokenizer: Any = transformers.LlamaTokenizer.from_pretrained(folder)
    assert to_theirs(read, read.codec.encode_prompt("the cat")) == tokenizer("the cat").input_ids


def test_a_chat_is_read_as_in_transformers(llama: tuple[Path, Any, Imported]) -> None:
    folder, _, read = llama
    tokenizer: Any = transformers.LlamaTokenizer.from_pretrained(folder)
    chat = [{"role": "user", "content": "is the cat fine?"}, {"role": "assistant", "content": " it is"}]
    template, target = read.codec.chat, read.codec.target
    assert template is not None
    assert target is not None
    right = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)
    assert to_theirs(read, template.encode(target, chat)) == right


def test_places_in_the_text(opus: tuple[Path, Any, Imported], llama: tuple[Path, Any, Imported]) -> None:
    text = ">>de<<the cat 😀 ran"
    for read in (opus[2], llama[2]):
        tokenizer = read.codec.source or read.codec.target
        assert tokenizer is not None
        spans = tokenizer.spans(text)
        assert [token for token, _, _ in spans] == tokenizer.encode(text)
        assert "".join(text[start:end] for _, start, end in spans) == text


def test_text_is_never_a_control_symbol(t5: tuple[Path, Any, Imported], llama: tuple[Path, Any, Imported]) -> None:
    for read in (t5[2], llama[2]):
        tokenizer = read.codec.target
        assert tokenizer is not None
        for text in ["</s>", "<pad>", "<extra_id_0>", "<s>", "< bos >", "a\ud800b"]:
            assert not set(tokenizer.encode(text)) & (tokenizer.controls - {UNK})
        again = Tokenizer.from_json(tokenizer.to_json(), "here")
        assert again.encode("the <sep> cat") == tokenizer.encode("the <sep> cat")
        assert EOS not in again.encode("</s>")


@pytest.mark.parametrize("name", ["opus", "t5", "llama"])
def test_an_export_is_the_original(name: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """The exported folder has the original files, and transformers generates the same from it."""
    folder, theirs, _ = request.getfixturevalue(name)
    import_folder(folder, tmp_path / "ours")
    export_folder(load_folder(tmp_path / "ours"), tmp_path / "again")
    their.same_vocabulary(folder, tmp_path / "again")
    kinds: dict[str, tuple[Any, Any]] = {
        "opus": (transformers.MarianTokenizer, transformers.MarianMTModel),
        "t5": (transformers.T5Tokenizer, transformers.T5ForConditionalGeneration),
        "llama": (transformers.LlamaTokenizer, transformers.LlamaForCausalLM),
    }
    tokenizer = kinds[name][0].from_pretrained(tmp_path / "again")
    again = kinds[name][1].from_pretrained(tmp_path / "again").eval()
    batch = tokenizer("the cat ran", return_tensors="pt", return_token_type_ids=False)
    settings = {"max_new_tokens": 8, "do_sample": False, "num_beams": 1}
    found = [model.float().generate(**batch, **settings).tolist() for model in (theirs, again)]
    assert found[0] == found[1]


@pytest.mark.parametrize(("name", "engine"), [("opus", "ctranslate2"), ("llama", "ctranslate2"), ("opus", "onnx")])
def test_exports_for_engines_run_without_our_package(
    name: str, engine: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """The program of the README splits texts with sentencepiece, and prints what we translate or generate."""
    pytest.importorskip("onnxruntime" if engine == "onnx" else engine, reason=f"{engine} is not installed (extra: dev)")
    folder, _, _ = request.getfixturevalue(name)
    import_folder(folder, tmp_path / "ours")
    bundle, pipeline = load_folder(tmp_path / "ours"), load(tmp_path / "ours")
    text = ">>de<< the cat ran after the dog" if name == "opus" else "the cat"
    if engine == "onnx":
        onnx_folder(bundle, tmp_path / "out")
        right = pipeline.translate([text], beam=1, max_length=100)[0]
    elif name == "opus":
        bundle.recipe["decode"]["beam"] = 1
        ctranslate2_folder(bundle, tmp_path / "out")
        right = pipeline.translate([text], beam=1, max_length=256)[0]
    else:
        ctranslate2_folder(bundle, tmp_path / "out")
        right = text + pipeline.generate(text, temperature=0, max_length=100)
    packages = {"ctranslate2": ["ctranslate2", "yaml"], "onnx": ["onnxruntime"]}[engine]
    (tmp_path / "alone").mkdir()
    said = run_alone(tmp_path / "out", f"{text}\n", [*packages, "sentencepiece", "numpy"], tmp_path / "alone")
    assert said == f"{right}\n"
