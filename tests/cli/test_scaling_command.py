"""`allyouneed scaling` refuses what cannot work, in one line and before anything runs."""

import pytest


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--budgets", "much"], "should be comma-separated numbers"),
        (["--sizes", "big"], "should be a width"),
        (["--predict", "0.5"], "should be above 1"),
        (["--budgets", "1e6"], "3 sizes and 1 budget are 3 runs; a law of 5 parameters needs at least 6 runs"),
        (["--budgets", "1e6,1e6"], "should be distinct numbers"),
        (["--at", "wide"], "should be a width"),
    ],
)
def test_a_mistake_is_one_line(run, tmp_path, arguments, words):
    done = run("scaling", "copy", "--sizes", "8x1,16x1,32x1", *arguments, "--out", str(tmp_path / "out"))
    assert done.status == 2
    assert words in done.err.splitlines()[-1]
    assert done.err.splitlines()[-1].startswith("error: ")
    assert not (tmp_path / "out").exists()
