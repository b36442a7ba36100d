"""Translations that cannot be right are found, and ordinary ones are not."""

import pytest

from allyouneed.text.output_checks import doubts_of

LONG = "A man in a green hat looks at something far away in the street."


@pytest.mark.parametrize(
    ("source", "target", "wanted"),
    [
        (LONG, "Ein Mann mit grünem Hut schaut auf etwas weit weg auf der Straße.", []),
        (LONG, "一个戴绿帽子的男人看着街上远处的东西。", []),
        (LONG, "一个男人看着街上的看着街上的看着街上的看着街上的东西和东西", ["repeated"]),
        (LONG, "Ein Mann.", ["short"]),
        (LONG, "", ["short"]),
        ("Yes.", "", []),
        (LONG, "Ein Mann in einem Hut in einem Hut in einem Hut in einem Hut schaut", ["repeated"]),
        (LONG, "Ein Mann sehr sehr sehr großer Hut auf der Straße schaut etwas an", []),
        (LONG, "Ein Mann ja ja ja ja ja ja ja ja", ["repeated"]),
        ("%d dogs", "Ein Hund Hund Hund Hund läuft.", ["repeated"]),
        ("no no no no no no no no", "nein nein nein nein nein nein nein nein", []),
        (LONG, LONG, ["copied"]),
        (LONG, LONG.replace("hat", "Hut"), ["copied"]),
        ("Berlin Hamburg", "Berlin Hamburg", []),
    ],
)
def test_doubts(source: str, target: str, wanted: list[str]) -> None:
    assert doubts_of(source, target) == wanted
