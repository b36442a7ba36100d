"""Reads a foreign config. Fields that are neither read nor known to be irrelevant are refused by name."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeVar

from allyouneed.errors import FolderError
from allyouneed.interop.hf.sentences import FIELD

T = TypeVar("T")
LARGEST_NUMBER = 1 << 28
MOST_LAYERS = 4096
LONGEST_VALUE = 60  # characters of a value in a message

# Fields that do not affect what a trained model computes: training settings, extra outputs, names.
INERT = {
    *("_model_name_or_path", "is_llama_config", "output_past", "num_labels", "pooler_fc_size", "pooler_type"),
    *("pooler_num_attention_heads", "pooler_num_fc_layers", "pooler_size_per_head", "transformers.js_config"),
    *("xla_device", "tf_legacy_loss", "_commit_hash", "_attn_implementation", "_unsloth_fixed", "unsloth_version"),
    *("transformers_version", "torch_dtype", "dtype", "_name_or_path", "name_or_path", "model_type", "architectures"),
    *(
        "use_cache",
        "output_attentions",
        "output_hidden_states",
        "output_scores",
        "return_dict",
        "return_dict_in_generate",
    ),
    *("dropout", "attention_dropout", "activation_dropout", "classifier_dropout", "classif_dropout", "dropout_rate"),
    *(
        "encoder_layerdrop",
        "decoder_layerdrop",
        "layerdrop",
        "embd_pdrop",
        "attn_pdrop",
        "resid_pdrop",
        "hidden_dropout",
    ),
    *("hidden_dropout_prob", "attention_probs_dropout_prob", "summary_first_dropout", "init_std", "initializer_range"),
    *("initializer_factor", "gradient_checkpointing", "task_specific_params", FIELD, "finetuning_task", "_num_labels"),
    *(
        "_from_model_config",
        "_attn_implementation_autoset",
        "tokenizer_class",
        "torchscript",
        "sep_token_id",
        "language",
        "license",
    ),
    *("id2label", "label2id", "chunk_size_feed_forward", "is_encoder_decoder", "unk_token_id", "mask_token_id"),
}
# Settings of transformers' `generate`, which are not part of the model; some have a counterpart in our search.
GENERATION = {
    *("max_length", "min_length", "max_new_tokens", "min_new_tokens", "do_sample", "early_stopping", "num_beams"),
    *(
        "num_beam_groups",
        "diversity_penalty",
        "temperature",
        "top_k",
        "top_p",
        "min_p",
        "typical_p",
        "repetition_penalty",
    ),
    *(
        "length_penalty",
        "no_repeat_ngram_size",
        "encoder_no_repeat_ngram_size",
        "bad_words_ids",
        "num_return_sequences",
    ),
    *("forced_bos_token_id", "forced_eos_token_id", "remove_invalid_values", "exponential_decay_length_penalty"),
    *("suppress_tokens", "begin_suppress_tokens", "prefix", "renormalize_logits", "max_time", "epsilon_cutoff"),
    *("eta_cutoff", "cache_implementation"),
}
# Fields that change nothing if they have this value; any other value is refused, unless an architecture reads it.
NEUTRAL: dict[str, Any] = {
    "rope_interleaved": False,
    "add_cross_attention": False,
    "is_decoder": False,
    "tie_encoder_decoder": False,
    "use_bfloat16": False,
    "pruned_heads": {},
    "directionality": "bidi",
}
CODE = ("auto_map", "trust_remote_code", "custom_pipelines")


class Fields:
    """The fields of a config, and which of them have been read."""

    def __init__(self, tree: dict[str, Any], where: Path | str) -> None:
        self._tree, self.where = tree, where
        self._left = set(tree)
        for name in CODE:
            if tree.get(name):
                raise FolderError(f"{where}: {name} refers to code; models with custom code are not imported")

    def number(self, name: str, default: int | None = None, *, least: int = 1, most: int = LARGEST_NUMBER) -> int:
        """Return an integer."""
        value = self.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise FolderError(f"{self.where}: {name}: {value!r}; should be an integer from {least} to {most:,}")
        return value

    def layers(self, name: str, default: int | None = None) -> int:
        """Return a number of layers."""
        return self.number(name, default, least=0, most=MOST_LAYERS)

    def real(self, name: str, default: float) -> float:
        """Return a positive number."""
        value = self.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e12:
            raise FolderError(f"{self.where}: {name}: {value!r}; should be a number above 0")
        return float(value)

    def flag(self, name: str, default: bool) -> bool:
        """Return a bool."""
        value = self.get(name, default)
        if not isinstance(value, bool):
            raise FolderError(f"{self.where}: {name}: {value!r}; should be true or false")
        return value

    def one_of(self, name: str, meanings: dict[str, T], default: str) -> T:
        """Return the meaning of a string value."""
        value = self.get(name, default)
        if not isinstance(value, str) or value not in meanings:
            raise FolderError(f"{self.where}: {name}: {value!r} is not supported; supported: {', '.join(meanings)}")
        return meanings[value]

    def only(self, name: str, *values: Any) -> None:
        """Raise FolderError unless the field has one of these values; the first is the default."""
        value = self.get(name, values[0])
        if not any(_same(value, right) for right in values):
            right = " or ".join(map(repr, values))
            raise FolderError(f"{self.where}: {name}: {_shown(value)}; only {right} is supported")

    def token(self, name: str) -> int | None:
        """Return a token id, or None."""
        found = self.tokens(name)
        if len(found) > 1:
            raise FolderError(f"{self.where}: {name}: {list(found)!r}; should be one id")
        return found[0] if found else None

    def tokens(self, name: str) -> tuple[int, ...]:
        """Return token ids: one, several of the same meaning, or none."""
        value = self.get(name, [])
        found = value if isinstance(value, list) else [value]
        if any(isinstance(one, bool) or not isinstance(one, int) or one < 0 for one in found):
            raise FolderError(f"{self.where}: {name}: {value!r}; should be an id, or a list of ids")
        return tuple(dict.fromkeys(found))

    def get(self, name: str, default: Any = None) -> Any:
        """Return the value of a field and mark it as read; null counts as missing."""
        self._left.discard(name)
        value = self._tree.get(name)
        return default if value is None else value

    def has(self, name: str) -> bool:
        """Return whether the config has a field, even one that is null."""
        return name in self._tree

    def leave(self, name: str) -> None:
        """Mark a field as not understood after all."""
        self._left |= {name} & self._tree.keys()

    def ignore(self, names: Iterable[str]) -> None:
        """Mark fields as irrelevant to a trained model of this architecture."""
        self._left.difference_update(names)

    def finish(self) -> list[str]:
        """Raise FolderError for unknown fields. Return the settings of `generate` that are ignored.

        A field without a value (null) changes nothing, whatever its name.
        """
        self.ignore(INERT)
        self.ignore([name for name, value in NEUTRAL.items() if _same(self._tree.get(name), value)])
        unknown = sorted(name for name in self._left - GENERATION if self._tree[name] is not None)
        if unknown:
            shown = [f"{name} ({_shown(self._tree[name])})" for name in unknown]
            raise FolderError(f"{self.where}: unsupported fields: {', '.join(shown)}")
        return self.rest()

    def rest(self) -> list[str]:
        """Return the fields that are not read and have a value, as `name=value`."""
        empty: tuple[Any, ...] = (None, False, [], {}, 0, "")
        left = sorted(self._left - INERT)
        return [f"{name}={_shown(self._tree[name])}" for name in left if self._tree[name] not in empty]


def _same(value: Any, right: Any) -> bool:
    return type(value) is type(right) and value == right


def _shown(value: Any) -> str:
    """Return a value for a message, cut to a short text."""
    text = repr(value)
    return text if len(text) <= LONGEST_VALUE else f"{text[:LONGEST_VALUE]}..."
