"""The commands, through processes and pipes."""

import os
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from cli_commands import ENVIRONMENT, HEADS, NUMBERS, SMALL

from allyouneed import kernels
from allyouneed.cli import COMMANDS
from allyouneed.words import printable

PROGRAM = [sys.executable, "-m", "allyouneed"]
SCORE = re.compile(r"^(\w+) = (\d+\.\d+)  \S+", re.MULTILINE)


def scores(text: str) -> dict[str, str]:
    """Return the names and values of the scores in an output."""
    return dict(SCORE.findall(text))


# --- help ------------------------------------------------------------------------------------------------------------


def test_help_needs_no_torch():
    code = (
        "import sys, resource\n"
        "from allyouneed.cli import COMMANDS, run\n"
        "assert run(['--help']) == 0\n"
        "assert all(run([name, '--help']) == 0 for name in COMMANDS)\n"
        "print(sorted({'torch', 'numpy', 'rich', 'matplotlib'} & set(sys.modules)), file=sys.stderr)\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_utime, 'CPU-seconds for all', file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=ENVIRONMENT, check=False)
    print(done.stderr)
    assert done.stderr.splitlines()[0] == "[]"
    assert all(f"\n  {name} " in done.stdout for name in COMMANDS)


def test_the_module_is_the_program():
    for arguments in ([], ["--help"]):
        done = subprocess.run([*PROGRAM, *arguments], capture_output=True, text=True, env=ENVIRONMENT, check=False)
        assert done.returncode == 0
        assert done.stdout.startswith("Usage: allyouneed")
        assert not done.stderr


def test_version(run):
    assert re.fullmatch(r"allyouneed \d+\.\d+\.\d+\n", run("--version").out)


# --- train -----------------------------------------------------------------------------------------------------------


def test_train_prints_scores_with_signatures_and_repeats_them(run, numbers):
    again = run("train", *NUMBERS, "--out", numbers)
    assert again.status == 0
    assert "finished" in again.err
    assert set(scores(again.out)) == {"exact", "bleu", "chrf", "loss", "perplexity"}
    assert "case:mixed" in again.out
    assert again.out.endswith(f"model: {numbers}/model\n")


def test_train_writes_plain_lines_where_there_is_no_terminal(run, tmp_path):
    done = run("train", *NUMBERS, "--steps", "10", "--out", str(tmp_path / "run"))
    assert "\x1b" not in done.err
    assert re.search(r"^100%  step 10  .*loss \d", done.err, re.MULTILINE)
    assert "train: 60 pairs" in done.err
    assert (tmp_path / "run" / "model" / "manifest.json").exists()


def test_train_goes_into_a_folder_named_after_its_recipe(run, tmp_path):
    model = '[model]\ntype = "decoder"\nlayers = 1\nwidth = 8\nmixer = { type = "softmax", heads = 1 }'
    text = '[task]\ntype = "copy"\n' + model
    (tmp_path / "mine.toml").write_text(text)
    done = run("train", "mine.toml", "--steps", "1", "--set", "task.valid=2", *SMALL, "--seed", "5", folder=tmp_path)
    assert done.status == 0, done.err
    assert "seed = 5" in (tmp_path / "runs" / "mine" / "recipe.toml").read_text()


def test_a_stopped_run_saves_itself_and_the_same_command_resumes(run, numbers, tmp_path):
    arguments = [*NUMBERS, "--steps", "150", "--set", "train.evaluate_every=1.0", "--out", str(tmp_path / "run")]
    process = subprocess.Popen(
        [*PROGRAM, "train", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT
    )
    log = tmp_path / "run" / "log.jsonl"
    while process.poll() is None and not (log.exists() and '"kind": "step"' in log.read_text()):
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate()
    assert process.returncode == 130, err
    assert not out
    assert "Traceback" not in err
    assert re.search(r"^error: stopped and saved at step \d+", err, re.MULTILINE)
    assert run("train", *arguments, "--resume", "never").status == 2
    going_on = run("train", *arguments, "--resume", "must")
    assert "resuming from step" in going_on.err
    assert going_on.status == 0, going_on.err


# --- translate -------------------------------------------------------------------------------------------------------


def test_translate_prints_a_line_for_each_line(run, numbers):
    words = ["forty-one", "", "seven", "   ", "seventy-seven", "two\u2028three", "< pad > <eos> <unk>"]
    together = run("translate", numbers, given="\n".join(words))
    assert together.status == 0, together.err
    lines = together.out.removesuffix("\n").split("\n")
    assert len(lines) == len(words)
    assert lines[1] == lines[3] == ""
    alone = [run("translate", numbers, given=word + "\r\n").out for word in words[:3]]
    assert alone == [line + "\n" for line in lines[:3]]


def test_translate_ranks_and_scores(run, numbers):
    done = run("translate", numbers, "--n-best", "3", "--beam", "3", "--scores", given="seven\n\nforty\n")
    rows = [line.split("\t") for line in done.out.splitlines()]
    assert [row[0] for row in rows] == ["1", "1", "1", "2", "3", "3", "3"]
    best = [float(row[1]) for row in rows[:3]]
    assert best == sorted(best, reverse=True)
    assert run("translate", numbers, "--max-length", "0", given="seven\n").out == "\n"


def test_translate_answers_before_its_input_ends(numbers):
    with subprocess.Popen(
        [*PROGRAM, "translate", numbers], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=ENVIRONMENT
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for word in (b"seven\n", b"eight\n"):
            process.stdin.write(word)
            process.stdin.flush()
            assert select.select([process.stdout], [], [], 120)[0], "no answer while the pipe is open"
            assert process.stdout.readline().endswith(b"\n")


def test_translate_ends_quietly_when_the_reader_closes(numbers, tmp_path):
    lines = tmp_path / "lines"
    lines.write_text("seven\n" * 5000)
    with (
        lines.open() as given,
        subprocess.Popen(
            [*PROGRAM, "translate", numbers, "--max-length", "3", "--beam", "1"],
            stdin=given,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=ENVIRONMENT,
        ) as process,
    ):
        assert process.stdout is not None
        assert process.stderr is not None
        assert os.read(process.stdout.fileno(), 1)
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == -signal.SIGPIPE


def test_translate_names_classes(run, classifier):
    assert run("translate", classifier, given="nice 3\nugly 3\n").out == "good\nbad\n"


# --- evaluate --------------------------------------------------------------------------------------------------------


def test_evaluate_measures_held_out_data(run, numbers):
    valid = run("evaluate", numbers, "--split", "valid")
    card = (Path(numbers) / "model" / "README.md").read_text()
    assert scores(valid.out)["loss"] == re.search(r"- loss = (\S+)", card)[1]  # type: ignore[index]
    test = run("evaluate", numbers)
    assert "split:test" in test.out
    assert "n:20|" in test.out
    moved = run("evaluate", numbers + "/model", "--beam", "1")
    assert "greedy" in moved.out


def test_evaluate_gives_the_same_scores_for_the_same_texts_in_files(run, numbers, tmp_path):
    from allyouneed.training import load_recipe

    recipe = load_recipe(numbers + "/recipe.toml")
    pairs = list(recipe.task.rows("test", recipe.seed))  # type: ignore[attr-defined]
    for place, name in enumerate(("source", "reference")):
        (tmp_path / name).write_text("".join(pair[place] + "\n" for pair in pairs), encoding="utf-8")
    (tmp_path / "both.tsv").write_text("".join("\t".join(pair) + "\n" for pair in pairs) + "\t\n", encoding="utf-8")
    own = scores(run("evaluate", numbers, "--split", "test").out)
    two = run("evaluate", numbers, "--source", f"{tmp_path}/source", "--reference", f"{tmp_path}/reference")
    one = run("evaluate", numbers, "--data", f"{tmp_path}/both.tsv")
    assert scores(two.out) == scores(one.out) == own
    assert "data:both.tsv" in one.out
    assert "1 of 21 skipped: empty source and target" in one.err


def test_evaluate_a_language_model(run, language, tmp_path):
    own = run("evaluate", language)
    assert {"loss", "perplexity", "bits_per_char"} == set(scores(own.out))
    assert "split:valid" in own.out
    text = (Path(language).parent / "text.txt").read_text(encoding="utf-8")
    (tmp_path / "valid.txt").write_text(text[int(len(text) * 0.8) :], encoding="utf-8")
    assert scores(run("evaluate", language, "--data", f"{tmp_path}/valid.txt").out) == scores(own.out)


def test_evaluate_a_classifier(run, classifier, tmp_path):
    (tmp_path / "new.tsv").write_text("good\tnice 3\nbad\tugly 3\ngood\tugly 4\n")
    done = run("evaluate", classifier, "--data", f"{tmp_path}/new.tsv")
    assert scores(done.out)["accuracy"] == "0.6667"
    assert "bad=1/1,good=1/2" in done.out
    (tmp_path / "new.jsonl").write_text('{"l": "good", "t": "nice 3"}\n{"l": "bad", "t": "ugly 3"}\n')
    done = run("evaluate", classifier, "--data", f'{{files="{tmp_path}/new.jsonl", text="t", label="l"}}')
    assert scores(done.out)["accuracy"] == "1.0000"
    assert "data:new.jsonl" in done.out


def test_evaluate_refuses_data_that_has_changed(run, classifier, tmp_path):
    path = Path(classifier).parent / "labels.tsv"
    before = path.read_bytes()
    shutil.copytree(Path(classifier) / "model", tmp_path / "model")
    assert run("evaluate", str(tmp_path / "model")).status == 0
    try:
        path.write_text("good\tother words\nbad\tentirely\n")
        changed = run("evaluate", str(tmp_path / "model"))
    finally:
        path.write_bytes(before)
    assert changed.status == 2
    assert "has changed since training" in changed.err


# --- generate and score ----------------------------------------------------------------------------------------------


def test_generate_depends_on_its_seed(run, language):
    arguments = ("generate", language, "--prompt", "the cat", "--max-length", "30", "--seed")
    one, again, other = (run(*arguments, seed).out for seed in ("1", "1", "2"))
    assert one == again != other
    assert one.endswith("\n")
    assert run("generate", language, "--max-length", "30", "--seed", "1", given="the cat").out == one


def test_generate_ends_at_the_last_position_of_a_model(run, language):
    positions = 'model.positions={type="learned",max_length=20}'
    sets = ["task.train=text.txt", "task.split=[0.8,0.2]", "task.context=16", "task.tokenizer.kind=bytes", positions]
    flags = [flag for pair in [*sets, HEADS, "model.layers=1"] for flag in ("--set", pair)]
    done = run("train", "--task", "language", "--model", "decoder", "--steps", "2", *SMALL, *flags, "--out", "short")
    assert done.status == 0, done.err
    done = run("generate", "short", "--prompt", "the cat", "--temperature", "0")
    assert (done.status, done.err) == (0, "")
    refused = run("generate", "short", "--prompt", "the cat sat on the mat")
    assert "positions end at 20" in refused.err


@pytest.mark.parametrize("command", [("generate", "--prompt"), ("inspect",)], ids=str)
def test_text_arguments_are_text(run, language, command):
    name, *option = command
    done = run(name, language, *option, "a \udcff")  # how Python represents a byte that is not UTF-8
    assert done.status == 2
    assert "has bytes that are not UTF-8" in done.err


def test_generate_several(run, language):
    done = run("generate", language, "--n", "3", "--max-length", "5", "--temperature", "2.0", "--top-k", "50")
    assert re.findall(r"^--- (\d)$", done.out, re.MULTILINE) == ["1", "2", "3"]
    assert run("generate", language, "--n", "1", "--max-length", "5", "--top-p", "0.5", "--min-p", "0.1").status == 0


def test_generate_answers_to_a_source(run, numbers):
    done = run("generate", numbers, "--temperature", "0", given="forty-one\n")
    assert done.out == run("translate", numbers, "--beam", "1", "--max-length", "256", given="forty-one\n").out


def test_score(run, numbers, language, classifier, tmp_path):
    done = run("score", numbers, given="seven\tsieben\n\nforty-one\teinundvierzig\n")
    rows = [line.split("\t") for line in done.out.split("\n")]
    assert rows[1] == [""]
    assert rows[0][1] == "7"  # EOS counts
    assert all(float(rows[place][0]) < 0 for place in (0, 2))
    best = run("translate", numbers, "--beam", "1", "--length-penalty", "0", "--scores", given="seven\n").out
    value, text = best.rstrip("\n").split("\t")
    assert float(run("score", numbers, given=f"seven\t{text}\n").out.split("\t")[0]) == pytest.approx(
        float(value), abs=2e-4
    )
    assert run("score", language, given="the cat\n").out.endswith("\t7\n")
    memory = "".join(
        f'<tuv xml:lang="{code}"><seg>{text}</seg></tuv>' for code, text in (("en", "seven"), ("de", "sieben"))
    )
    (tmp_path / "x.tmx").write_text(f'<tmx><header srclang="en"/><body><tu>{memory}</tu><tu/></body></tmx>')
    assert run("score", numbers, "--data", f"{tmp_path}/*.tmx").out.split("\n") == ["\t".join(rows[0]), "", ""]
    swapped = f'{{files="{tmp_path}/x.tmx", source="de", target="en"}}'
    assert run("score", numbers, "--data", swapped).out != run("score", numbers, "--data", f"{tmp_path}/x.tmx").out
    assert run("score", classifier, given="nice 3\tgood\n").out.endswith("\t1\n")


# --- the rest --------------------------------------------------------------------------------------------------------


def test_list(run):
    everything = run("list").out
    for kind, name in {
        "mixers": "softmax",
        "positions": "rotary",
        "models": "encoder-decoder",
        "tasks": "numbers",
        "recipes": "transformer-base",
    }.items():
        assert f"{kind}:\n" in everything
        assert re.search(rf"^{name} +\S", run("list", kind).out, re.MULTILINE)


def test_control_characters_are_escaped_on_terminals():
    assert printable("a\x1b[31mb\x9bc\r\nd\u202ee\udc80") == "a\\x1b[31mb\\x9bc\\r\\nd\\u202ee\\udc80"
    assert printable("fünf\n\tzig", keep="\n\t") == "fünf\n\tzig"


# --- distill ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", [[], ["--int8"]], ids=str)
def test_a_student_learns_from_a_teacher(run, numbers, tmp_path, how):
    with torch.no_grad():
        if how and not kernels.usable(torch.empty(0)):
            pytest.skip("no C compiler: int8 is refused")
    texts = ["one", "two", "twenty-one", "ninety-nine"]
    for name in ("train", "valid"):
        (tmp_path / f"{name}.tsv").write_text("".join(f"{text}\tx{text}\n" for text in texts), encoding="utf-8")
    sets = [f'task.train="{tmp_path}/train.tsv"', f'task.valid="{tmp_path}/valid.tsv"', "task.tokenizer.size=300"]
    sets += ["task.batch_tokens=512", "model.width=16", "model.hidden=16", "model.encoder_layers=1"]
    flags = [flag for pair in sets for flag in ("--set", pair)]
    arguments = ["distill", numbers, "translation", *how, *flags, "--steps", "3", "--out", str(tmp_path / "student")]
    done = run(*arguments)
    assert done.status == 0, done.err
    assert done.out.endswith(f"model: {tmp_path}/student/model\n")
    translated = run("translate", numbers, *how, given="\n".join(texts) + "\n").out
    assert (tmp_path / "student" / "distilled" / "train.target").read_text(encoding="utf-8") == translated
    assert "finished" in run(*arguments).err
    refused = run("distill", numbers, "copy", "--out", str(tmp_path / "other"))
    assert (refused.status, refused.err.count("\n")) == (2, 1)
    assert "task 'copy' has no texts to translate" in refused.err
