"""HTML as a document: only the text changes, and a translation never becomes markup."""

import html
import re
from collections import Counter
from collections.abc import Callable
from html.parser import HTMLParser

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_translator import translated as run

from allyouneed.documents.html_document import HtmlDocument
from allyouneed.errors import DataError

GERMAN = {"two big dogs": "zwei große Hunde", "Run now": "Rufe jetzt"}


def translated(text: str, translate: Callable[[str], str] = lambda unit: GERMAN.get(unit, unit.upper())) -> str:
    return run(HtmlDocument(text), translate)[0].decode()


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("plain", "PLAIN"),
        ('<p class="green">hello!</p>', '<p class="green">HELLO!</p>'),
        ("<P CLASS=a>x<BR/>y<img src=x alt='y'>", "<P CLASS=a>X<BR/>Y<img src=x alt='y'>"),
        ("<p>two <b>big</b> dogs</p>", "<p>zwei <b>große</b> Hunde</p>"),
        ("\n two <a href='>'><b>big</b></a> <i>dogs</i>\n", "\n zwei <a href='>'><b>große</b></a> <i>Hunde</i>\n"),
        ("<b>two <i>big</i> dogs</b>.", "<b>TWO <i>BIG</i> DOGS</b>."),
        ("<p>one <b>one</b></p>", "<p>ONE <b>ONE</b></p>"),
        ("<b><i>x</b></i> y", "<b><i>X</b></i> Y"),
        ("Run <code>ls dogs</code> now", "Rufe <code>ls dogs</code> jetzt"),
        ("<p translate=no>a <p>b</p></p>c", "<p translate=no>a <p>b</p></p>C"),
        ("c <b class='x notranslate'>d</b>", "C <b class='x notranslate'>d</b>"),
        ("<script>if (a<b && c) x()</script>y", "<script>if (a<b && c) x()</script>Y"),
        ("<style>a > b</style>y", "<style>a > b</style>Y"),
        ("<!doctype html><!-- a <b> --><?php x ?>y", "<!doctype html><!-- a <b> --><?php x ?>Y"),
        ("<pre>one two\n  three\n</pre>a\nb", "<pre>ONE TWO\n  THREE\n</pre>A B"),
        ("a &lt; b &amp; c &eacute;&#33;", "A &lt; B &amp; C É!"),
        ("AT&T 1 < 2", "AT&amp;T 1 &lt; 2"),
        ("<b>&nbsp;</b> &copy; <hr> \n", "<b>&nbsp;</b> &copy; <hr> \n"),
        ("</>x</>y", "</>X</>Y"),
        ("done <b attr='", "DONE <b attr='"),
        ("", ""),
    ],
)  # fmt: skip
def test_examples(text: str, wanted: str) -> None:
    assert translated(text) == wanted


def test_what_is_not_html() -> None:
    with pytest.raises(DataError, match="not HTML"):
        HtmlDocument("<![nothing] x>")


class MarkupOf(HTMLParser):
    """Collects everything but text."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.found: Counter[str] = Counter()  # siblings may be in another order
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found[str((tag, attrs))] += 1

    def handle_endtag(self, tag: str) -> None:
        self.found[tag] += 1

    def handle_comment(self, data: str) -> None:
        self.found[f"comment {data}"] += 1


NAMES = "p /p b /b a /a br i/ pre /pre code /code script /script"
TAGS = [*(f"<{name}>" for name in NAMES.split()), "<!--", "-->", "<b", "</"]
TEXTS = ["two", "big", "dogs", " ", "\n", "&lt;", "&", "<", ">", "'", '"', "&#x3c;", "<span translate=no>", "</span>"]
PARTS = [*TAGS, *TEXTS]


@settings(max_examples=200)
@given(
    st.lists(st.sampled_from(PARTS), max_size=20).map("".join), st.sampled_from(["<b>x</b>", "a", "", "</p>&", "-->"])
)
def test_markup_is_exactly_that_of_the_input(text: str, translation: str) -> None:
    found = translated(text, lambda unit: translation)
    assert MarkupOf(found).found == MarkupOf(text).found
    assert translated(text, lambda unit: unit) is not None


@settings(max_examples=200)
@given(
    st.lists(
        st.sampled_from([part for part in PARTS if "code" not in part and "script" not in part and "no" not in part]),
        max_size=12,
    ).map("".join)
)
def test_no_text_is_lost(text: str) -> None:
    words = re.compile("two|big|dogs")
    tags = re.compile("<[^<>]*>|<!--.*?-->", re.DOTALL)
    if "<!--" not in text and not re.search("<[ab/][^>]*$", text):
        shown = words.findall(html.unescape(tags.sub("", text)))
        assert words.findall(html.unescape(tags.sub("", translated(text, lambda unit: unit)))) == shown


def test_time_is_linear_in_hostile_input() -> None:
    for text in ("<a " * 6000, "<b>" * 6000 + "x" + "</b>" * 100, "<!--" * 5000, "x <b>y</b> " * 1500, "&" * 20000):
        translated(text)  # seconds each if it were quadratic; a recursive parser would fail


def test_units_are_what_a_reader_sees() -> None:
    document = HtmlDocument("<h1>Title</h1><p>two <b>big</b>\n dogs, fish &amp; chips<li>x")
    assert document.units == ["Title", "two big dogs, fish & chips", "x"]
