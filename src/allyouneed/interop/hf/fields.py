"""Reads a foreign config. Fields that are neither read nor known to be irrelevant are refused by name."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeVar

from allyouneed.errors import FolderError

T = TypeVar("T")
LARGEST_NUMBER = 1 << 28
MOST_LAYERS = 4096

# Fields that do not affect what a trained model computes: training settings, extra outputs, names.
INERT = {
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
    *("initializer_factor", "gradient_checkpointing", "task_specific_params", "finetuning_task", "_num_labels"),
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
        if not any(type(value) is type(right) and value == right for right in values):
            raise FolderError(f"{self.where}: {name}: {value!r}; only {' or '.join(map(repr, values))} is supported")

    def token(self, name: str) -> int | None:
        """Return a token id, or None."""
        value = self.get(name, None)
        if isinstance(value, list) and len(value) == 1:
            value = value[0]
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
            raise FolderError(f"{self.where}: {name}: {value!r}; should be one id")
        return value

    def get(self, name: str, default: Any = None) -> Any:
        """Return the value of a field and mark it as read; null counts as missing."""
        self._left.discard(name)
        value = self._tree.get(name)
        return default if value is None else value

    def leave(self, name: str) -> None:
        """Mark a field as not understood after all."""
        self._left |= {name} & self._tree.keys()

    def ignore(self, names: Iterable[str]) -> None:
        """Mark fields as irrelevant to a trained model of this architecture."""
        self._left.difference_update(names)

    def finish(self) -> list[str]:
        """Raise FolderError for unknown fields. Return the settings of `generate` that are ignored."""
        self.ignore(INERT)
        unknown = sorted(self._left - GENERATION)
        if unknown:
            raise FolderError(f"{self.where}: unsupported fields: {', '.join(unknown)}")
        empty: tuple[Any, ...] = (None, False, [], {}, 0, "")
        return [f"{name}={self._tree[name]!r}" for name in sorted(self._left) if self._tree[name] not in empty]
