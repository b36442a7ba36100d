"""Imported Hugging Face folders have the same logits and searches, in float32 and float64."""

import copy
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import hf_folders as their
import pytest
import torch
from torch import Tensor

from allyouneed.decode import SampleConfig, SearchConfig, sample, score, search
from allyouneed.errors import ConfigError
from allyouneed.inference.optimize import optimize_for_inference
from allyouneed.interop.hf.load import Imported, import_folder, read_folder
from allyouneed.mixers.longformer import mark_global
from allyouneed.pipeline import load
from allyouneed.text.specials import BOS, EOS

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")

Maker = Callable[[Path], tuple[Path, Any]]
TRANSLATORS: dict[str, Maker] = {
    "marian": their.marian,
    "marian, relu, not scaled": partial(their.marian, scale_embedding=False, activation_function="relu"),
    "pegasus": their.pegasus,
    "bart": their.bart,
    "mbart": their.mbart,
    "m2m_100": their.m2m_100,
    "led": their.led,
    "t5": their.t5,
    "t5 v1.1": partial(their.t5, feed_forward_proj="gated-gelu", tie_word_embeddings=False),
    "t5 v1.1, untied": partial(their.t5_untied, declared=True),
    "t5 v1.1, untied, declared tied": partial(their.t5_untied, declared=False),
}
WRITERS: dict[str, Maker] = {
    "gpt2": their.gpt2,
    "gpt2, untied": partial(their.gpt2, tie_word_embeddings=False, n_inner=50, activation_function="relu"),
    "llama": their.llama,
    "llama, tied and biased": partial(their.llama, tie_word_embeddings=True, attention_bias=True, mlp_bias=True),
    "llama, wide heads, one of keys": partial(their.llama, head_dim=10, num_key_value_heads=1),
    "llama, positions scaled as in Llama 3.1": partial(
        their.llama,
        rope_parameters={
            "rope_type": "llama3",
            "rope_theta": 10000.0,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 16,
        },
    ),
    "llama, all positions scaled": partial(
        their.llama, rope_parameters={"rope_type": "linear", "factor": 3.0, "rope_theta": 10000.0}
    ),
    "mistral": their.mistral,
    "qwen2": their.qwen2,
    "qwen2, tied": partial(their.qwen2, tie_word_embeddings=True, rope_theta=1e6),
    "qwen3": their.qwen3,
    "qwen3, biased": partial(their.qwen3, attention_bias=True, rms_norm_eps=1e-3),
    "gemma": their.gemma,
    "gemma, wide heads": partial(their.gemma, head_dim=10, num_key_value_heads=1),
    "mistral, window": partial(their.like_llama, kind="Mistral", sliding_window=4),
    "qwen2, window": partial(their.qwen2, use_sliding_window=True, sliding_window=3, max_window_layers=1),
    "gemma2": partial(their.gemma2, attn_logit_softcapping=0.5, final_logit_softcapping=2.0),
    "gemma2, without caps": partial(their.gemma2, attn_logit_softcapping=None, final_logit_softcapping=None),
    "gpt_neox": their.gpt_neox,
    "gpt_neox, sequential": partial(
        their.gpt_neox, use_parallel_residual=False, rotary_pct=0.75, tie_word_embeddings=True
    ),
    "gpt_neox, without biases": partial(their.gpt_neox, attention_bias=False, rotary_pct=1.0, hidden_act="relu"),
    "opt": their.opt,
    "bloom": their.bloom,
    "bloom, 3 heads": partial(their.bloom, heads=3),
    "reformer": their.reformer,
    "reformer, axial": partial(their.reformer, axial=True),
}


def to_theirs(read: Imported, ids: list[int]) -> list[int]:
    """Return the original ids of our ids."""
    found = [read.vocabulary.rows.theirs[number] for number in ids]
    assert None not in found
    return [number for number in found if number is not None]


def same_logits(read: Imported, ours: Tensor, theirs: Tensor, tolerance: float) -> None:
    """Require the same logits for the same tokens, and no probability for ids that the original lacks."""
    rows = read.vocabulary.rows
    place = [read.vocabulary.ours[number] for number in range(rows.size)]
    torch.testing.assert_close(ours[..., place], theirs, rtol=0, atol=tolerance)
    torch.testing.assert_close(ours.log_softmax(-1)[..., place], theirs.log_softmax(-1), rtol=0, atol=10 * tolerance)


