"""Back-translation against a plain loop: which pairs are made, which texts are dropped, and what a kill leaves."""

import json
import os
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import allyouneed
from allyouneed.cli import run
from allyouneed.config import parse
from allyouneed.corpus import back_translation
from allyouneed.corpus.back_translation import BackSettings, back_translate, with_noise
from allyouneed.decode import SampleConfig, SearchConfig
from allyouneed.errors import ConfigError, DataError, FolderError
from allyouneed.pipeline import Pipeline
from allyouneed.tasks.translation import TranslationConfig
from allyouneed.text.corpora import TextCorpus
from allyouneed.text.output_checks import doubts_of
from allyouneed.training import Recipe, train

NOUNS = {"Katze": "cat", "Maus": "mouse", "Kuh": "cow", "Ente": "duck"}
ADJECTIVES = {"rote": "red", "alte": "old", "kleine": "small", "nette": "nice"}
PAIRS = [
    (f"eine {adjective} {noun} und eine {other}", f"a {ours} {NOUNS[noun]} and a {NOUNS[other]}")
    for noun in NOUNS
    for adjective, ours in ADJECTIVES.items()
    for other in NOUNS
]
TEXTS = [pair[0] for pair in PAIRS[::3]]
ODD = ["", "eine Kuh und eine Kuh und eine Kuh und eine Kuh und eine Kuh", "  ", "Ente Ente", "eine"]


@pytest.fixture(scope="module")
def reverse(tmp_path_factory: pytest.TempPathFactory) -> Pipeline:
    """Train a model from German to English that has learnt most of its few pairs."""
    folder = tmp_path_factory.mktemp("reverse")
    for side, end in enumerate(("de", "en")):
        (folder / f"train.{end}").write_text("".join(f"{pair[side]}\n" for pair in PAIRS), encoding="utf-8")
    files = [str(folder / f"train.{end}") for end in ("de", "en")]
    model = {"type": "encoder-decoder", "width": 32, "hidden": 32, "encoder_layers": 1, "decoder_layers": 1}
    recipe = {
        "task": {"type": "translation", "train": files, "valid": files, "tokenizer": {"kind": "words", "size": 60}},
        "model": {**model, "mixer": {"type": "softmax", "heads": 2}, "dropout": 0.0},
        "train": {
            "budget": {"steps": 60},
            "evaluate_every": 1.0,
            "optimizer": {"type": "adamw", "lr": 5e-3},
            "schedule": {"type": "linear", "warmup": 0.1},
        },
        "decode": {"beam": 2},
    }
    train(parse(Recipe, recipe), folder / "run")
    return allyouneed.load(folder / "run")


@pytest.fixture
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(back_translation, "ROWS", 7)


def write_texts(folder: Path, texts: list[str] = [*TEXTS, *ODD]) -> list[TextCorpus]:  # noqa: B006
    (folder / "mono.de").write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    return [TextCorpus(files=(str(folder / "mono.de"),))]


def settings_of(reverse: Pipeline, **changes: Any) -> BackSettings:
    return BackSettings(search=SearchConfig(beam=2), **changes)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.name != "lock"}


def expected(reverse: Pipeline, keep: tuple[str, ...] = ()) -> tuple[list[tuple[str, str]], list[dict[str, Any]]]:
    """Return the pairs and the dropped rows, from a plain loop over the texts."""
    pairs, dropped = [], []
    for number, text in enumerate([*TEXTS, *ODD], start=1):
        if not text.strip():
            continue
        (source,) = reverse.translate([text])
        reasons = [doubt for doubt in doubts_of(text, source) if doubt not in keep] if source.strip() else ["empty"]
        if reasons:
            dropped.append({"line": number, "reasons": reasons, "source": source, "target": text})
        else:
            pairs.append((source, text))
    return pairs, dropped


