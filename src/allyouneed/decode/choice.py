"""Which translation is chosen: the most probable one, the one of least risk, or the best one for a reverse model."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from allyouneed.decode.beam import SearchConfig
from allyouneed.decode.minimum_risk import RiskConfig, least_risk
from allyouneed.decode.rerank import Reverse, rerank
from allyouneed.decode.translate import Answer, translate
from allyouneed.errors import ConfigError
from allyouneed.models import Model
from allyouneed.shortlist.table import Shortlist
from allyouneed.text.codec import Codec
from allyouneed.text.glossary import Constraint


@dataclass(frozen=True)
class DecisionRule:
    """How a translation is chosen. Without settings: by the search."""

    risk: RiskConfig | None = None
    reverse: Reverse | None = None

    def check(self, codec: Codec, config: SearchConfig, constrained: bool, shortlist: bool) -> None:
        """Raise ConfigError for settings that do not go together, or not with the model."""
        if self.risk is None and self.reverse is None:
            return
        name = "mbr" if self.risk is not None else "reverse"
        if codec.classes is not None:
            raise ConfigError(f"{name}: has no effect with a classifier, which translates nothing; remove it")
        if self.risk is not None and self.reverse is not None:
            raise ConfigError("mbr and reverse: two ways to choose a translation; give one of them")
        if self.risk is not None and constrained:
            raise ConfigError("mbr: its candidates cannot be constrained; remove the glossary and the prefix, or mbr")
        if self.risk is not None and shortlist:
            raise ConfigError("mbr: its candidates may have any token; remove shortlist, or mbr")
        if self.risk is not None and config.n_best > self.risk.n:
            raise ConfigError(f"n_best {config.n_best} is more than the {self.risk.n} candidates of mbr; use fewer")
        if self.reverse is not None and config.beam == 1:
            raise ConfigError("reverse: a beam of 1 has nothing to choose from; use a beam of at least 2")


def choose(
    model: Model,
    codec: Codec,
    texts: Sequence[str],
    config: SearchConfig,
    choice: DecisionRule,
    progress: Callable[[int], None] | None = None,
    shortlist: Shortlist | None = None,
    constraints: Sequence[Constraint] | None = None,
) -> list[list[Answer]]:
    """Return the `n_best` translations of each text, best first. Arguments are those of `translate`."""
    if choice.risk is not None:
        return least_risk(model, codec, texts, config, choice.risk, progress)
    if choice.reverse is None:
        return translate(model, codec, texts, config, progress, shortlist, constraints)
    every = config.model_copy(update={"n_best": config.beam})
    found = translate(model, codec, texts, every, progress, shortlist, constraints)
    return [ranked[: config.n_best] for ranked in rerank(texts, found, choice.reverse)]