@pytest.mark.parametrize("make", TRANSLATORS.values(), ids=TRANSLATORS)
def test_encoder_decoders(tmp_path: Path, make: Maker) -> None:
    folder, theirs = make(tmp_path / "theirs")
    read = read_folder(folder)
    sources = read.codec.encode_sources(their.SENTENCES)
    tokenizer = their.Tokenizer.from_file(str(folder / "tokenizer.json"))
    for ids, text in zip(sources, their.SENTENCES, strict=True):
        whole = tokenizer.encode(text).ids
        if not read.codec.frame and whole[-1] != theirs.config.eos_token_id:
            whole.append(theirs.config.eos_token_id)
        assert to_theirs(read, ids) == whole
    longest = max(map(len, sources))
    source_BS = torch.tensor([[*ids, *[0] * (longest - len(ids))] for ids in sources])
    mask_BS = torch.tensor([[n < len(ids) for n in range(longest)] for ids in sources])
    target_BT = torch.tensor(
        [[BOS, *read.codec.encode_target(text)[:6]] for text in ["the cat and", "a dog ran", "number 42"]]
    )
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.float64, 1e-9)):
        ours_model, their_model = read.model.to(dtype), theirs.to(dtype)
        with torch.no_grad():
            state = ours_model.condition(source_BS, mask_BS)
            ours = ours_model.step(target_BT, state)[0]
            right = their_model(
                input_ids=torch.tensor([to_theirs(read, row) for row in source_BS.tolist()]),
                attention_mask=mask_BS.long(),
                decoder_input_ids=torch.tensor([to_theirs(read, row) for row in target_BT.tolist()]),
            ).logits
        same_logits(read, ours, right, tolerance if dtype is torch.float32 else float64_tolerance(theirs))
    same_searches(read, theirs, source_BS, mask_BS, sources)
    check_optimized_reader(read.model, source_BS, mask_BS, target_BT)


def check_optimized_reader(model: Any, source_BS: Tensor, mask_BS: Tensor, target_BT: Tensor) -> None:
    """Require the same logits from the optimized model step by step."""
    model = model.float()
    with torch.inference_mode():
        right, _ = model.step(target_BT, model.condition(source_BS, mask_BS))
        optimize_for_inference(model)
        state, logits = model.condition(source_BS, mask_BS), right
        for token_B in target_BT.T:
            logits, state = model.advance(token_B, state)
    torch.testing.assert_close(logits, right[:, -1], rtol=0, atol=1e-4)


def float64_tolerance(theirs: Any) -> float:
    """Return the tolerance: the library keeps sinusoidal tables, and T5's norms and softmax, in float32."""
    return 1e-5 if type(theirs).__name__.startswith(("Marian", "Pegasus", "M2M", "LED", "T5")) else 1e-9


def never_generated(theirs: Any) -> list[list[int]] | None:
    """Return padding and start tokens, which our searches never generate (nor do trained models)."""
    config = theirs.config
    start = getattr(config, "decoder_start_token_id", None) if config.is_encoder_decoder else config.bos_token_id
    never = {config.pad_token_id, start} - {config.eos_token_id, None}
    return [[number] for number in sorted(never)] or None


def same_searches(read: Imported, theirs: Any, source_BS: Tensor, mask_BS: Tensor, sources: list[list[int]]) -> None:
    """Require the same greedy and beam search results, in float64 to avoid ties of float32."""
    for beam in (1, 4):
        found = search(read.model, sources, SearchConfig(beam=beam, length_penalty=0.0, max_length=12))
        right = theirs.generate(
            input_ids=torch.tensor([to_theirs(read, row) for row in source_BS.tolist()]),
            attention_mask=mask_BS.long(),
            num_beams=beam,
            length_penalty=0.0,
            max_new_tokens=12,
            do_sample=False,
            bad_words_ids=never_generated(theirs),
        )
        for (best,), row in zip(found, right.tolist(), strict=True):
            ids = [*best.ids, EOS] if best.finished else best.ids
            assert to_theirs(read, ids) == row[1 : 1 + len(ids)]
            assert set(row[1 + len(ids) :]) <= {theirs.config.pad_token_id, theirs.config.eos_token_id}


