"""A compiled program is an ordinary model folder: it can be loaded, evaluated, translated with and trained."""

import contextlib
import shutil
import sys
import tempfile

import pytest
import torch
from typer.testing import CliRunner

from allyouneed.cli import app, run
from allyouneed.config import merge, parse
from allyouneed.decode import SearchConfig, translate
from allyouneed.errors import ConfigError, DataError, FolderError
from allyouneed.evaluation.measure import evaluate_files, evaluate_split
from allyouneed.folder import folder_recipe, load_folder, save_folder
from allyouneed.rasp.api import aggregate, indices, length, select, selector_width, tokens, tokens_asis
from allyouneed.rasp.compiler import compile_file, compile_rasp, save
from allyouneed.rasp.errors import RaspError
from allyouneed.tasks.algorithms import Dice
from allyouneed.tasks.rasp import RaspConfig
from allyouneed.text.codec import Codec
from allyouneed.training import Recipe, load_recipe, recipe_folder, train
from allyouneed.training.loop import Run
from allyouneed.training.progress import SilentListener
from allyouneed.training.start import StartConfig
from allyouneed.training.tuning import without_none

pytestmark = pytest.mark.no_shapes  # the interpreter is most of the work
REVERSE = {"reverse": aggregate(select(indices, length - 1 - indices, "=="), tokens)}
HISTOGRAM = {"histogram": selector_width(select(tokens, tokens, "=="))}
TASK = {"program": "h = selector_width(select(tokens, tokens, ==));", "vocabulary": ["a", "b"], "lengths": [1, 4]}


@pytest.fixture(scope="module")
def reverse(tmp_path_factory):
    return save(compile_rasp(REVERSE, "cab", 8), REVERSE, tmp_path_factory.mktemp("rasp") / "reverse")


@pytest.fixture(scope="module")
def causal(tmp_path_factory):
    compiled = compile_rasp(HISTOGRAM, "abc", 8, causal=True)
    return save(compiled, HISTOGRAM, tmp_path_factory.mktemp("rasp") / "causal")


def test_a_compiled_folder_loads_and_translates(reverse):
    bundle = load_folder(str(reverse))
    answers = translate(bundle.model, bundle.codec, ["abc", "c", "aabbccab"], SearchConfig())
    assert [best.text for (best,) in answers] == ["c b a", "c", "b a c c b b a a"]
    assert "compiled, not trained" in bundle.card
    assert "select(indices" in bundle.card


def test_unknown_tokens_are_refused(reverse):
    bundle = load_folder(str(reverse))
    with pytest.raises(DataError, match="text 2: 'abz' has a token"):
        translate(bundle.model, bundle.codec, ["abc", "abz"], SearchConfig())


def test_an_encoder_is_evaluated_against_the_interpreter(reverse):
    scores = {score.name: score.value for score in evaluate_split(*_held_out(reverse))}
    assert scores["exact"] == 1.0
    assert scores["loss"] < 0.01


def test_a_decoder_is_evaluated_against_the_interpreter(causal):
    scores = {score.name: score for score in evaluate_split(*_held_out(causal))}
    assert scores["exact"].value == 1.0
    assert "beam" not in scores["exact"].signature, "nothing is searched for"
    assert scores["loss"].value < 0.01


def test_commands_run_with_a_decoder(causal, tmp_path):
    (tmp_path / "d.tsv").write_text("aab\t1 2 1\naab\t1 2 2\n")
    assert _stdout("translate", str(causal), stdin="abca\n\nc\n") == "1 1 1 2\n\n1\n"
    assert _stdout("evaluate", str(causal)).startswith("exact = 1.0000")
    assert _stdout("evaluate", str(causal), "--data", str(tmp_path / "d.tsv")).startswith("exact = 0.5000")
    right, wrong = (
        line.split("\t") for line in _stdout("score", str(causal), stdin="aab\t1 2 1\naab\t1 2 2\n").splitlines()
    )
    assert right[1] == wrong[1] == "3"
    assert float(right[0]) > -0.01
    assert float(wrong[0]) == pytest.approx(-8, abs=0.01), "the logit of the right value is 8 above the next"


