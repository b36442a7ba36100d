"""Costs: measurements with known results, theory for every mixer, a resumable study."""

import json
import math
from pathlib import Path

import pytest
import torch

from allyouneed.cli.terminal import text_table
from allyouneed.errors import ConfigError
from allyouneed.lab.cost.crossover import crossing, flops_crossing
from allyouneed.lab.cost.measure import COUNTED_HEAD, COUNTED_WIDTH, study_cost
from allyouneed.lab.cost.meter import Pass, count_flops, exponent, peak_bytes
from allyouneed.lab.cost.report import verdicts, write_cost_report
from allyouneed.lab.cost.settings import CostSettings
from allyouneed.lab.cost.table1 import Table1Row, rows
from allyouneed.lab.report import Table
from allyouneed.mixers import MIXERS

pytestmark = pytest.mark.no_shapes


def test_every_mixer_has_its_theory() -> None:
    assert all(mixer.theory.formula for mixer in MIXERS.values())


def stated(row: Table1Row, length: int, width: int) -> int:
    head = COUNTED_HEAD if row.theory.in_width == 1 else 32
    return row.config(length, width, head).cost(length, width, role=row.role).flops


@pytest.mark.parametrize("row", rows(), ids=lambda row: row.name)
def test_flop_exponents_match_theory(row: Table1Row) -> None:
    lengths, widths, length = row.counted_lengths, row.counted_widths, row.counted_width_length
    in_length = exponent(lengths, [[stated(row, one, COUNTED_WIDTH) for one in lengths]]).value
    in_width = exponent(widths, [[stated(row, length, one) for one in widths]]).value
    assert abs(in_length - row.theory.in_length) <= 0.15
    assert abs(in_width - row.theory.in_width) <= 0.15


@pytest.mark.parametrize("row", rows(), ids=lambda row: row.name)
def test_declared_flops_equal_counted_flops(row: Table1Row) -> None:
    for length, width in ((300, 32), (37, 64)):
        config = row.config(length, width)
        assert config.cost(length, width, role=row.role).flops == count_flops(config, row.role, length, width)


def test_peak_memory_of_a_known_computation() -> None:
    def work() -> None:
        a = torch.ones(1000, 1000)  # 4 MB
        b = a + 1
        del a
        c = b * 2
        d = c @ b  # three at once
        del b, c, d

    assert peak_bytes(work) == 12_000_000


def test_peak_memory_of_a_layer() -> None:
    """A recurrence stores h and the input of every position: memory is linear. Attention is not n^2."""
    (softmax,) = rows(["softmax"])
    small, large = (Pass(softmax.config(n, 64), "causal", n, 64).peak_bytes() for n in (512, 2048))
    assert small > 4 * 512 * 64 * 4  # queries, keys, values and the output at least
    assert 3 < large / small < 5


def test_exponents_of_known_curves() -> None:
    sizes = [2, 4, 8]
    found = exponent(sizes, [[3 * size**1.5 for size in sizes]])
    assert math.isclose(found.value, 1.5)
    spread = exponent(sizes, [[size**2 for size in sizes], list(sizes), [size**1.5 for size in sizes]])
    assert math.isclose(spread.value, 1.5)
    assert (round(spread.low, 9), round(spread.high, 9)) == (1, 2)
    assert spread.text() == "1.50 (1.00 to 2.00)"


@pytest.mark.parametrize("width", [32, 96])
def test_where_attention_takes_more_flops_than_recurrence(width: int) -> None:
    """4 n^2 d + 8 n d^2 against 4 n d^2 for each gate: never less than a plain RNN, from n = d for a GRU's three."""
    rnn, gru, lstm = rows(["rnn", "gru", "lstm"])
    assert flops_crossing(rnn, width) is None
    assert flops_crossing(gru, width) == width
    assert flops_crossing(lstm, width) == 2 * width


def test_where_curves_cross() -> None:
    sizes = [8, 16, 32, 64]
    assert math.isclose(crossing(sizes, [20 * n for n in sizes], [n**2 for n in sizes]) or 0, 20)
    assert crossing(sizes, [1, 1, 1, 1], [2, 2, 2, 2]) is None
    assert crossing(sizes, [2, 2, 2, 2], [1, 1, 1, 1]) is None


SMALL = CostSettings(
    mixers=("softmax", "gru", "convolution"),
    lengths=(64, 128),
    widths=(32, 64),
    width=32,
    length=32,
    repeats=2,
    paths=(9,),
    cross_widths=(32,),
)


@pytest.mark.slow
def test_a_study_is_resumable_and_reported(tmp_path: Path) -> None:
    study = study_cost(SMALL, tmp_path)
    kept = tmp_path / "measured.jsonl"
    lines = kept.read_text().splitlines()
    assert [line.row.name for line in study.lines] == ["softmax", "gru", "convolution"]
    assert all(line.equal and line.as_theory for line in study.lines)
    assert [line.paths for line in study.lines] == [[(9, 1)], [(9, 1)], [(9, 4)]]
    assert study.dilated == [(9, 2)]
    assert [one.recurrence for one in study.crossings] == ["gru"]
    assert "exactly: 3 mixers, 18 sizes" in verdicts(study)[0]

    kept.write_text("\n".join(lines[:-1]) + '\n{"what": "sec')  # killed while writing the last line
    again = study_cost(SMALL, tmp_path)
    assert len(kept.read_text().splitlines()) == len(lines) + 1  # the broken line, and the repeated measurement
    assert again.lines[0].over_length == study.lines[0].over_length

    page = write_cost_report(study, tmp_path, "allyouneed cost")
    data = json.loads(page.with_suffix(".json").read_text())
    assert data["mixers"]["gru"]["stated_is_counted"] is True
    assert (tmp_path / "exponents.png").exists()


def test_wrong_settings_are_refused() -> None:
    with pytest.raises(ConfigError, match="two sizes"):
        CostSettings(lengths=(64,))
    with pytest.raises(ConfigError, match="multiple of 32"):
        CostSettings(widths=(32, 50))
    with pytest.raises(ConfigError, match="did you mean 'softmax'"):
        rows(["softmaxx"])


def test_a_table_for_a_terminal() -> None:
    assert text_table(Table(["a", "bb"], [["long", "1"]]), ruled=True) == "a     bb\n----  --\nlong   1"


@pytest.mark.slow
def test_lengths_too_short_for_a_crossover_are_accepted() -> None:
    settings = CostSettings(("softmax", "lstm"), (16, 32), (32, 64), length=16, repeats=1, paths=(8,))
    assert settings.cross_lengths == []
    assert study_cost(settings).crossings == []
