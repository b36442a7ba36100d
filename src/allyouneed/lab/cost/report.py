"""The report of a cost study: tables, charts, HTML page and JSON."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

from allyouneed.lab.charts import AnyChart, Chart, Curve, Dots, save_chart
from allyouneed.lab.cost.crossover import Crossing
from allyouneed.lab.cost.measure import CostStudy, MixerCost
from allyouneed.lab.report import Code, Heading, Note, Part, Table, Verdict, write_report
from allyouneed.mixers import MIXERS, Family
from allyouneed.words import counted

BASELINE = "softmax"  # drawn in the chart of every family


def formulas_table(study: CostStudy) -> Table:
    """Build the table of formulas, declared and counted FLOPs, and their exponents next to theory."""
    columns = ["mixer", "FLOPs of a layer", "n^", "counted", "d^", "counted", "declared = counted", "FLOPs at n, d"]
    rows = []
    for line in study.lines:
        theory, largest = line.row.theory, max(line.counts, key=lambda count: count.counted)
        equal = f"{len(line.counts)} of {len(line.counts)} sizes" if line.equal else "NO"
        rows.append(
            [
                *(line.row.name, f"O({theory.formula})"),
                *(_power(theory.in_length), f"{line.in_length.value:.2f}"),
                *(_power(theory.in_width), f"{line.in_width.value:.2f}"),
                *(equal, f"{largest.counted:,} at {largest.length:,}, {largest.width:,}"),
            ]
        )
    return Table(columns, rows)


def measured_table(study: CostStudy, along: str) -> Table:
    """Build the table of time and memory over lengths ("n") or widths ("d"), with fitted exponents."""
    first = (study.lines[0].over_length if along == "n" else study.lines[0].over_width) if study.lines else None
    largest = first.sizes[-1] if first else 0
    columns = ["mixer", f"{along}^ theory", f"{along}^ FLOPs here", f"{along}^ seconds", f"{along}^ memory"]
    columns += [f"ms at {along} = {largest:,}", f"MB at {along} = {largest:,}"]
    rows = []
    for line in study.lines:
        sweep = line.over_length if along == "n" else line.over_width
        flops, seconds, memory = sweep.exponents()
        held = f"{sweep.memory[-1] / 1e6:,.1f}"
        if sweep.memory_sizes[-1] != largest:
            held += f" (at {sweep.memory_sizes[-1]:,})"
        texts = [f"{flops.value:.2f}", seconds.text(), f"{memory.value:.2f}"]
        theory = _power(line.row.theory.in_length) if along == "n" else "2"  # for large d the projections dominate
        rows.append([line.row.name, theory, *texts, f"{1000 * sweep.medians[-1]:,.1f}", held])
    return Table(columns, rows)


def path_table(study: CostStudy) -> Table:
    """Build the table of sequential steps and path lengths."""
    columns = ["mixer", "sequential", f"at n = {max(study.settings.lengths):,}", "path, layers"]
    columns += [f"measured at n = {length:,}" for length in study.settings.paths]
    rows = []
    for line in study.lines:
        theory = line.row.theory
        found = [_layers(layers) for _, layers in line.paths]
        rows.append([line.row.name, f"O({theory.sequential})", f"{line.sequential:,}", theory.path, *found])
        if line.row.name == "convolution":
            found = [_layers(layers) for _, layers in study.dilated]
            rows.append(["  dilated 1, k, k², ..", "O(1)", "1", "log_k n", *found])
    return Table(columns, rows)


def crossing_table(study: CostStudy) -> Table:
    """Build the table of lengths at which self-attention becomes more expensive than recurrence."""
    columns = ["width d", "against", "in FLOPs from n =", "n / d", "in seconds from n =", "n / d"]
    rows = []
    for one in study.crossings:
        flops = ("1 (always)", "") if one.in_flops is None else (f"{one.in_flops:,}", f"{one.in_flops / one.width:.2g}")
        rows.append([str(one.width), one.recurrence, *flops, *_seconds_crossing(one)])
    return Table(columns, rows)


def _seconds_crossing(one: Crossing) -> tuple[str, str]:
    if one.in_seconds is not None:
        return f"{one.in_seconds:,.0f}", f"{one.in_seconds / one.width:.2g}"
    if one.attention[-1] > one.recurrent[-1]:
        return f"below {one.lengths[0]:,}", ""
    return f"beyond {one.lengths[-1]:,}", ""


def verdicts(study: CostStudy) -> list[str]:
    """Return the results as sentences."""
    lines = study.lines
    unequal = [line.row.name for line in lines if not line.equal]
    off = [line.row.name for line in lines if not line.as_theory]
    sizes = sum(len(line.counts) for line in lines)
    sentences = [
        f"Declared and counted FLOPs differ for {', '.join(unequal)}."
        if unequal
        else f"Declared FLOPs equal counted FLOPs exactly: {counted(len(lines), 'mixer')}, {counted(sizes, 'size')}.",
        f"FLOP exponents more than 0.15 from theory: {', '.join(off)}."
        if off
        else "Every FLOP exponent, in n and in d, is within 0.15 of theory.",
    ]
    slower = [
        f"{line.row.name} {seconds.value:.2f} (FLOPs {flops.value:.2f})"
        for line in lines
        for flops, seconds, _ in [line.over_length.exponents()]
        if abs(seconds.value - flops.value) > 0.15
    ]
    if slower:
        sentences.append(f"Seconds over n do not follow the FLOPs at these sizes: {', '.join(slower)}.")
    return sentences + _crossing_sentences(study.crossings)


def _crossing_sentences(crossings: Sequence[Crossing]) -> list[str]:
    sentences = []
    for one in crossings:
        if one.in_flops is None:
            continue
        if one.in_seconds is not None:
            then = f"more seconds from n = {one.in_seconds:,.0f} ({one.in_seconds / one.width:.2g} d)"
        elif one.attention[-1] > one.recurrent[-1]:
            then = f"more seconds at every length from {one.lengths[0]:,}"
        else:
            then = f"fewer seconds up to at least n = {one.lengths[-1]:,}"
        sentences.append(
            f"At d = {one.width} self-attention takes more FLOPs than {one.recurrence} from n = {one.in_flops:,} "
            f"({one.in_flops / one.width:.2g} d), and {then}."
        )
    return sentences


def charts(study: CostStudy) -> dict[str, AnyChart]:
    """Return the charts by file name."""
    settings = study.settings
    drawn: dict[str, AnyChart] = {}
    for number, family in enumerate(get_args(Family), start=1):
        members = [line for line in study.lines if MIXERS[line.row.name].family == family]
        baseline = [line for line in study.lines if line.row.name == BASELINE]
        lines = [*baseline, *(line for line in members if line not in baseline)]
        if not members or (lines == baseline and len(study.lines) > 1):
            continue
        note = f"One layer, one sequence, width {settings.width}, forward and backward, one core."
        for kind, label in (("seconds", "seconds"), ("memory", "peak megabytes")):
            curves = [_curve(line, kind) for line in lines]
            shorter = kind == "memory" and any(line.row.theory.loops for line in lines)
            more = " Recurrences at a quarter of the lengths." if shorter else ""
            drawn[f"{kind}-{number}"] = Chart(
                f"{kind.capitalize()} over length: {family}", "length n", label, curves, True, True, note + more
            )
    widths = sorted({one.width for one in study.crossings})
    for width in widths:
        drawn[f"crossover-{width}"] = _crossing_chart(study, width)
    drawn["exponents"] = exponent_chart(study.lines)
    return drawn


def exponent_chart(lines: Sequence[MixerCost]) -> Dots:
    """Draw the exponent of n of every mixer: by theory, of FLOPs and of seconds."""
    time = [line.over_length.exponents()[1] for line in lines]
    return Dots(
        "The exponent of n",
        "exponent",
        [line.row.name for line in lines],
        {
            "theory": [line.row.theory.in_length for line in lines],
            "FLOPs counted": [line.in_length.value for line in lines],
            "seconds": [found.value for found in time],
        },
        note="Seconds: forward and backward at the largest lengths; constant costs dominate at small sizes.",
    )


def _curve(line: MixerCost, kind: str) -> Curve:
    sweep = line.over_length
    if kind == "memory":
        return Curve(line.row.name, sweep.memory_sizes, [size / 1e6 for size in sweep.memory])
    low = [min(values) for values in zip(*sweep.seconds, strict=True)]
    high = [max(values) for values in zip(*sweep.seconds, strict=True)]
    return Curve(line.row.name, sweep.sizes, sweep.medians, low, high)


def _crossing_chart(study: CostStudy, width: int) -> Chart:
    here = [one for one in study.crossings if one.width == width]
    lengths = here[0].lengths
    curves = [Curve("softmax", lengths, here[0].attention)]
    curves += [Curve(one.recurrence, lengths, one.recurrent) for one in here]
    lengths_text = [
        f"than {one.recurrence} from n = {one.in_seconds:,.0f}" for one in here if one.in_seconds is not None
    ]
    note = f"Self-attention takes longer {', '.join(lengths_text)}." if lengths_text else ""
    return Chart(f"Recurrence and self-attention, d = {width}", "length n", "seconds", curves, True, True, note)


def write_cost_report(study: CostStudy, out: Path, command: str) -> Path:
    """Write report.html, report.json and the charts."""
    pictures = charts(study)
    settings = study.settings
    parts: list[Part] = [
        *(Verdict(sentence) for sentence in verdicts(study)),
        Heading("FLOPs: formula, declared, counted"),
        formulas_table(study),
        Note(
            "n^ and d^: the exponents of the leading term, by theory and as fitted to FLOPs counted at sizes where "
            "that term dominates (listed in report.json). Attention's own term dominates if n, or the number of "
            "positions read, is large compared with d; its four projections, O(n d²), are counted too. The other "
            "mixers are counted at large d."
        ),
        pictures["exponents"],
        Heading("Measured over lengths"),
        measured_table(study, "n"),
        *(chart for name, chart in pictures.items() if name.startswith(("seconds", "memory"))),
        Heading("Measured over widths"),
        measured_table(study, "d"),
        Note(
            f"Forward and backward pass of one layer over one sequence, float32, one core: lengths at d = "
            f"{settings.width}, widths at n = {settings.length}. Seconds: CPU time, the median of {settings.repeats} "
            "rounds over all layers; in brackets the lowest and highest exponent of single rounds. Memory: the peak of "
            "torch's allocator, from its profiler (without weights and input, and without buffers inside oneDNN and "
            "BLAS; recurrences at a quarter of the lengths). 'FLOPs here': the exponent of the declared FLOPs at the "
            "same sizes, to compare seconds with. Over widths the projections, O(n d²), dominate the mechanism's own "
            "term: the exponent by theory is 2."
        ),
        Heading("Sequential steps and path length"),
        path_table(study),
        Note(
            "Path: the number of layers until the first position can change the last, measured by changing it. A "
            "recurrence needs one layer, inside which the signal passes n steps; table 1 of the paper counts those."
        ),
        *([Heading("Where self-attention becomes more expensive than recurrence")] if study.crossings else []),
        *([crossing_table(study)] if study.crossings else []),
        *(chart for name, chart in pictures.items() if name.startswith("crossover")),
        Code(command),
    ]
    page = write_report(out, "cost", "The cost of a layer", parts, as_data(study))
    for name, chart in pictures.items():
        save_chart(chart, out / f"{name}.png")
    return page


def as_data(study: CostStudy) -> dict[str, Any]:
    """Return the content of report.json."""
    return {
        "settings": vars(study.settings),
        "verdicts": verdicts(study),
        "mixers": {line.row.name: _line_data(line) for line in study.lines},
        "dilated_path": [{"n": length, "layers": layers} for length, layers in study.dilated],
        "crossover": [
            vars(one) | {"in_seconds": one.in_seconds, "attention": one.attention} for one in study.crossings
        ],
    }


def _line_data(line: MixerCost) -> dict[str, Any]:
    return {
        "theory": vars(line.row.theory),
        "flops": [vars(count) for count in line.counts],
        "stated_is_counted": line.equal,
        "flops_exponents": {"n": line.in_length.value, "d": line.in_width.value},
        "over_n": vars(line.over_length) | _named(line.over_length.exponents()),
        "over_d": vars(line.over_width) | _named(line.over_width.exponents()),
        "path": [{"n": length, "layers": layers} for length, layers in line.paths],
        "sequential": line.sequential,
    }


def _named(found: Sequence[Any]) -> dict[str, Any]:
    names = ("flops_exponent", "seconds_exponent", "memory_exponent")
    return {name: vars(one) for name, one in zip(names, found, strict=True)}


def _power(value: float) -> str:
    return f"{value:g}"


def _layers(layers: int | None) -> str:
    return "never" if layers is None else f"{layers:,}"