def test_commands_refuse_what_a_decoder_cannot_do(causal):
    assert "line 3: 'abz' has a token that is not in the model's vocabulary (its token 3)" in _refused(
        "translate", str(causal), stdin="abc\n\nabz\n"
    )
    assert "line 1: 'z'" in _refused("score", str(causal), stdin="z\t1\n")
    assert "classifies each token does not generate text" in _refused("generate", str(causal), "--prompt", "a")


def test_an_encoder_is_scored_token_by_token(reverse):
    logprob, count = _stdout("score", str(reverse), stdin="abc\tc b a\n").split("\t")
    assert float(logprob) > -0.01
    assert int(count) == 3


def _run(arguments, stdin):
    """Run a command in this process. Return its status, its output and its errors."""
    threads = torch.get_num_threads()
    with contextlib.ExitStack() as opened:
        given, out, err = (opened.enter_context(tempfile.TemporaryFile("w+", encoding="utf-8")) for _ in range(3))
        given.write(stdin)
        given.seek(0)
        patched = opened.enter_context(pytest.MonkeyPatch.context())
        for name, file in (("stdin", given), ("stdout", out), ("stderr", err)):
            patched.setattr(sys, name, file)
        status = run(list(arguments))
        texts = [file.seek(0) or file.read() for file in (out, err)]
    torch.set_num_threads(threads)
    return status, *texts


def _stdout(*arguments, stdin=""):
    status, out, err = _run(arguments, stdin)
    assert status == 0, err
    return out


def _refused(*arguments, stdin=""):
    status, _, err = _run(arguments, stdin)
    assert status in (1, 2)
    assert err.startswith("error: ")
    return err


def test_a_codec_with_more_classes_than_the_table_has_rows_is_refused(causal, tmp_path):
    """Ids below FIRST_CLASS are not classes."""
    bundle = load_folder(str(causal))
    too_many = Codec(source=bundle.codec.source, classes=tuple(map(str, range(9))), per_position=True)
    recipe = parse(Recipe, bundle.recipe)
    with pytest.raises(FolderError, match="classes: 13 ids, but the model's table has 12 rows"):
        load_folder(str(save_folder(tmp_path / "m", bundle.model, too_many, recipe, "")))


def test_a_decoder_trains_on_a_rasp_task(tmp_path):
    settings = {"layers": 1, "width": 16, "hidden": 32, "mixer": {"type": "softmax", "heads": 2}, "dropout": 0.0}
    task = {"type": "rasp-causal", **TASK, "valid": 8, "test": 8}
    tree = {
        "task": task,
        "model": {"type": "decoder", **settings},
        "train": {"budget": {"steps": 2}, "metric": "exact"},
    }
    folder = train(load_recipe(None, tree), tmp_path / "run")
    bundle = load_folder(str(folder))
    assert len(translate(bundle.model, bundle.codec, ["abab"], SearchConfig())[0][0].text.split()) == 4


def _held_out(folder):
    return load_folder(str(folder)), "valid", SearchConfig(), lambda line: None


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(path.stem for path in (recipe_folder() / "rasp").glob("*.rasp")))
@pytest.mark.parametrize("causal", [False, True])
def test_zoo_programs_are_evaluated(name, causal, tmp_path):
    """Every value of the interpreter is a class of the model, integer means and fractions included."""
    letters = {"long_addition": "12+", "parity": "01"}.get(name, "ab()")
    try:
        compile_file(
            recipe_folder() / "rasp" / f"{name}.rasp", tmp_path / "m", letters, 4, causal=causal, verified=False
        )
    except RaspError:
        assert causal, "every program has an encoder"
        return
    scores = {score.name: score.value for score in evaluate_split(*_held_out(tmp_path / "m"))}
    assert scores["loss"] < 0.01
    assert scores["exact"] == 1.0


def test_a_value_with_a_blank_cannot_be_written(tmp_path):
    program = {"moved": aggregate(select(indices, indices - 1, "=="), tokens, " ")}
    with pytest.raises(ConfigError, match="spaces separate the values"):
        save(compile_rasp(program, "ab", 4), program, tmp_path / "m")


def test_a_task_without_named_values_uses_the_values_it_has_seen():
    settings = {"type": "rasp", "program": "h = selector_width(select(tokens, tokens, ==));", "vocabulary": ["a", "b"]}
    task = parse(RaspConfig, {**settings, "lengths": [1, 14]})
    codec = task.codec()
    for index in range(60):
        items = [item for item in (task.draw(Dice(index, row), (1, 14)) for row in range(8)) if item is not None]
        batch = task.as_batch(codec, items)
        assert batch.examples == len(items)