@pytest.mark.parametrize("beam", [1, 4])
def test_languages_of_a_multilingual_model(tmp_path: Path, beam: int) -> None:
    folder, theirs = their.m2m_100(tmp_path / "theirs")
    notes = import_folder(folder, tmp_path / "ours")
    assert "2 languages (deu_Latn, eng_Latn, ...): translate --from A --to B" in notes
    pipeline, read = load(tmp_path / "ours"), read_folder(folder)
    tokenizer = their.Tokenizer.from_file(str(folder / "tokenizer.json"))
    tags = {name: tokenizer.token_to_id(name) for name in ("deu_Latn", "eng_Latn")}
    for source, target in (("deu_Latn", "eng_Latn"), (None, "deu_Latn")):
        chosen = {"source_language": source, "target_language": target}
        found = pipeline.translate(their.SENTENCES, n_best=1, beam=beam, length_penalty=0.0, max_length=9, **chosen)
        for text, (best,) in zip(their.SENTENCES, found, strict=True):
            ids = tokenizer.encode(text).ids
            ids[0] = tags[source] if source else ids[0]
            row = theirs.generate(
                torch.tensor([ids]),
                num_beams=beam,
                length_penalty=0.0,
                max_new_tokens=10,
                do_sample=False,
                forced_bos_token_id=tags[target],
                bad_words_ids=never_generated(theirs),
            )[0].tolist()
            right = [number for number in row[2:] if number not in (theirs.config.eos_token_id, 1)]
            assert row[1] == tags[target]
            assert best.text == read.codec.decode_target([read.vocabulary.ours[number] for number in right])
    with pytest.raises(ConfigError, match=r"ours: target language: unknown name 'deu'; 2 are known, such as deu_Latn"):
        pipeline.translate(["a tree"], target_language="deu")


@pytest.mark.parametrize("make", WRITERS.values(), ids=WRITERS)
def test_decoders(tmp_path: Path, make: Maker) -> None:
    folder, theirs = make(tmp_path / "theirs")
    read = read_folder(folder)
    assert read.codec.target is not None
    tokenizer = their.Tokenizer.from_file(str(folder / "tokenizer.json"))
    rows = [read.codec.encode_prompt(text)[:9] for text in their.SENTENCES]
    assert [to_theirs(read, row) for row in rows] == [tokenizer.encode(text).ids[:9] for text in their.SENTENCES]
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.float64, 1e-5 if "rope" in str(theirs.config) else 1e-6)):
        ours_model, their_model = read.model.to(dtype), theirs.to(dtype)
        for row in rows:
            with torch.no_grad():
                ours, _ = ours_model.step(torch.tensor([row]), ours_model.start())
                right = their_model(torch.tensor([to_theirs(read, row)])).logits
            same_logits(read, ours, right, tolerance)
    check_optimized(read, rows)
    config = SampleConfig(temperature=0, max_length=10)
    generated = [sample(read.model, [row[1:]], config, begin=row[0])[0] for row in rows]
    for row, (one,) in zip(rows, generated, strict=True):
        begin = torch.tensor([to_theirs(read, row)])
        right = theirs.generate(
            begin,
            attention_mask=torch.ones_like(begin),
            max_new_tokens=10,
            do_sample=False,
            bad_words_ids=never_generated(theirs),
            pad_token_id=theirs.config.eos_token_id,
        )
        ids = [*one.ids, EOS] if one.finished else one.ids
        assert to_theirs(read, ids) == right[0, len(row) :].tolist()


def check_optimized(read: Imported, rows: list[list[int]]) -> None:
    """Require the same logits from the optimized model step by step, which is what commands use."""
    model = copy.deepcopy(read.model).float()
    ids_BT = torch.tensor([row[: min(map(len, rows))] for row in rows])
    with torch.inference_mode():
        right, _ = model.step(ids_BT, model.start())
        optimize_for_inference(model)
        state, logits = model.start(), right
        for token_B in ids_BT.T:
            logits, state = model.advance(token_B, state)
    torch.testing.assert_close(logits, right[:, -1], rtol=0, atol=1e-4)


def test_a_score_is_the_log_probability_of_the_original(tmp_path: Path) -> None:
    folder, theirs = their.gpt2(tmp_path)
    read = read_folder(folder)
    begin, *ids = read.codec.encode_prompt("the cat sat")
    (found,) = score(read.model, [(None, ids)], ended=False, begins=[begin])
    whole = torch.tensor([to_theirs(read, [begin, *ids])])
    with torch.no_grad():
        logprob_TV = theirs(whole).logits[0].log_softmax(-1)
    right = logprob_TV[:-1].gather(1, whole[0, 1:, None]).sum()
    assert found.logprob == pytest.approx(float(right), abs=1e-4)


