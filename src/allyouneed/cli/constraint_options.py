"""Options of `translate` for what its outputs must contain and begin with."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from allyouneed.errors import ConfigError

if TYPE_CHECKING:
    from allyouneed.folder import Bundle
    from allyouneed.text.glossary import Constraint, Glossary

GlossaryFile = Annotated[
    str | None,
    typer.Option(
        "--glossary", help="TSV file of terms that outputs must use: a source term, a TAB, its target (docs/terms.md)."
    ),
]
MatchCase = Annotated[
    bool, typer.Option("--match-case", help="Terms match only in the same case, instead of in any case.")
]
Keep = Annotated[
    list[str] | None, typer.Option(help="Term that is not translated: outputs contain it unchanged. May be repeated.")
]
Prefix = Annotated[str | None, typer.Option(help="Text that every output begins with.")]
PrefixFile = Annotated[
    str | None, typer.Option("--prefixes", help="File of texts that outputs begin with: a line for each input line.")
]


@dataclass(frozen=True)
class ConstraintOptions:
    """What outputs must contain and begin with, as the options state it."""

    glossary: str | None = None
    match_case: bool = False
    keep: tuple[str, ...] = ()
    prefix: str | None = None
    prefixes: str | None = None

    @property
    def given(self) -> bool:
        """Whether outputs are constrained."""
        return bool(self.glossary or self.keep or self.prefix or self.prefixes)

    def require_support(self, engine: str, document: bool) -> None:
        """Raise ConfigError for options that the engine or documents do not support, or that need others."""
        names = {"--glossary": self.glossary, "--keep": self.keep, "--prefix": self.prefix, "--prefixes": self.prefixes}
        given = [name for name, value in names.items() if value]
        if self.match_case and not (self.glossary or self.keep):
            raise ConfigError("--match-case: has no effect without --glossary or --keep; remove it")
        if self.prefix and self.prefixes:
            raise ConfigError("--prefix and --prefixes: give one of them")
        if given and engine == "ctranslate2":
            raise ConfigError(f"{given[0]}: --engine ctranslate2 cannot constrain outputs; use --engine torch")
        if document and (self.prefix or self.prefixes):
            raise ConfigError(f"{given[-1]}: is for the lines of standard input, not for a document")

    def rules(self, bundle: "Bundle") -> "OutputRules":
        """Return the rules for the outputs of a model. Raise UserError for files or models that do not fit."""
        from allyouneed.cli.stdin import text_argument
        from allyouneed.decode.phrases import can_write
        from allyouneed.text.glossary import Glossary
        from allyouneed.text.lines import lines, resolve

        terms = None
        if self.glossary or self.keep:
            kept = Glossary(([str(text_argument(term))] for term in self.keep), self.match_case)
            terms = kept.over(Glossary.read(self.glossary, self.match_case) if self.glossary else None)
        prefixes = None if self.prefixes is None else list(lines(resolve(self.prefixes)))
        prefix = text_argument(self.prefix) or ""
        target = bundle.codec.target
        if (terms is not None or prefix or prefixes) and target is None:
            raise ConfigError(f"{bundle.path}: a classifier has no outputs to constrain; remove the option")
        for text in [*(terms.targets() if terms else ()), *(prefixes or ()), prefix]:
            if target is not None and not can_write(target, text):
                raise ConfigError(f"{bundle.path}: {text[:60]!r} has characters or words that the model cannot write")
        return OutputRules(terms, prefix, prefixes)


@dataclass(frozen=True)
class OutputRules:
    """A glossary, and the start of all outputs or of each."""

    glossary: "Glossary | None" = None
    prefix: str = ""
    prefixes: list[str] | None = None

    def constraints(self, texts: Sequence[str], prefixes: Sequence[str]) -> "list[Constraint] | None":
        """Return the constraints of texts; None if there are none at all."""
        from allyouneed.text.glossary import constraints_of

        return constraints_of(self.glossary, texts, prefixes)

    def line_prefixes(self, count: int, before: int) -> list[str]:
        """Return the prefixes of lines, given the number of lines before them."""
        if self.prefixes is None:
            return [self.prefix] * count
        if before + count > len(self.prefixes):
            raise ConfigError(
                f"--prefixes: {len(self.prefixes):,} lines, but the input has more; give a line for each input line"
            )
        return self.prefixes[before : before + count]

    def missing(self, pieces: Sequence[str], output: str) -> list[str]:
        """Return the targets that an output lacks, given the pieces in which its source was translated."""
        if self.glossary is None:
            return []
        phrases = [phrase for piece in pieces for phrase in self.glossary.phrases(piece)]
        return [phrase.alternatives[0] for phrase in phrases if not phrase.occurs_in(output)]