def test_evaluate_on_files(reverse, tmp_path):
    (tmp_path / "in").write_text("abc\ncab\n")
    (tmp_path / "out").write_text("c b a\nb a a\n")
    files = [str(tmp_path / "in"), str(tmp_path / "out")]
    scores = evaluate_files(load_folder(str(reverse)), files, SearchConfig(), lambda line: None)
    assert scores[0].name == "exact"
    assert scores[0].value == 0.5
    (tmp_path / "out").write_text("c b a\nb a\n")
    with pytest.raises(DataError, match="2 classes for 3 tokens"):
        evaluate_files(load_folder(str(reverse)), files, SearchConfig(), lambda line: None)


def _continued(folder, **settings):
    """Return a recipe that starts from the weights of a folder."""
    tree, sha256 = folder_recipe(folder)
    base = {**without_none(tree), "start": {"folder": str(folder), "sha256": sha256}}
    small = {"task": {"valid": 8, "test": 8, "batch": 4}, "train": {"budget": {"steps": 2}, **settings}}
    return load_recipe(None, merge(base, small))


def test_training_starts_from_the_compiled_weights(reverse, tmp_path):
    recipe = _continued(reverse, optimizer={"lr": 1e-9})
    run = Run(recipe, tmp_path / "run", SilentListener(), torch.device("cpu"))
    run.step()
    before = load_folder(str(reverse)).model.state_dict()
    run.close()
    assert all(torch.allclose(value, before[name], atol=1e-6) for name, value in run.model.state_dict().items())
    assert any(not torch.equal(value, before[name]) for name, value in run.model.state_dict().items())


def test_the_initial_weights_are_kept_if_training_makes_them_worse(reverse, tmp_path):
    notes = []
    watcher = SilentListener()
    watcher.note = notes.append
    tuned = train(_continued(reverse, optimizer={"lr": 0.1}), tmp_path / "run", watcher)
    bundle, before = load_folder(str(tuned)), load_folder(str(reverse))
    assert all(torch.equal(v, before.model.state_dict()[name]) for name, v in bundle.model.state_dict().items())
    assert "The weights are those of step 0." in bundle.card
    assert f"trained from the weights of {reverse} (sha256 {before.sha256[:12]})" in bundle.card
    assert bundle.recipe["start"] == {"folder": str(reverse), "sha256": before.sha256}
    assert any(note.startswith(f"starting from the weights of {reverse}") for note in notes)


def test_the_recipe_of_a_compiled_program_has_a_tiny_learning_rate(reverse):
    """These are the defaults for training the folder further; they must not damage exact weights."""
    recipe = parse(Recipe, load_folder(str(reverse)).recipe)
    assert recipe.train.optimizer.lr <= 1e-6
    assert recipe.train.label_smoothing == 0


def test_a_run_resumes_only_with_its_initial_weights(reverse, causal, tmp_path):
    recipe = _continued(reverse)
    run = Run(recipe, tmp_path / "run", SilentListener(), torch.device("cpu"))
    run.write_recipe()
    run.evaluate_start()
    run.close()
    # Another name for the same weights is the same start; random weights, or others, are not.
    moved = shutil.copytree(reverse, tmp_path / "moved")
    with pytest.raises(ConfigError, match=r"started from the weights of .*, not from random weights"):
        train(recipe.model_copy(update={"start": None}), tmp_path / "run")
    other = StartConfig(folder=str(causal), sha256=folder_recipe(causal)[1])
    message = r"started from the weights of .*reverse .*, not from the weights of .*causal"
    with pytest.raises(ConfigError, match=message):
        train(recipe.model_copy(update={"start": other}), tmp_path / "run")
    same = StartConfig(folder=str(moved), sha256=folder_recipe(reverse)[1])
    shutil.rmtree(moved)  # a run that has started does not read it again
    assert train(recipe.model_copy(update={"start": same}), tmp_path / "run") == tmp_path / "run" / "model"


