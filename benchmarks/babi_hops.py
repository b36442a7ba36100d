"""Draw the attention of a memory network: the weight of each hop on each sentence of a story.

    python benchmarks/babi_hops.py runs/babi-2 [--question 17] [--out docs/images/memn2n-hops.svg]

Without --question: the first test question with 8 to 12 sentences that is answered correctly and needs the most facts.
Also print how often, over all test questions, a supporting fact has the largest weight of some hop.
"""

import argparse
import tempfile
from pathlib import Path

import matplotlib
import torch
from matplotlib import pyplot as plt
from torch import Tensor

from allyouneed.decode import SearchConfig, translate
from allyouneed.evaluation.measure import task_data
from allyouneed.folder import Bundle, load_folder
from allyouneed.inspection.maps import record_maps
from allyouneed.inspection.pictures import ACCENT, FAINT, INK
from allyouneed.tasks.babi import SEPARATOR, BabiData

matplotlib.use("svg")


def hops_of(bundle: Bundle, text: str) -> Tensor:
    """Return the weight of each hop (H) on each sentence (N)."""
    source_BS = torch.tensor([bundle.codec.encode_source(text)])
    with record_maps(bundle.model) as maps, torch.no_grad():
        bundle.model.classify(source_BS)
    weights_HS = torch.cat([one.weights_BHTS[0, 0] for one in maps])
    # The separators before a word determine its sentence; the question comes last and has no weight.
    sentence_S = (source_BS[0] == SEPARATOR).cumsum(dim=0)
    weights_HN = torch.zeros(len(maps), int(sentence_S[-1]) + 1).index_add(1, sentence_S, weights_HS)
    return weights_HN[:, :-1]


def draw(path: Path, weights_HN: Tensor, story: list[str], facts: tuple[int, ...], title: str) -> None:
    """Draw a row for each sentence and a column for each hop; supporting facts have another colour."""
    plt.rcParams["svg.hashsalt"] = "hops"  # reproducible SVG
    hops, sentences = weights_HN.shape
    figure, axis = plt.subplots(figsize=(4.2 + 0.7 * hops, 1.1 + 0.3 * sentences), layout="constrained")
    axis.imshow(weights_HN.T, cmap="Blues", vmin=0, vmax=1, aspect="auto")
    axis.set_xticks(range(hops), [f"hop {number + 1}" for number in range(hops)], color=INK)
    axis.set_yticks(range(sentences), story, color=INK)
    axis.xaxis.tick_top()
    axis.tick_params(length=0)
    axis.spines[:].set_color(FAINT)
    for row in facts:
        axis.get_yticklabels()[row].set(color=ACCENT, fontweight="bold")
    for hop, row in torch.cartesian_prod(torch.arange(hops), torch.arange(sentences)).tolist():
        if (weight := float(weights_HN[hop, row])) >= 0.01:
            colour = "white" if weight > 0.5 else INK
            axis.text(hop, row, f"{weight:.2f}", ha="center", va="center", color=colour, fontsize=9)
    figure.suptitle(title, color=INK, fontsize=11)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path, help="run folder of a memn2n recipe")
    parser.add_argument("--question", type=int, help="index of the test question, from 0")
    parser.add_argument("--out", type=Path, default=Path("docs/images/memn2n-hops.svg"), help="default: %(default)s")
    options = parser.parse_args()
    bundle = load_folder(options.run)
    with tempfile.TemporaryDirectory() as temporary:
        data = task_data(bundle, Path(temporary))
        assert isinstance(data, BabiData)
        examples, facts = data.examples("test"), data.facts("test")
    answers = [
        best[0].text for best in translate(bundle.model, bundle.codec, [text for text, _ in examples], SearchConfig())
    ]
    weights = [hops_of(bundle, text) for text, _ in examples]
    correct = [answer == expected for answer, (_, expected) in zip(answers, examples, strict=True)]
    found = [set(one.argmax(dim=1).tolist()) for one in weights]
    total = sum(map(len, facts))
    hit = sum(len(set(needed) & read) for needed, read in zip(facts, found, strict=True))
    print(
        f"{sum(correct)} of {len(correct)} correct; {hit} of {total} supporting facts have the largest weight of a hop"
    )
    chosen = options.question
    if chosen is None:
        fitting = [i for i, one in enumerate(weights) if correct[i] and 8 <= one.shape[1] <= 12]
        chosen = max(fitting, key=lambda i: (len(facts[i]), -i))
    *story, question = examples[chosen][0].split(" . ")
    draw(options.out, weights[chosen], story, facts[chosen], f"{question}?  {answers[chosen]}")
    print(f"drawn: question {chosen} in {options.out}")


if __name__ == "__main__":
    main()