@pytest.mark.usefixtures("small_steps")
def test_pairs_and_dropped_texts_are_those_of_a_plain_loop(reverse: Pipeline, tmp_path: Path) -> None:
    corpora, out = write_texts(tmp_path), tmp_path / "back"
    made = back_translate(reverse, corpora, out, settings_of(reverse))
    pairs, dropped = expected(reverse)
    assert [path.name for path in made.files] == ["back.en", "back.de"]
    sides = [path.read_text(encoding="utf-8").splitlines() for path in made.files]
    assert list(zip(*sides, strict=True)) == pairs
    assert 10 < len(pairs) < len(TEXTS) + len(ODD) - 2
    found = [json.loads(line) for line in (out / "dropped.jsonl").read_text(encoding="utf-8").splitlines()]
    places = [f"{tmp_path}/mono.de: line {one.pop('line')}" for one in dropped]
    assert found == [{"where": where, **one} for where, one in zip(places, dropped, strict=True)]
    assert (made.texts, made.empty, made.pairs) == (len(TEXTS) + len(ODD), 2, len(pairs))
    assert made.reasons == Counter(reason for one in dropped for reason in one["reasons"])
    assert sorted(contents(out)) == ["back-translation.json", "back.de", "back.en", "dropped.jsonl"]
    # It is a corpus for training beside another one.
    real = {"files": [str(Path(reverse.recipe["task"]["train"][side])) for side in (1, 0)]}
    back = {"files": list(map(str, made.files)), "tag": "<BT>", "weight": 0.5}
    task = parse(TranslationConfig, {"train": [real, back], "valid": real, "tokenizer": {"kind": "words", "size": 60}})
    assert any(f"{len(pairs)} pairs, their sources with" in note for note in task.prepare(tmp_path / "d", 1).notes)


def test_kept_kinds_are_not_dropped(reverse: Pipeline, tmp_path: Path) -> None:
    kinds = ("repeated", "short", "copied")
    made = back_translate(reverse, write_texts(tmp_path), tmp_path / "back", settings_of(reverse, keep=kinds))
    pairs, _ = expected(reverse, kinds)
    assert made.files[1].read_text(encoding="utf-8").splitlines() == [target for _, target in pairs]
    assert not set(made.reasons) & set(kinds)


@pytest.mark.usefixtures("small_steps")
@pytest.mark.parametrize("changes", [{}, {"sample": SampleConfig(temperature=1.5, seed=3)}, {"noise": 0.2, "seed": 5}])
def test_an_interrupted_run_continues_to_the_same_files(
    reverse: Pipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any]
) -> None:
    corpora, settings = write_texts(tmp_path), settings_of(reverse, **changes)
    back_translate(reverse, corpora, tmp_path / "whole", settings)
    counts: list[int] = []
    real_append = back_translation.GrowingFiles.append

    def killed(files: Any, texts: Any, found: Any) -> None:  # as by a kill before, in and after a step
        counts.append(found["rows"])
        if len(counts) == 1:
            raise KeyboardInterrupt
        real_append(files, texts, found)
        if len(counts) == 3:
            for path in files.folder.glob("*.part"):
                with path.open("a") as file:
                    file.write("half of a step")
            raise KeyboardInterrupt

    monkeypatch.setattr(back_translation.GrowingFiles, "append", killed)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            back_translate(reverse, corpora, tmp_path / "back", settings)
    made = back_translate(reverse, corpora, tmp_path / "back", settings)
    assert counts == [7, 7, 14, *range(21, made.texts, 7), made.texts]
    assert contents(tmp_path / "back") == contents(tmp_path / "whole")
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "back").iterdir() if path.name != "lock"}
    assert back_translate(reverse, corpora, tmp_path / "back", settings) == made  # finished: nothing is written
    assert before == {path: path.stat().st_mtime_ns for path in before}