def test_initial_weights_with_another_hash_or_vocabulary_are_refused(reverse, tmp_path):
    recipe = _continued(reverse)
    wrong = StartConfig(folder=str(reverse), sha256="0" * 64)
    with pytest.raises(FolderError, match="not those in the recipe"):
        train(recipe.model_copy(update={"start": wrong}), tmp_path / "run")
    turned = parse(
        Recipe, merge(recipe.model_dump(mode="json", exclude_none=True), {"task": {"classes": ["c", "b", "a"]}})
    )
    with pytest.raises(ConfigError, match="map to other tokens or classes"):
        train(turned, tmp_path / "run")


def test_the_recipe_is_read_without_the_weights(reverse, tmp_path):
    copy = shutil.copytree(reverse, tmp_path / "copy")
    data = (copy / "model.safetensors").read_bytes()
    (copy / "model.safetensors").write_bytes(bytes(len(data)))
    assert folder_recipe(copy) == folder_recipe(reverse)
    with pytest.raises(FolderError, match="sha256 differs"):
        load_folder(str(copy))


def test_compile_then_train_with_commands(tmp_path):
    program = tmp_path / "count.rasp"
    program.write_text("hist = selector_width(select(tokens, tokens, ==));\nmost = hist > 1;\n")
    made = tmp_path / "made"
    command = ["rasp", "compile", str(program), "--vocabulary", "abc", "--length", "5", "--out", str(made)]
    result = CliRunner().invoke(app, [*command, "--result", "hist"], catch_exceptions=False)
    assert result.exit_code == 0
    assert "1 layer, heads [1]" in result.output
    bundle = load_folder(str(made))
    assert translate(bundle.model, bundle.codec, ["abca"], SearchConfig())[0][0].text == "2 1 1 2"
    run = ["train", "--from", str(made), "--steps", "1", "--out", str(tmp_path / "run"), "--set", "task.valid=8"]
    result = CliRunner().invoke(app, run, catch_exceptions=False)
    assert result.exit_code == 0
    assert f'folder = "{made}"' in (tmp_path / "run" / "recipe.toml").read_text()
    assert (tmp_path / "run" / "model" / "model.safetensors").exists()
    with pytest.raises(ConfigError, match="takes its model from the folder"):
        CliRunner().invoke(app, [*run, "--model", "encoder"], catch_exceptions=False)


def test_compile_replaces_only_compiled_folders(reverse, tmp_path):
    (tmp_path / "a.rasp").write_text("x = tokens;")
    made = shutil.copytree(reverse, tmp_path / "made")
    command = ["rasp", "compile", str(tmp_path / "a.rasp"), "--vocabulary", "ab", "--length", "3", "--out"]
    assert _stdout(*command, str(made)).endswith(f"model: {made}\n")
    tuned = train(_continued(reverse), tmp_path / "run")
    refusal = "holds a trained model, not a compiled one; choose another --out, or add --force"
    assert refusal in _refused(*command, str(tuned))
    assert load_folder(str(tuned)).recipe["start"] is not None
    assert _stdout(*command, str(tuned), "--force").endswith(f"model: {tuned}\n")
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "letter.txt").write_text("dear")
    assert "foreign: is not empty and not a model folder" in _refused(*command, str(tmp_path / "foreign"))
    assert "foreign: holds files that allyouneed did not" in _refused(*command, str(tmp_path / "foreign"), "--force")
    assert (tmp_path / "foreign" / "letter.txt").read_text() == "dear"


def test_programs_that_cannot_be_saved_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="one output, not 2"):
        save(compile_rasp({**REVERSE, **HISTOGRAM}, "ab", 3), {**REVERSE, **HISTOGRAM}, tmp_path / "x")
    numbers = {"same": tokens_asis}
    with pytest.raises(ConfigError, match="should contain strings"):
        save(compile_rasp(numbers, [1, 2], 3), numbers, tmp_path / "x")


def test_the_card_shows_names_and_what_was_compared(tmp_path):
    file = tmp_path / "second.rasp"
    file.write_text('previous = select(indices, indices - 1, ==);\nshifted = aggregate(previous, tokens, "-");\n')
    _, folder = compile_file(file, tmp_path / "model", "ab", 3)
    text = (folder / "README.md").read_text()
    assert "previous = select(indices, _1, ==);" in text
    assert "Its outputs are equal to the interpreter on 14 inputs (all possible)." in text
    assert "head previous: reads into" in text
