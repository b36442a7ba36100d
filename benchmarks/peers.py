"""The same Transformer in torch.nn and in Hugging Face Marian, with our weights: the peers of the benchmarks."""

import os
from typing import Any

import torch
from torch import Tensor, nn

from allyouneed.models.encoder_decoder import EncoderDecoder
from allyouneed.openmp import WAITING
from allyouneed.text.specials import BOS, EOS, PAD

Named = dict[str, Tensor]
LIBGOMP_SPINS = "300000"  # its default


def peer_environment() -> dict[str, str]:
    """Return the environment for a peer: its threads wait as OpenMP does by default, unless the user has decided."""
    ours = WAITING.items() <= os.environ.items()
    others = {name: value for name, value in os.environ.items() if not ours or name not in WAITING}
    return others | {"GOMP_SPINCOUNT": LIBGOMP_SPINS} if ours else others


class TorchTransformer(nn.Module):
    """torch.nn's own layers (post-norm, ReLU), with embeddings and positions, which torch.nn does not provide."""

    def __init__(self, ours: EncoderDecoder) -> None:
        super().__init__()
        config = ours.config
        heads = config.mixer_of(0).position_heads
        shape: dict[str, Any] = {"batch_first": True, "dropout": config.dropout, "activation": "relu"}
        encoder_layer = nn.TransformerEncoderLayer(config.width, heads, config.hidden, **shape)
        decoder_layer = nn.TransformerDecoderLayer(config.width, heads, config.hidden, **shape)
        self.encoder = nn.TransformerEncoder(encoder_layer, config.encoder_layers, enable_nested_tensor=False)
        self.decoder = nn.TransformerDecoder(decoder_layer, config.decoder_layers)
        for module in self.modules():
            if isinstance(module, nn.TransformerEncoderLayer | nn.TransformerDecoderLayer):
                module.dropout.p = 0.0  # the paper has no dropout inside the feed-forward layer
            if isinstance(module, nn.MultiheadAttention):
                module.dropout = 0.0  # dropout on the weights would also disable the fused kernel
        self.embedding = nn.Parameter(ours.head.weight_VD.detach().clone())
        self.dropout = nn.Dropout(config.dropout)
        self.position = ours.source.position
        self.load_state_dict(_torch_weights(ours), strict=False)

    def _embed(self, ids_BT: Tensor) -> Tensor:
        x_BTD = nn.functional.embedding(ids_BT, self.embedding) * self.embedding.shape[1] ** 0.5
        assert self.position is not None
        return self.dropout(x_BTD + self.position(torch.arange(ids_BT.shape[1])))

    def forward(self, source_BS: Tensor, padding_BS: Tensor, input_BT: Tensor) -> Tensor:
        """Return the logits for every position."""
        memory_BSD = self.encoder(self._embed(source_BS), src_key_padding_mask=padding_BS)
        T = input_BT.shape[1]
        future_TT = torch.ones(T, T, dtype=torch.bool).triu(1)
        x_BTD = self.decoder(
            self._embed(input_BT),
            memory_BSD,
            tgt_mask=future_TT,
            memory_key_padding_mask=padding_BS,
            tgt_is_causal=True,
        )
        return x_BTD @ self.embedding.T


def _torch_weights(ours: EncoderDecoder) -> Named:
    named: Named = {}
    for side, stack in (("encoder", ours.encoder), ("decoder", ours.decoder)):
        for number, block in enumerate(stack.blocks):
            prefix = f"{side}.layers.{number}."
            named |= _in_projection(prefix + "self_attn.", block.mixer.query_key_value)
            named |= _linear(prefix + "self_attn.out_proj.", block.mixer.output)
            norms = [block.mixer_norm, block.feedforward_norm]
            if block.cross is not None:
                both = (block.cross.query, block.cross.key_value)
                named[prefix + "multihead_attn.in_proj_weight"] = torch.cat([layer.weight for layer in both])
                named[prefix + "multihead_attn.in_proj_bias"] = torch.cat([layer.bias for layer in both])
                named |= _linear(prefix + "multihead_attn.out_proj.", block.cross.output)
                norms.insert(1, block.cross_norm)
            for place, norm in enumerate(norms, start=1):
                named |= _linear(f"{prefix}norm{place}.", norm)
            named |= _linear(prefix + "linear1.", block.feedforward.inner)
            named |= _linear(prefix + "linear2.", block.feedforward.outer)
    return {name: tensor.detach().clone() for name, tensor in named.items()}


