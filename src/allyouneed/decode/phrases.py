"""Which required phrases a sequence of tokens contains: an automaton for each phrase, read token by token.

    states      the prefixes of all variants of a phrase
    next(s, t)  the longest suffix of s t that is a state;     START precedes the first token
    left(s)     the fewest tokens from s to the end of a variant;   0: a variant is complete
    a phrase occurs when left(s) = 0 and the next token is EOS or begins a word (if the phrase ends with a letter)

Variants are the ways to write a phrase: its alternatives, inside a text or at its start, where the first letter may be
a capital. Occurrences of one phrase do not overlap; those of different phrases may.

Cost: a table of (states x different tokens) for each phrase; one lookup for each phrase and candidate.
Paper: Aho and Corasick 1975, https://doi.org/10.1145/360825.360855.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from allyouneed.errors import DataError
from allyouneed.text.glossary import Constraint, RequiredPhrase, is_unspaced
from allyouneed.text.specials import EOS, PAD, UNK
from allyouneed.text.tokenizer import Tokenizer

START = -1  # precedes the first token of a target
ROOT = 0
MOST_REQUIRED = 256  # tokens of the required phrases of one target; rows grow with them
MOST_VARIED = 1280  # tokens of all variants of these phrases; candidates grow with them
_BEGINS_WORD: "WeakKeyDictionary[Tokenizer, Tensor]" = WeakKeyDictionary()  # it takes a second for large vocabularies


@dataclass(frozen=True)
class Phrase:
    """A required phrase as tokens: one of its variants occurs at least `count` times.

    A variant that begins with START occurs only at the start. `whole`: the token after it begins a word.
    """

    variants: tuple[tuple[int, ...], ...]
    count: int = 1
    whole: bool = False

    @cached_property
    def automaton(self) -> "Automaton":
        """The automaton of its variants."""
        return automaton(self.variants)


@dataclass(frozen=True)
class TokenConstraint:
    """What a target must contain and begin with, as tokens."""

    phrases: tuple[Phrase, ...] = ()
    prefix: tuple[int, ...] = ()

    @property
    def total(self) -> int:
        """How many tokens the required phrases have at least."""
        return sum(phrase.count * phrase.automaton.left[ROOT] for phrase in self.phrases)


@dataclass(frozen=True)
class Automaton:
    """The states of a phrase. Tokens outside `symbols` use the last column of `next`."""

    symbols: list[int]
    next: list[list[int]]
    left: list[int]
    first: int  # the state before the first token


def automaton(variants: Sequence[tuple[int, ...]]) -> Automaton:
    """Return the automaton of a phrase. At least one variant does not begin with START."""
    prefixes = dict.fromkeys(variant[:length] for variant in variants for length in range(len(variant) + 1))
    number = {prefix: place for place, prefix in enumerate(sorted(prefixes, key=len))}
    symbols = sorted({token for variant in variants for token in variant} | {START})
    column = {symbol: place for place, symbol in enumerate(symbols)}
    left = [max(map(len, variants))] * len(number)
    for variant in variants:
        for length in range(1, len(variant) + 1):
            state = number[variant[:length]]
            left[state] = min(left[state], len(variant) - length)
    # After the first token no variant can begin with START any more.
    left[ROOT] = min(len(variant) for variant in variants if variant[0] != START)
    children: dict[tuple[int, ...], list[int]] = {prefix: [] for prefix in number}
    for prefix in number:
        if prefix:
            children[prefix[:-1]].append(prefix[-1])
    table = [[ROOT] * (len(symbols) + 1)]
    shorter = [ROOT] * len(number)  # the longest proper suffix of a state that is one, too
    for prefix, state in number.items():
        if prefix:
            parent, last = number[prefix[:-1]], column[prefix[-1]]
            shorter[state] = table[shorter[parent]][last] if len(prefix) > 1 else ROOT
            left[state] = min(left[state], left[shorter[state]])
            table.append(table[shorter[state]].copy())
        for symbol in children[prefix]:
            table[state][column[symbol]] = number[*prefix, symbol]
    return Automaton(symbols, table, left, table[ROOT][column[START]])


def contains_phrases(phrases: Sequence[Phrase], ids: Sequence[int], begins_word: Callable[[int], bool]) -> bool:
    """Return whether a finished target contains all phrases."""
    for phrase in phrases:
        found, count = phrase.automaton, 0
        state = found.first
        for token in (*ids, EOS):
            if found.left[state] == 0 and (not phrase.whole or token == EOS or begins_word(token)):
                state, count = ROOT, count + 1
            state = found.next[state][found.symbols.index(token) if token in found.symbols else -1]
        if count < phrase.count:
            return False
    return True


@dataclass(frozen=True)
class PhraseProgress:
    """How far the targets of N sentences are: for each row (K) and phrase (P) the state and the occurrences so far."""

    state_NKP: Tensor
    count_NKP: Tensor

    def choose(self, place_NM: Tensor) -> "PhraseProgress":
        """Return the progress of some rows of each sentence."""
        place_NMP = place_NM[:, :, None].expand(-1, -1, self.state_NKP.shape[2])
        return PhraseProgress(self.state_NKP.gather(1, place_NMP), self.count_NKP.gather(1, place_NMP))


_OF_SENTENCES = (
    *("forced_NF", "_symbol_NPG", "_table_NP", "_left_NP", "_width_NP"),
    *("_first_NP", "_count_NP", "_whole_NP"),
)


class PhraseTables:
    """The automata of the phrases of N sentences, at most P each. Equal phrases share one table, and all tables are one
    list: each entry of `_next` is at the place of its table, plus state times width, plus symbol.
    """

    def __init__(self, phrases: Sequence[Sequence[Phrase]], begins_word_V: Tensor) -> None:
        """`begins_word_V`: the tokens that do not continue a word."""
        device, N, P = begins_word_V.device, len(phrases), max(map(len, phrases))
        self.begins_word_V = begins_word_V.clone()
        self.begins_word_V[EOS] = True
        following, left = [ROOT], [1]  # of a phrase that is not there: it is never complete
        places: dict[tuple[tuple[int, ...], ...], tuple[int, int]] = {}
        for phrase in (phrase for of_one in phrases for phrase in of_one):
            if phrase.variants not in places:
                places[phrase.variants] = len(following), len(left)
                following += chain.from_iterable(phrase.automaton.next)
                left += phrase.automaton.left
        table_NP, left_NP, width_NP = (torch.full((N, P), value) for value in (0, 0, 1))
        first_NP, count_NP = torch.zeros(N, P, dtype=torch.long), torch.zeros(N, P, dtype=torch.long)
        whole_NP = torch.zeros(N, P, dtype=torch.bool)
        tokens = [
            sorted({token for phrase in of_one for token in phrase.automaton.symbols} - {START}) for of_one in phrases
        ]
        F = 1 + max(map(len, tokens))
        # The tokens of a sentence's phrases, after EOS; for each phrase, the symbol that a token is.
        self.forced_NF = torch.tensor([[EOS, *one, *[PAD] * (F - 1 - len(one))] for one in tokens], device=device)
        symbol_NPG = torch.zeros(N, P, F + 1, dtype=torch.long)
        for n, of_one in enumerate(phrases):
            for p, phrase in enumerate(of_one):
                one = phrase.automaton
                column = {symbol: place for place, symbol in enumerate(one.symbols)}
                table_NP[n, p], left_NP[n, p] = places[phrase.variants]
                none = len(one.symbols)
                width_NP[n, p] = none + 1
                first_NP[n, p], count_NP[n, p], whole_NP[n, p] = one.first, phrase.count, phrase.whole
                symbol_NPG[n, p] = none
                symbol_NPG[n, p, 1 : 1 + len(tokens[n])] = torch.tensor([column.get(one, none) for one in tokens[n]])
        self._next, self._left = (torch.tensor(one, dtype=torch.int32, device=device) for one in (following, left))
        self._symbol_NPG, self._table_NP, self._left_NP, self._width_NP = (
            one.to(device) for one in (symbol_NPG, table_NP, left_NP, width_NP)
        )
        self._first_NP, self._count_NP, self._whole_NP = (one.to(device) for one in (first_NP, count_NP, whole_NP))

    def keep_sentences(self, kept_M: Tensor) -> None:
        """Keep some of the sentences."""
        for name in _OF_SENTENCES:
            setattr(self, name, getattr(self, name)[kept_M])

    def start(self) -> PhraseProgress:
        """Return the progress before the first token, of one row for each sentence."""
        return PhraseProgress(self._first_NP[:, None].clone(), torch.zeros_like(self._count_NP)[:, None])

    def places(self, token_NM: Tensor) -> Tensor:
        """Return the place of each token in `forced_NF`, or F."""
        same_NMF = token_NM[:, :, None] == self.forced_NF[:, None]
        return torch.where(same_NMF.any(2), same_NMF.to(torch.uint8).argmax(2), self.forced_NF.shape[1])

    def advance(self, progress: PhraseProgress, token_NM: Tensor, place_NM: Tensor) -> PhraseProgress:
        """Return the progress after one more token in each row. `place_NM`: of the tokens, see `places`."""
        state_NMP, count_NMP = progress.state_NKP, progress.count_NKP
        n_N11 = torch.arange(len(token_NM), device=token_NM.device)[:, None, None]
        p_P = torch.arange(self._count_NP.shape[1], device=token_NM.device)
        begins_NM1 = self.begins_word_V[token_NM][:, :, None]
        occurs_NMP = (self._left_of(state_NMP) == 0) & (begins_NM1 | ~self._whole_NP[:, None])
        before_NMP = torch.where(occurs_NMP, ROOT, state_NMP)
        symbol_NMP = self._symbol_NPG[n_N11, p_P, place_NM[:, :, None]]
        after_NMP = self._next[self._table_NP[:, None] + before_NMP * self._width_NP[:, None] + symbol_NMP].long()
        return PhraseProgress(after_NMP, torch.minimum(count_NMP + occurs_NMP, self._count_NP[:, None]))

    def _left_of(self, state_NMP: Tensor) -> Tensor:
        return self._left[self._left_NP[:, None] + state_NMP].long()

    def met(self, progress: PhraseProgress) -> Tensor:
        """Return whether each row (N, K) contains all phrases."""
        return (progress.count_NKP >= self._count_NP[:, None]).all(2)

    def unmet_tokens(self, progress: PhraseProgress) -> Tensor:
        """Return how many tokens each row (N, K) lacks, if the phrase that has most of its tokens is continued.

        Only one phrase counts while it is incomplete. A token that begins several phrases would otherwise be better
        than one that continues any of them.
        """
        missing_NKP = self._count_NP[:, None] - progress.count_NKP
        length_NKP = self._left_of(torch.full_like(self._count_NP, ROOT)[:, None])
        begun_NKP = torch.where(missing_NKP > 0, length_NKP - self._left_of(progress.state_NKP), 0)
        return (missing_NKP * length_NKP).sum(2) - begun_NKP.amax(2)

    def complete(self, progress: PhraseProgress) -> Tensor:
        """Return the rows (N, K) in which a phrase is complete if a word begins next."""
        needed_NKP = progress.count_NKP < self._count_NP[:, None]
        return ((self._left_of(progress.state_NKP) == 0) & self._whole_NP[:, None] & needed_NKP).any(2)


def begins_word(tokenizer: Tokenizer) -> Tensor:
    """Return which tokens (V) do not continue the word before them."""
    if tokenizer not in _BEGINS_WORD:
        _BEGINS_WORD[tokenizer] = _begins_word(tokenizer)
    return _BEGINS_WORD[tokenizer]


def _begins_word(tokenizer: Tokenizer) -> Tensor:
    words = [number for number in range(UNK + 1, tokenizer.size) if number not in tokenizer.controls]
    before = next((number for number in words if tokenizer.decode([number])[-1:].isalnum()), None)
    found_V = torch.ones(tokenizer.size, dtype=torch.bool)
    if before is None:
        return found_V
    start = tokenizer.decode([before])
    for number in words:
        first = tokenizer.decode([before, number]).removeprefix(start)[:1]
        found_V[number] = not (first.isalnum() or first in ("_", "\ufffd"))  # U+FFFD: a part of a character
    return found_V


def can_write(tokenizer: Tokenizer, text: str) -> bool:
    """Return whether the vocabulary can represent a text."""
    return UNK not in tokenizer.encode(text)


def encode_constraint(tokenizer: Tokenizer, constraint: Constraint) -> TokenConstraint:
    """Return a constraint as tokens. Phrases that the vocabulary cannot represent are left out.

    Raise DataError if the phrases of one text have more tokens than a search can require.
    """
    phrases = [_encode_phrase(tokenizer, phrase) for phrase in constraint.phrases]
    prefix = tokenizer.encode(constraint.prefix) if constraint.prefix else []
    required = sum(phrase.count * len(variant) for phrase in phrases for variant in phrase.variants[:1])
    if required > MOST_REQUIRED:
        raise DataError(
            f"a sentence has terms whose targets need {required:,} tokens; at most {MOST_REQUIRED}: shorten it"
        )
    varied = sum(len(variant) for phrase in phrases for variant in phrase.variants)
    if varied > MOST_VARIED:
        raise DataError(
            f"a sentence has terms whose targets have {varied:,} tokens in all forms; at most {MOST_VARIED:,}: give "
            "fewer targets for a term, or shorten the sentence"
        )
    return TokenConstraint(tuple(phrase for phrase in phrases if phrase.variants), tuple(prefix))


def _encode_phrase(tokenizer: Tokenizer, phrase: RequiredPhrase) -> Phrase:
    variants: dict[tuple[int, ...], None] = {}
    for text in phrase.alternatives:
        context = "。" if is_unspaced(text[0]) else "x "
        inside = _after(tokenizer, context, text)
        if UNK in inside:  # some vocabularies have no blank
            inside = tuple(tokenizer.encode(text))
        if UNK in inside or not inside:
            continue
        variants[inside] = None
        for first in (text, text[0].upper() + text[1:]):
            variants[START, *tokenizer.encode(first)] = None
    ends = {text[-1] for text in phrase.alternatives}
    whole = all(end.isalnum() and not is_unspaced(end) for end in ends)
    return Phrase(tuple(one for one in variants if UNK not in one and one != (START,)), phrase.count, whole)


def _after(tokenizer: Tokenizer, context: str, text: str) -> tuple[int, ...]:
    """Return the tokens of a text that follows a context."""
    before, whole = tokenizer.encode(context.rstrip()), tokenizer.encode(context + text)
    return tuple(whole[len(before) :] if whole[: len(before)] == before else tokenizer.encode(text))
