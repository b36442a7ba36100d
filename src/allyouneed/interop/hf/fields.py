"""A foreign config, field by field: what is not asked for, nor known to mean nothing here, is refused by name."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeVar

from allyouneed.errors import FolderError

T = TypeVar("T")
LARGEST_NUMBER = 1 << 28
MOST_LAYERS = 4096

# Fields that change nothing that a finished model computes: how it was trained, what its code also returns, names.
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
# Fields that steer `generate` of transformers and are no part of the model; some have a counterpart in our search.
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
    """What a config says, and which of it has been understood."""

    def __init__(self, tree: dict[str, Any], where: Path | str) -> None:
        self._tree, self.where = tree, where
        self._left = set(tree)
        for name in CODE:
            if tree.get(name):
                raise FolderError(
                    f"{where}: {name} names code to run; models that bring their own code are not imported"
                )

    def number(self, name: str, default: int | None = None, *, least: int = 1, most: int = LARGEST_NUMBER) -> int:
        """A whole number."""
        value = self.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise FolderError(f"{self.where}: {name}: {value!r}; should be a whole number from {least} to {most:,}")
        return value

    def layers(self, name: str, default: int | None = None) -> int:
        """How many layers."""
        return self.number(name, default, least=0, most=MOST_LAYERS)

    def real(self, name: str, default: float) -> float:
        """A positive number."""
        value = self.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e12:
            raise FolderError(f"{self.where}: {name}: {value!r}; should be a number above 0")
        return float(value)

    def flag(self, name: str, default: bool) -> bool:
        """True or false."""
        value = self.get(name, default)
        if not isinstance(value, bool):
            raise FolderError(f"{self.where}: {name}: {value!r}; should be true or false")
        return value

    def one_of(self, name: str, meanings: dict[str, T], default: str) -> T:
        """What a word means here."""
        value = self.get(name, default)
        if not isinstance(value, str) or value not in meanings:
            raise FolderError(f"{self.where}: {name}: {value!r} is not known here; known: {', '.join(meanings)}")
        return meanings[value]

    def only(self, name: str, *values: Any) -> None:
        """Refuses any value but these; the first is that of a field that is not there."""
        value = self.get(name, values[0])
        if not any(type(value) is type(right) and value == right for right in values):
            raise FolderError(
                f"{self.where}: {name}: {value!r}; what is imported here computes {' or '.join(map(repr, values))}"
            )

    def token(self, name: str) -> int | None:
        """An id; None: not given."""
        value = self.get(name, None)
        if isinstance(value, list) and len(value) == 1:
            value = value[0]
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
            raise FolderError(f"{self.where}: {name}: {value!r}; should be one id")
        return value

    def get(self, name: str, default: Any = None) -> Any:
        """The value of a field, which counts as understood; null is as good as nothing."""
        self._left.discard(name)
        value = self._tree.get(name)
        return default if value is None else value

    def leave(self, name: str) -> None:
        """A field that was looked at, but not understood."""
        self._left |= {name} & self._tree.keys()

    def ignore(self, names: Iterable[str]) -> None:
        """Fields that mean nothing to a finished model of this architecture."""
        self._left.difference_update(names)

    def finish(self) -> list[str]:
        """Refuses what was not understood; gives the settings of `generate` that were left aside."""
        self.ignore(INERT)
        unknown = sorted(self._left - GENERATION)
        if unknown:
            raise FolderError(f"{self.where}: fields that are not understood here: {', '.join(unknown)}")
        empty: tuple[Any, ...] = (None, False, [], {}, 0, "")
        return [f"{name}={self._tree[name]!r}" for name in sorted(self._left) if self._tree[name] not in empty]
