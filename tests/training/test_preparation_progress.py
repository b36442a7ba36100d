"""The progress of preparation: lines with speed and time left in a log, a bar on a terminal."""

import io

import pytest
from rich.console import Console
from rich.progress import Progress

from allyouneed.tasks.meter import Meter, reporting_to
from allyouneed.training import progress_display
from allyouneed.training.progress_display import ProgressBar, ProgressLines, rich_progress


class Clock:
    """A clock that a test moves."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    moved = Clock()
    monkeypatch.setattr(progress_display.time, "monotonic", moved)
    return moved


def encode(clock: Clock) -> None:
    """Count 4,000 pairs in 40 seconds."""
    meter = Meter("encoding train", "pairs", 4000)
    for _ in range(40):
        clock.now += 1
        meter.add(100)


def test_lines_in_a_log(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    with reporting_to(ProgressLines("loss").preparing):
        encode(clock)
    assert capsys.readouterr().err.splitlines() == [
        " 30%  encoding train: 1,200 pairs  100/s  left 0:28",
        " 57%  encoding train: 2,300 pairs  100/s  left 0:17",
        " 85%  encoding train: 3,400 pairs  100/s  left 0:06",
    ]


def test_a_bar_on_a_terminal(clock: Clock) -> None:
    shown = io.StringIO()
    columns = rich_progress(time_left=True).columns
    progress = Progress(*columns, console=Console(file=shown, force_terminal=True, width=120), get_time=clock)
    with progress, reporting_to(ProgressBar(progress, "loss").preparing):
        encode(clock)
        progress.refresh()
    assert "100%  encoding train: 4,000 pairs  100/s  left 0:00" in shown.getvalue()
