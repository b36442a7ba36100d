"""A corpus of English and German pairs in which each defect is planted a known number of times."""

import random
import unicodedata


def _words(text: str) -> list[str]:
    return text.split()


ENGLISH = _words(
    "the a this that house garden winter summer green small little man woman children with without through "
    "before after their should would which there water bread morning evening reads writes thinks knows "
    "something nothing always never quickly slowly because while between under over people church street "
    "window "
)
GERMAN = _words(
    "der die das ein eine dieses jenes Haus Garten Winter Sommer grüne kleine Mann Frau Kinder mit ohne durch "
    "vor nach ihre sollte würde welche dort Wasser Brot morgens abends liest schreibt denkt weiß etwas nichts "
    "immer niemals schnell langsam weil während zwischen unter über Menschen Kirche Straße Fenster "
)
FRENCH = _words(
    "le la les une maison jardin hiver été petite femme enfants avec sans avant après leur devrait laquelle "
    "eau pain matin soir quelque chose toujours jamais rapidement parce que pendant entre sous gens église rue "
    "fenêtre "
)
Pair = tuple[str, str]


def sentence(chooser: random.Random, words: list[str], size: int = 12) -> str:
    return " ".join(chooser.choices(words, k=size))


def clean_pairs(count: int, seed: int = 1) -> list[Pair]:
    """Return pairs without a defect."""
    chooser = random.Random(seed)
    return [(sentence(chooser, ENGLISH), sentence(chooser, GERMAN)) for _ in range(count)]


def planted(count: int = 1200) -> tuple[list[Pair], dict[int, str]]:
    """Return pairs, and the kind of the defect at some places."""
    pairs = clean_pairs(count)
    rows: dict[str, list[Pair]] = {
        "empty": [("", pairs[3][1]), (pairs[5][0], "   "), ("", "")],
        "duplicate": [pairs[10], pairs[11], (pairs[12][0] + " ", pairs[12][1].replace(" ", "  ")), pairs[10]],
        "ratio": [(pairs[20][0], "nein"), (pairs[21][0], " ".join(clean[1] for clean in pairs[22:27]))],
        "long": [(" ".join(clean[0] for clean in pairs[30:70]), " ".join(clean[1] for clean in pairs[30:70]))],
        "swapped": [pairs[100 + number][::-1] for number in range(7)],
        "language": [(pairs[110][0], pairs[111][0]), (pairs[112][1], pairs[113][1])],
        "copied": [(pairs[130][1], pairs[130][1])],
        "script": [
            (pairs[140][0], "Каждый человек должен обладать всеми правами и свободами, без какого бы то ни было")
        ],
        "mojibake": [(pairs[150][0], pairs[150][1] + " Ã¼ber")],
        "replacement": [(pairs[160][0], pairs[160][1] + " �ber")],
        "control": [(pairs[170][0] + " \x07", pairs[170][1]), (pairs[171][0], pairs[171][1] + " ab\x85cd")],
        "unnormalised": [(pairs[180][0], unicodedata.normalize("NFD", pairs[180][1] + " über"))],
    }
    result, kinds = list(pairs), {}
    for kind, defective in rows.items():
        for pair in defective:
            kinds[len(result)] = kind
            result.append(pair)
    return result, kinds
