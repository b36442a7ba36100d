"""Options of `translate` for how a translation is chosen: by several models, by least risk, by a reverse model."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from allyouneed.errors import ConfigError

if TYPE_CHECKING:
    from allyouneed.decode.choice import DecisionRule
    from allyouneed.folder import Bundle

With = Annotated[
    list[str] | None,
    typer.Option(
        "--with",
        help="Further model, or checkpoint of a run, that translates together with MODEL (ensemble). May be repeated.",
    ),
]
Mbr = Annotated[
    int | None,
    typer.Option(help="Minimum Bayes risk: of N candidates, choose the one that is most alike to all.", metavar="N"),
]
MbrFrom = Annotated[
    Literal["samples", "beam"] | None,
    typer.Option(help="Candidates of --mbr: samples, or the N best of beam search.", show_default="samples"),
]
Similarity = Annotated[
    Literal["chrf", "bleu"] | None, typer.Option("--utility", help="Likeness of two candidates.", show_default="chrf")
]
Temperature = Annotated[float | None, typer.Option(help="Temperature of samples.", show_default="1")]
Epsilon = Annotated[
    float | None, typer.Option(help="Sample from tokens of at least this probability.", show_default="0.02")
]
Seed = Annotated[int | None, typer.Option(help="Random seed of samples.", show_default="0")]
ReverseModel = Annotated[
    str | None,
    typer.Option("--reverse", help="Model from the target to the source language: reranks the translations of a beam."),
]
ReverseWeight = Annotated[
    float | None, typer.Option(help="Weight of the reverse model's log probability.", show_default="1")
]


@dataclass(frozen=True)
class SampleOptions:
    """How samples are drawn. None: not given."""

    temperature: float | None = None
    epsilon: float | None = None
    seed: int | None = None

    @property
    def given(self) -> dict[str, Any]:
        """Return the options that are given, by name."""
        return {name: value for name, value in vars(self).items() if value is not None}


@dataclass(frozen=True)
class ChoiceOptions:
    """How a translation is chosen, as the options state it."""

    others: tuple[str, ...] = ()
    mbr: int | None = None
    mbr_from: str | None = None
    utility: str | None = None
    samples: SampleOptions = SampleOptions()
    reverse: str | None = None
    reverse_weight: float | None = None

    def require_support(self, engine: str, shortlist: bool, sampled: bool = False) -> None:
        """Raise ConfigError for options that the engine does not support, or that need others."""
        for name, value, needed in (
            ("--mbr-from", self.mbr_from, "--mbr"),
            ("--utility", self.utility, "--mbr"),
            *((f"--{name}", value, "--mbr or --sample") for name, value in self.samples.given.items()),
        ):
            if value is not None and self.mbr is None and not (sampled and "--sample" in needed):
                raise ConfigError(f"{name}: has no effect without {needed}; remove it")
        if self.reverse_weight is not None and self.reverse is None:
            raise ConfigError("--reverse-weight: has no effect without --reverse; remove it")
        if self.mbr is not None and self.reverse is not None:
            raise ConfigError("--mbr and --reverse: two ways to choose a translation; give one of them")
        used = {"--with": self.others, "--mbr": self.mbr, "--reverse": self.reverse}
        given = [name for name, value in used.items() if value]
        if given and engine == "ctranslate2":
            raise ConfigError(f"{given[0]}: --engine ctranslate2 cannot do this; use --engine torch")
        if self.others and shortlist:
            raise ConfigError("--shortlist: is for a single model, and --with makes an ensemble; remove one of them")

    def choice(
        self, device: str, int8: bool, source_language: str | None = None, target_language: str | None = None
    ) -> "DecisionRule":
        """Return the choice. The languages are those of the translation."""
        from allyouneed.cli.model_options import open_model
        from allyouneed.config import parse
        from allyouneed.decode.choice import DecisionRule
        from allyouneed.decode.minimum_risk import RiskConfig
        from allyouneed.evaluation.settings import reverse_of

        risk = None
        if self.mbr is not None:
            asked = {"n": self.mbr, "candidates": self.mbr_from, "utility": self.utility, **self.samples.given}
            risk = parse(RiskConfig, {name: value for name, value in asked.items() if value is not None}, "--mbr")
        if self.reverse is None:
            return DecisionRule(risk)
        weight = 1.0 if self.reverse_weight is None else self.reverse_weight
        back: Bundle = open_model(self.reverse, device, int8=int8)
        return DecisionRule(None, reverse_of(back, weight, source_language, target_language))
