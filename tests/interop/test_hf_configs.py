"""Configs as published for well-known models are read without complaint; those that we do not compute are refused."""

from typing import Any

import pytest

from allyouneed.errors import FolderError
from allyouneed.interop.hf.architectures import ARCHITECTURES
from allyouneed.interop.hf.fields import Fields
from allyouneed.models.decoder import DecoderConfig

LLAMA = {
    "hidden_size": 896,
    "intermediate_size": 4864,
    "num_attention_heads": 14,
    "num_hidden_layers": 24,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32768,
    "rms_norm_eps": 1e-06,
    "vocab_size": 151936,
    "attention_dropout": 0.0,
    "initializer_range": 0.02,
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "transformers_version": "4.43.1",
}
GEMMA = {**LLAMA, "head_dim": 256, "hidden_act": "gelu", "hidden_activation": "gelu_pytorch_tanh", "pad_token_id": 0}
BART = {
    "activation_dropout": 0.0,
    "activation_function": "relu",
    "attention_dropout": 0.1,
    "bos_token_id": 0,
    "d_model": 1024,
    "decoder_attention_heads": 16,
    "decoder_ffn_dim": 4096,
    "decoder_layerdrop": 0,
    "decoder_layers": 12,
    "decoder_start_token_id": 2,
    "dropout": 0.1,
    "encoder_attention_heads": 16,
    "encoder_ffn_dim": 4096,
    "encoder_layerdrop": 0,
    "encoder_layers": 12,
    "eos_token_id": 2,
    "init_std": 0.02,
    "is_encoder_decoder": True,
    "num_hidden_layers": 12,
    "pad_token_id": 1,
    "vocab_size": 256206,
}
BERT = {
    "attention_probs_dropout_prob": 0.1,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "hidden_size": 768,
    "initializer_range": 0.02,
    "intermediate_size": 3072,
    "layer_norm_eps": 1e-05,
    "num_attention_heads": 12,
    "max_position_embeddings": 514,
    "num_hidden_layers": 12,
    "type_vocab_size": 1,
    "vocab_size": 50265,
    "bos_token_id": 0,
    "eos_token_id": 2,
    "pad_token_id": 1,
}
PUBLISHED: dict[str, tuple[str, str, dict[str, Any]]] = {
    "Qwen2.5": (
        "qwen2",
        "Qwen2ForCausalLM",
        {
            **LLAMA,
            "hidden_act": "silu",
            "max_window_layers": 21,
            "rope_theta": 1000000.0,
            "sliding_window": 32768,
            "tie_word_embeddings": True,
            "use_sliding_window": False,
            "use_mrope": False,
        },
    ),
    "Qwen3": (
        "qwen3",
        "Qwen3ForCausalLM",
        {
            **LLAMA,
            "attention_bias": False,
            "head_dim": 128,
            "hidden_act": "silu",
            "max_window_layers": 28,
            "rope_scaling": None,
            "rope_theta": 1000000,
            "sliding_window": None,
            "use_sliding_window": False,
        },
    ),
    "Gemma": ("gemma", "GemmaForCausalLM", {**GEMMA, "attention_bias": False, "rope_scaling": None}),
    "Gemma 2": (
        "gemma2",
        "Gemma2ForCausalLM",
        {
            **GEMMA,
            "attn_logit_softcapping": 50.0,
            "cache_implementation": "hybrid",
            "final_logit_softcapping": 30.0,
            "query_pre_attn_scalar": 256,
            "sliding_window": 4096,
        },
    ),
    "Mistral": ("mistral", "MistralForCausalLM", {**LLAMA, "hidden_act": "silu", "sliding_window": 4096}),
    "Pythia": (
        "gpt_neox",
        "GPTNeoXForCausalLM",
        {
            "bos_token_id": 0,
            "eos_token_id": 0,
            "hidden_act": "gelu",
            "hidden_size": 768,
            "vocab_size": 50304,
            "initializer_range": 0.02,
            "intermediate_size": 3072,
            "layer_norm_eps": 1e-05,
            "rotary_pct": 0.25,
            "max_position_embeddings": 2048,
            "num_attention_heads": 12,
            "num_hidden_layers": 12,
            "rotary_emb_base": 10000,
            "tie_word_embeddings": False,
            "use_parallel_residual": True,
        },
    ),
    "OPT": (
        "opt",
        "OPTForCausalLM",
        {
            "_name_or_path": "facebook/opt-125m",
            "activation_dropout": 0.0,
            "activation_function": "relu",
            "attention_dropout": 0.0,
            "bos_token_id": 2,
            "do_layer_norm_before": True,
            "dropout": 0.1,
            "eos_token_id": 2,
            "ffn_dim": 3072,
            "hidden_size": 768,
            "init_std": 0.02,
            "layerdrop": 0.0,
            "max_position_embeddings": 2048,
            "num_attention_heads": 12,
            "num_hidden_layers": 12,
            "pad_token_id": 1,
            "prefix": "</s>",
            "vocab_size": 50272,
            "word_embed_proj_dim": 768,
        },
    ),
    "NLLB": (
        "m2m_100",
        "M2M100ForConditionalGeneration",
        {
            **BART,
            "max_length": 200,
            "max_position_embeddings": 1024,
            "scale_embedding": True,
            "tokenizer_class": "NllbTokenizer",
            "num_beams": 5,
            "early_stopping": True,
        },
    ),
    "LED": (
        "led",
        "LEDForConditionalGeneration",
        {
            **BART,
            "attention_window": [1024] * 12,
            "max_encoder_position_embeddings": 16384,
            "classif_dropout": 0.0,
            "max_decoder_position_embeddings": 1024,
            "gradient_checkpointing": False,
            "classifier_dropout": 0.0,
        },
    ),
    "RoBERTa": ("roberta", "RobertaForMaskedLM", BERT),
    "XLM-RoBERTa": ("xlm-roberta", "XLMRobertaForMaskedLM", {**BERT, "output_past": True}),
    "DistilBERT": (
        "distilbert",
        "DistilBertForMaskedLM",
        {
            "activation": "gelu",
            "attention_dropout": 0.1,
            "dim": 768,
            "dropout": 0.1,
            "hidden_dim": 3072,
            "initializer_range": 0.02,
            "max_position_embeddings": 512,
            "n_heads": 12,
            "n_layers": 6,
            "pad_token_id": 0,
            "qa_dropout": 0.1,
            "seq_classif_dropout": 0.2,
            "sinusoidal_pos_embds": False,
            "tie_weights_": True,
            "vocab_size": 30522,
        },
    ),
    "RoFormer": ("roformer", "RoFormerForMaskedLM", {**BERT, "embedding_size": 768, "rotary_value": False}),
    "Nyströmformer": (
        "nystromformer",
        "NystromformerForMaskedLM",
        {
            **BERT,
            "add_cross_attention": False,
            "conv_kernel_size": 65,
            "hidden_act": "gelu_new",
            "num_landmarks": 64,
            "inv_coeff_init_option": False,
            "segment_means_seq_len": 64,
        },
    ),
}