def _linear(prefix: str, layer: Any) -> Named:
    return {prefix + "weight": layer.weight, prefix + "bias": layer.bias}


def _in_projection(prefix: str, layer: nn.Linear) -> Named:
    return {prefix + "in_proj_weight": layer.weight, prefix + "in_proj_bias": layer.bias}


def marian(ours: EncoderDecoder) -> Any:
    """Return Hugging Face Marian (post-norm, ReLU, tied, scaled) with our weights and order of sines."""
    from transformers import MarianConfig, MarianMTModel

    config = ours.config
    heads = config.mixer_of(0).position_heads
    hf = MarianMTModel(
        MarianConfig(
            vocab_size=ours.sizes.target,
            d_model=config.width,
            encoder_layers=config.encoder_layers,
            decoder_layers=config.decoder_layers,
            encoder_attention_heads=heads,
            decoder_attention_heads=heads,
            encoder_ffn_dim=config.hidden,
            decoder_ffn_dim=config.hidden,
            max_position_embeddings=512,
            pad_token_id=PAD,
            bos_token_id=BOS,
            eos_token_id=EOS,
            decoder_start_token_id=BOS,
            forced_eos_token_id=None,
            scale_embedding=True,
            static_position_embeddings=True,
            activation_function="relu",
            dropout=config.dropout,
            attention_dropout=0.0,
            activation_dropout=0.0,
            share_encoder_decoder_embeddings=True,
            tie_word_embeddings=True,
            attn_implementation="sdpa",
        )
    )
    missing, unexpected = hf.load_state_dict(_marian_weights(ours), strict=False)
    assert not unexpected, unexpected
    known = ("embed_positions", "embed_tokens", "lm_head", "final_logits_bias")
    assert all(any(name in key for name in known) for key in missing), missing
    position = ours.source.position
    assert position is not None
    table = position(torch.arange(512))
    for side in (hf.model.encoder, hf.model.decoder):
        side.embed_positions.weight.data = table.clone()
    return hf


def _marian_weights(ours: EncoderDecoder) -> Named:
    width = ours.config.width
    named: Named = {"model.shared.weight": ours.head.weight_VD}
    for side, stack in (("encoder", ours.encoder), ("decoder", ours.decoder)):
        for number, block in enumerate(stack.blocks):
            prefix = f"model.{side}.layers.{number}."
            named |= _projections(prefix + "self_attn.", "qkv", block.mixer.query_key_value, width)
            named |= _linear(prefix + "self_attn.out_proj.", block.mixer.output)
            named |= _linear(prefix + "self_attn_layer_norm.", block.mixer_norm)
            if block.cross is not None:
                named |= _projections(prefix + "encoder_attn.", "q", block.cross.query, width)
                named |= _projections(prefix + "encoder_attn.", "kv", block.cross.key_value, width)
                named |= _linear(prefix + "encoder_attn.out_proj.", block.cross.output)
                named |= _linear(prefix + "encoder_attn_layer_norm.", block.cross_norm)
            named |= _linear(prefix + "fc1.", block.feedforward.inner)
            named |= _linear(prefix + "fc2.", block.feedforward.outer)
            named |= _linear(prefix + "final_layer_norm.", block.feedforward_norm)
    return {name: tensor.detach().clone() for name, tensor in named.items()}


def _projections(prefix: str, letters: str, layer: nn.Linear, width: int) -> Named:
    named: Named = {}
    for letter, weight, bias in zip(letters, layer.weight.split(width), layer.bias.split(width), strict=True):
        named |= {f"{prefix}{letter}_proj.weight": weight, f"{prefix}{letter}_proj.bias": bias}
    return named
