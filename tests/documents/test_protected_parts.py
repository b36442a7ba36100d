"""What is protected, what a translation may change of it, and where tags go by a known alignment."""

import pytest
from random_translator import translated

from allyouneed.documents.files import read_document
from allyouneed.documents.html_document import HtmlDocument
from allyouneed.documents.protect import protected
from allyouneed.documents.translation import Texts, translate_document
from allyouneed.text.sentences import SentenceSplitter


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("Open %s, %(name)s or %1$-5.2f%%", ["%s", "%(name)s", "%1$-5.2f", "%%"]),
        ("50% discount, 100% sure", ["50", "100"]),
        ("{} {0} {user.name!r:>10} ${HOME} #{x} %{y} $(z)", None),
        ("{n, plural, one {# file} other {# files}} left", ["{n, plural, one {# file} other {# files}}"]),
        ("{% if x %}yes{% endif %} {{ name|upper }}", ["{% if x %}", "{% endif %}", "{{ name|upper }}"]),
        ("see https://x.org/a_(b)?c=d. Or www.y.de, or a.b+c@d-e.org!", None),
        ("1,000.50 and 12:30, 2024-05-01, 1 000 000 and B2B, 3rd, x86", None),
        ("a { b", []),
        ("&amp; &#33; &nope and \\n but \\name", ["&amp;", "&#33;", "\\n"]),
        ("note[^1]", ["[^1]"]),
    ],
)
def test_parts(text: str, wanted: list[str] | None) -> None:
    known = {
        "{}": ["{}", "{0}", "{user.name!r:>10}", "${HOME}", "#{x}", "%{y}", "$(z)"],
        "see": ["https://x.org/a_(b)?c=d", "www.y.de", "a.b+c@d-e.org"],
        "1,000.50": ["1,000.50", "12:30", "2024-05-01", "1 000 000"],
    }
    assert [part.text for part in protected(text)] == (known[text.split()[0]] if wanted is None else wanted)


@pytest.mark.parametrize(
    ("source", "outputs", "wanted"),
    [
        ("Pay 1,000.50 now", ["Zahle 1.000,50 jetzt"], "Zahle 1.000,50 jetzt"),  # other separators
        ("Pay 15 now", ["Zahle 51 jetzt", "Zahle jetzt"], "Zahle 15 jetzt"),
        ("Pay 15 now", ["Zahle 15 15 jetzt", "Zahle jetzt"], "Zahle 15 jetzt"),
        ("Open %s and %d.", ["Öffne %s und %s.", "Öffne und."], "Öffne %s und %d."),
        ("Open %s and {x}.", ["Öffne und {x}.", "Öffne und {x}."], "Öffne %s und {x}."),  # only the lost one
        ("Open %s and {x}.", ["Öffne und {x}.", "Öffne %s.", "Öffne und."], "Öffne %s und {x}."),
        ("See it", ["Sieh %s es"], "Sieh es"),  # made up
        ("See it", [""], "See it"),
    ],
)
def test_repairs(source: str, outputs: list[str], wanted: str) -> None:
    left = iter(outputs)
    raw, result = translated(read_document(source.encode(), "text", "x"), lambda text: next(left))
    assert raw.decode() == wanted
    assert next(left, None) is None
    assert not result.kept


def place(source: str, target: str, links: list[tuple[int, int]]) -> str:
    document = HtmlDocument(source)
    steps = translate_document(document, SentenceSplitter(None))
    request = next(steps)
    while isinstance(request, Texts):
        request = steps.send([target for _ in request.texts])
    (pair,) = request.pairs
    weights = [[float((i, j) in links) for i in range(len(pair.source_words))] for j in range(len(pair.target_words))]
    with pytest.raises(StopIteration) as end:
        steps.send([weights])
    return document.text(end.value.value.segments)


@pytest.mark.parametrize(
    ("source", "target", "links", "wanted"),
    [
        ("a <i>red</i> <b>house</b>.", "une maison rouge.", [(0, 0), (1, 2), (2, 1), (3, 3)],
         "une <b>maison</b> <i>rouge</i>."),
        ("he <b>gave up</b> now", "er gab jetzt auf", [(0, 0), (1, 1), (2, 3), (3, 2)], "er <b>gab</b> jetzt auf"),
        ("<b>he gave</b> up", "er gab auf", [(0, 0), (1, 1), (2, 2)], "<b>er gab</b> auf"),
        ("see <b>the <i>old</i> man</b>, please", "bitte den alten Mann sehen",
         [(0, 4), (1, 1), (2, 2), (3, 3), (5, 0)], "bitte <b>den <i>alten</i> Mann</b> sehen"),
        ("now press <img>, then go", "drücke jetzt und geh", [(0, 1), (1, 0), (3, 2), (4, 3)],
         "drücke jetzt <img> und geh"),
        ("a <b>dog</b> and <i>cat</i>", "Tiere", [(1, 0)], "<b>Tiere</b> <i></i>"),
    ],
)  # fmt: skip
def test_tags_follow_the_alignment(source: str, target: str, links: list[tuple[int, int]], wanted: str) -> None:
    assert place(source, target, links) == wanted