def read(kind: str, name: str, tree: dict[str, Any]) -> Any:
    fields = Fields({**tree, "model_type": kind, "architectures": [name]}, "config.json")
    for role in ("pad", "bos", "eos", "decoder_start"):
        fields.tokens(f"{role}_token_id")
    config = ARCHITECTURES[kind].read(fields, name)
    fields.finish()
    return config


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_configs(name: str) -> None:
    config = read(*PUBLISHED[name])
    assert config.width in (768, 896, 1024)
    if isinstance(config, DecoderConfig):
        windows = [getattr(mixer, "window", None) for mixer in config.mixers_of(2)]
        assert windows == {"Mistral": [4095, 4095], "Gemma 2": [4095, None]}.get(name, [None, None])


REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "opt, projected": ("OPT", {"word_embed_proj_dim": 512}, "word_embed_proj_dim: 512; only 768"),
    "opt, post-norm": ("OPT", {"do_layer_norm_before": False}, "do_layer_norm_before: False; only True"),
    "gpt_neox, odd": ("Pythia", {"rotary_pct": 0.05}, "rotates 3 of 64 features of a head; should be an even number"),
    "gemma2, scale": ("Gemma 2", {"query_pre_attn_scalar": 144}, "query_pre_attn_scalar: 144; only 256"),
    "gemma2, layers": ("Gemma 2", {"layer_types": ["linear_attention"]}, "should be full_attention or sliding_att"),
    "mistral, window": ("Mistral", {"sliding_window": 1}, "sliding_window: 1; should be at least 2"),
    "roformer, values": ("RoFormer", {"rotary_value": True}, "rotary_value: True; only False"),
    "roformer, projected": ("RoFormer", {"embedding_size": 384}, "embedding_size: 384; only 768"),
    "nystromformer, even": ("Nyströmformer", {"conv_kernel_size": 64}, "64 is even"),
    "led, odd": ("LED", {"attention_window": 7}, "attention_window: should be an even number for each of 12 layers"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_other_values_are_refused_by_name(name: str) -> None:
    published, changed, message = REFUSED[name]
    kind, architecture, tree = PUBLISHED[published]
    with pytest.raises((FolderError, ValueError), match=message):
        read(kind, architecture, {**tree, **changed})
