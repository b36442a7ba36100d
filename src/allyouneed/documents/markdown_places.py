"""Where the inline tokens of markdown-it-py are in their source: the library itself records places of blocks only.

The rules that make tokens are wrapped. A wrapper knows where its rule began and ended, and stores it on the new tokens.
Everything between two tokens with places is text.
"""

from collections.abc import Callable
from functools import cache

from markdown_it import MarkdownIt
from markdown_it.rules_inline import (
    StateInline,
    autolink,
    backtick,
    emphasis,
    entity,
    escape,
    html_inline,
    image,
    link,
    newline,
    strikethrough,
)
from markdown_it.token import Token

Rule = Callable[[StateInline, bool], bool]
Place = tuple[int, int]
PLACE = "place"
_TEXTS = ("text",)
FAILED, MOST_FAILED = -1, 1000  # a key of the cache of a text, whose other keys are places; brackets


@cache
def markdown_parser() -> MarkdownIt:
    """Return a parser whose inline tokens have places."""
    parser = MarkdownIt("commonmark").enable(["table", "strikethrough"]).disable("text_join")
    rules: dict[str, Rule] = {
        "newline": newline,
        "escape": escape,
        "backticks": backtick,
        "html_inline": html_inline,
        "entity": entity,
        "image": image,
        "autolink": autolink,
    }
    for name, rule in rules.items():
        parser.inline.ruler.at(name, _whole(rule))
    for name, rule in {"strikethrough": strikethrough.tokenize, "emphasis": emphasis.tokenize}.items():
        parser.inline.ruler.at(name, _delimiters(rule))
    parser.inline.ruler.at("link", _link)
    return parser


def place_of(token: Token) -> Place | None:
    """Return where a token is in the text of its parent; None for text and for parts of another token."""
    place: Place | None = token.meta.get(PLACE)
    if place is None or token.type in _TEXTS:
        return None
    start, end = place
    if token.type == "strong_open":  # made of two delimiters, and the place is that of the inner one
        return start - 1, end
    return (start, end + 1) if token.type == "strong_close" else (start, end)


def _whole(rule: Rule) -> Rule:
    """Return a rule whose first new token gets the place of all of them."""

    def run(state: StateInline, silent: bool) -> bool:
        start, count = state.pos, len(state.tokens)
        found = rule(state, silent)
        if found and not silent:
            new = [token for token in state.tokens[count:] if token.type not in _TEXTS]  # pending text comes first
            if new:
                new[0].meta |= {PLACE: (start, state.pos), "whole": True}
        return found

    return run


def _delimiters(rule: Rule) -> Rule:
    """Return a rule whose tokens are delimiters, one behind the other."""

    def run(state: StateInline, silent: bool) -> bool:
        start, count = state.pos, len(state.tokens)
        pending = bool(state.pending)
        found = rule(state, silent)
        if found and not silent:
            for token in state.tokens[count + pending :]:
                token.meta[PLACE] = (start, start + len(token.content))
                start += len(token.content)
        return found

    return run


def _link(state: StateInline, silent: bool) -> bool:
    """Run the rule of links. A bracket without a partner is searched for in the whole text, so few are."""
    if state.cache.get(FAILED, 0) > MOST_FAILED:
        return False
    start, count = state.pos, len(state.tokens)
    pending = bool(state.pending)
    label = state.md.helpers.parseLinkLabel(state, start, True) if not silent and state.src[start] == "[" else -1
    found = link(state, silent)
    state.cache[FAILED] = state.cache.get(FAILED, 0) + (not found and state.src[start] == "[")
    if found and not silent:
        state.tokens[count + pending].meta[PLACE] = (start, start + 1)
        state.tokens[-1].meta[PLACE] = (label, state.pos)
    return found
