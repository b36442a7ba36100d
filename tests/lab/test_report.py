"""Reports are self-contained and run no scripts, whatever their texts contain."""

import json
import math
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from allyouneed.errors import ConfigError
from allyouneed.lab.charts import Bar, Bars, Chart, Curve, Dots, Matrix, save_chart, svg, text_chart
from allyouneed.lab.report import (
    Code,
    Heading,
    Note,
    Paragraph,
    Table,
    Verdict,
    page,
    require_same_experiment,
    write_report,
)

pytestmark = pytest.mark.no_shapes

EVIL = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)>"
CHART = Chart(EVIL, EVIL, "loss", [Curve(EVIL, [1, 2], [3, 4], [2, 3], [4, 5]), Curve("b", [1, 2], [5, 6])])


def test_no_text_becomes_markup() -> None:
    parts = [Heading(EVIL), Paragraph(EVIL), Note(EVIL), Verdict(EVIL), Code(EVIL), Table([EVIL], [[EVIL]]), CHART]
    text = page(EVIL, parts)
    assert "<script" not in text
    quoteless = re.sub(r'"[^"]*"', '""', text)  # without attribute values, which contain no quotes
    assert not re.search(r"<[^>]*onerror", quoteless)
    assert "default-src 'none'" in text
    assert not re.findall(r"""(?:src|href)=["'](?!data:)""", text)


def test_the_numbers_are_valid_json(tmp_path: Path) -> None:
    path = write_report(tmp_path / "new", "why", "T", [Paragraph("x")], {"value": math.nan, "list": (1, 2.5)})
    data = json.loads(path.with_suffix(".json").read_text(), parse_constant=lambda word: pytest.fail(word))
    assert data["value"] is None
    assert data["list"] == [1, 2.5]


def test_text_columns_are_left_aligned() -> None:
    rows = [["1e9", "confirmed", "0.1 (0.0 to 0.2)", "× 0.9", "baseline"], ["2e9", "not shown", "–", "", "+0.3"]]
    table = Table(["FLOPs", "outcome", "loss", "rate", "difference"], rows)
    assert [table.holds_text(place) for place in range(5)] == [True, True, False, False, False]
    text = page("t", [table])
    assert '<td class="text">not shown</td><td>–</td>' in text


def test_a_report_of_another_experiment_is_not_replaced(tmp_path: Path) -> None:
    require_same_experiment(tmp_path, "cost")  # an empty folder
    write_report(tmp_path, "cost", "T", [], {})
    require_same_experiment(tmp_path, "cost")
    with pytest.raises(ConfigError, match="holds the report of 'cost', not of 'compare copy'; choose another --out"):
        require_same_experiment(tmp_path, "compare copy")
    for other in (b"{", b"[]", b'{"title": "of an older version"}'):
        (tmp_path / "report.json").write_bytes(other)
        require_same_experiment(tmp_path, "compare copy")


def test_charts_are_drawn(tmp_path: Path) -> None:
    bars = Bars("bars", "x", [Bar("one", 1, 0.5, 1.5), Bar("two", 2, 1, 3)])
    matrix = Matrix("matrix", ["a", "b"], ["x"], [[1.0], [math.nan]], [[True], [False]])
    for chart in (CHART, bars, matrix):
        ElementTree.fromstring(svg(chart))
        assert svg(chart) == svg(chart)
    assert save_chart(bars, tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


def test_names_are_not_parsed_as_formulas_or_hidden() -> None:
    name = "a$b_$c"  # not a valid formula between dollar signs
    curves = [Curve(name, [1, 2], [3, 4]), Curve("_hidden", [1, 2], [4, 5])]
    chart = Chart(name, name, name, curves, note=name, lines={name: 3.5})
    dots = Dots(name, name, [name], {name: [1.0], "_hidden": [2.0]}, name)
    for one in (
        chart,
        dots,
        Bars(name, name, [Bar(name, 1, 0.5, 1.5)], name),
        Matrix(name, [name], [name], [[1]], [[True]], name),
    ):
        ElementTree.fromstring(svg(one))
    for one in (chart, dots):
        legend = one.figure().axes[0].get_legend()
        assert legend is not None
        assert [text.get_text().strip() for text in legend.get_texts()] == [r"a\$b_\$c", "_hidden"]


def test_text_chart_puts_points_where_they_are() -> None:
    chart = Chart("t", "n", "seconds", [Curve("line", [1, 10, 100], [1, 10, 100])], log_x=True, log_y=True)
    rows = [line.partition("|")[2] for line in text_chart(chart, 21, 11).splitlines() if "|" in line]
    assert rows[0][20] == rows[5][10] == rows[10][0] == "a"
    assert "".join(rows).count("a") == 3