ENCODERS = [
    *(("Bert", head) for head in ("Model", "ForMaskedLM", "ForSequenceClassification", "ForTokenClassification")),
    *(("Longformer", head) for head in ("Model", "ForMaskedLM", "ForSequenceClassification", "ForTokenClassification")),
    *(("BigBird", head) for head in ("Model", "ForMaskedLM", "ForSequenceClassification")),
    *(("Roberta", head) for head in ("Model", "ForMaskedLM", "ForSequenceClassification", "ForTokenClassification")),
    *(("DistilBert", head) for head in ("Model", "ForMaskedLM", "ForSequenceClassification", "ForTokenClassification")),
    *(("RoFormer", head) for head in ("Model", "ForMaskedLM", "ForSequenceClassification", "ForTokenClassification")),
    *(("FNet", head) for head in ("Model", "ForMaskedLM", "ForSequenceClassification", "ForTokenClassification")),
    *(("Nystromformer", head) for head in ("Model", "ForMaskedLM", "ForSequenceClassification")),
    ("XLMRoberta", "ForMaskedLM"),
    ("Camembert", "ForSequenceClassification"),
]


@pytest.mark.parametrize(("kind", "head"), ENCODERS)
def test_encoders(tmp_path: Path, kind: str, head: str) -> None:
    folder, theirs = their.encoder(tmp_path, kind, head)
    read = read_folder(folder)
    model: Any = read.model
    sources = read.codec.encode_sources([*their.SENTENCES, "the cat sat on the mat"])
    tokenizer = their.Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert to_theirs(read, sources[0]) == tokenizer.encode(their.SENTENCES[0]).ids
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.float64, 1e-6)):
        for row in sources:
            if kind == "BigBird" and len(row) > 20:
                continue  # dense up to (5 + 2 r) blocks there, (5 + r) here; beyond that, patterns differ
            ids = torch.tensor([to_theirs(read, row)])
            with torch.no_grad():
                right = theirs.to(dtype)(ids)
                model.to(dtype)
                torch.testing.assert_close(
                    model.encode(torch.tensor([row])).x_BSD,
                    theirs.base_model(ids, **_globally(kind, head, ids)).last_hidden_state,
                    rtol=0,
                    atol=tolerance,
                )
                if head == "Model":
                    first = right.last_hidden_state[:, 0]  # if there is no pooler
                    vector = getattr(right, "pooler_output", first)
                    torch.testing.assert_close(model.pooled(torch.tensor([row])), vector, rtol=0, atol=tolerance)
                    continue
                ours = model.classify(torch.tensor([row]))
            if head == "ForMaskedLM":
                same_logits(read, ours, right.logits, tolerance)
            else:
                torch.testing.assert_close(ours, right.logits, rtol=0, atol=tolerance)
    ids = torch.tensor(sources[:1])
    with torch.inference_mode():
        plain = model.float().pooled(ids)
        optimize_for_inference(model)
        torch.testing.assert_close(model.pooled(ids), plain, rtol=0, atol=1e-5)


def test_any_token_of_a_longformer_may_be_global(tmp_path: Path) -> None:
    """As with `global_attention_mask`, in an encoder and in the encoder of LED."""
    for name, (folder, theirs) in {
        "longformer": their.encoder(tmp_path / "longformer", "Longformer", "Model", attention_window=4),
        "led": their.led(tmp_path / "led"),
    }.items():
        read = read_folder(folder)
        rows = [row[:9] for row in read.codec.encode_sources(["xyz" * 4, "zyx" * 4])]
        marked_BS = torch.zeros(2, 9, dtype=torch.bool)
        marked_BS[0, [2, 7]], marked_BS[1, 8] = True, True
        ids = torch.tensor([to_theirs(read, row) for row in rows])
        encoder = theirs.get_encoder() if name == "led" else theirs
        with torch.no_grad(), mark_global(marked_BS):
            ours = read.model.encode(torch.tensor(rows)).x_BSD
            right = encoder(ids, attention_mask=torch.ones_like(ids), global_attention_mask=marked_BS.long())
        torch.testing.assert_close(ours, right.last_hidden_state, rtol=0, atol=1e-5)


def test_landmarks_of_nystromformer(tmp_path: Path) -> None:
    folder, theirs = their.encoder(tmp_path, "Nystromformer", "Model", num_landmarks=4, segment_means_seq_len=12)
    model: Any = read_folder(folder).model
    ids = torch.randint(5, 40, (1, 12))
    read = read_folder(folder)
    with torch.no_grad():
        ours = model.encode(torch.tensor([[read.vocabulary.ours[number] for number in ids[0].tolist()]])).x_BSD
        torch.testing.assert_close(ours, theirs(ids).last_hidden_state, rtol=0, atol=1e-5)


def _globally(kind: str, head: str, ids: Tensor) -> dict[str, Tensor]:
    """Return the global attention mask that the library sets by itself when it classifies texts."""
    if (kind, head) != ("Longformer", "ForSequenceClassification"):
        return {}
    mask = torch.zeros_like(ids)
    mask[:, 0] = 1
    return {"global_attention_mask": mask}