def test_a_kill_while_files_get_their_names(reverse: Pipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    corpora, out, replaced, real = write_texts(tmp_path), tmp_path / "back", [], os.replace

    def replace_some(old: Any, new: Any) -> None:
        if str(old).endswith(".part"):
            replaced.append(new)
            if len(replaced) == 2:
                raise KeyboardInterrupt
        real(old, new)

    monkeypatch.setattr(os, "replace", replace_some)
    with pytest.raises(KeyboardInterrupt):
        back_translate(reverse, corpora, out, settings_of(reverse))
    assert (out / "back.de.part").exists()
    assert not (out / "back.en.part").exists()
    made = back_translate(reverse, corpora, out, settings_of(reverse))
    assert made.pairs == len(made.files[0].read_text().splitlines()) == len(made.files[1].read_text().splitlines())
    assert sorted(contents(out)) == ["back-translation.json", "back.de", "back.en", "dropped.jsonl"]


def test_another_model_setting_text_or_folder_is_refused(reverse: Pipeline, tmp_path: Path) -> None:
    corpora, out, settings = write_texts(tmp_path), tmp_path / "back", settings_of(reverse)
    back_translate(reverse, corpora, out, settings)
    with pytest.raises(ConfigError, match=r"made with another settings\.noise; choose another --out"):
        back_translate(reverse, corpora, out, settings_of(reverse, noise=0.1))
    with pytest.raises(ConfigError, match="another model; choose"):
        back_translate(replace(reverse, sha256="0" * 64), corpora, out, settings)
    write_texts(tmp_path, ["eine andere Katze"])
    with pytest.raises(ConfigError, match=r"another texts\.sha256\..*mono\.de; choose"):
        back_translate(reverse, corpora, out, settings)
    with pytest.raises(ConfigError, match="holds other files; choose another folder"):
        back_translate(reverse, corpora, tmp_path, settings)
    assert not (tmp_path / "lock").exists()
    write_texts(tmp_path, [])
    with pytest.raises(DataError, match=r"mono\.de: no text to translate"):
        back_translate(reverse, corpora, tmp_path / "none", settings)


def test_a_damaged_part_is_refused(reverse: Pipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    corpora, out = write_texts(tmp_path), tmp_path / "back"

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(back_translation.GrowingFiles, "finish", interrupted)
    with pytest.raises(KeyboardInterrupt):
        back_translate(reverse, corpora, out, settings_of(reverse))
    (out / "back.de.part").write_text("")
    with pytest.raises(FolderError, match=r"back\.de\.part: is not what was written"):
        back_translate(reverse, corpora, out, settings_of(reverse))


def test_samples_are_translations_that_differ(reverse: Pipeline, tmp_path: Path) -> None:
    kinds, corpora = ("repeated", "short", "copied"), write_texts(tmp_path)
    made = {}
    for name, temperature, seed in (("cold", 0.0, 0), ("hot", 3.0, 0), ("again", 3.0, 0), ("other", 3.0, 1)):
        sampling = SampleConfig(temperature=temperature, seed=seed)
        settings = settings_of(reverse, sample=sampling, keep=kinds)
        made[name] = back_translate(reverse, corpora, tmp_path / name, settings).files[0].read_text(encoding="utf-8")
    greedy = [text for text in reverse.translate([text for text in [*TEXTS, *ODD] if text.strip()], beam=1) if text]
    assert made["cold"].splitlines() == greedy
    assert made["hot"] == made["again"]
    assert len({made["cold"], made["hot"], made["other"]}) == 3


def test_noise_drops_words_and_moves_them_a_little() -> None:
    words = [f"w{number}" for number in range(1000)]
    found = with_noise(" ".join(words), 0.1, 1, 7).split()
    assert 870 < len(found) < 930  # 900 with a standard deviation of 9.5
    assert set(found) <= set(words)
    kept = [word for word in words if word in set(found)]
    moves = [abs(place - kept.index(word)) for place, word in enumerate(found)]
    assert max(moves) == 3
    assert sum(map(bool, moves)) > 400
    assert with_noise(" ".join(words), 0.1, 1, 7).split() == found
    assert with_noise(" ".join(words), 0.1, 1, 8).split() != found
    assert with_noise("one", 0.99, 1, 3) == "one"


def test_documents_of_other_formats_become_lines(reverse: Pipeline, tmp_path: Path) -> None:
    rows = [{"de": "eine rote Maus\nund eine Kuh", "n": 1}, {"de": "wort " * 5000}, {"de": None}]
    (tmp_path / "mono.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    corpora = [TextCorpus(files=(str(tmp_path / "mono.jsonl"),), text="de")]
    settings = settings_of(reverse, keep=("repeated", "short", "copied"))
    made = back_translate(reverse, corpora, tmp_path / "back", settings)
    assert made.files[1].read_text(encoding="utf-8") == "eine rote Maus und eine Kuh\n"
    assert made.reasons == {"long": 1}
    assert made.empty == 1


def test_the_command_states_what_it_dropped(
    reverse: Pipeline, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_texts(tmp_path)
    command = ["data", "back-translate", str(reverse.path), str(tmp_path / "mono.de"), "--out", str(tmp_path / "back")]
    assert run(command) == 0
    found = capsys.readouterr()
    pairs, dropped = expected(reverse)
    repeated = sum("repeated" in one["reasons"] for one in dropped)
    assert f"dropped: {repeated} text{'s' * (repeated != 1)}: a phrase is repeated\n" in found.out
    assert "dropped: 2 empty texts\n" in found.out
    assert f"pairs: {len(pairs)} of {len(TEXTS) + len(ODD)} texts\n" in found.out
    assert f'{{ files = ["{tmp_path}/back/back.en", "{tmp_path}/back/back.de"], tag = "<BT>" }}' in found.out
    assert run(command) == 0
    assert capsys.readouterr().out == found.out
    for more, message in (
        (["--temperature", "2"], "--temperature: has no effect without --sample"),
        (["--sample", "--beam", "2"], "--beam: has no effect with --sample"),
        (["--keep", "wrong"], "keep"),
        (["--noise", "1"], "noise"),
        (["--from", "de"], "no language tags"),
    ):
        assert run([*command, *more]) == 2
        assert message in capsys.readouterr().err
