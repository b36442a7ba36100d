"""Run lines in a REPL and return what it prints."""

from allyouneed.rasp.repl import Session, run


def transcript(*lines: str, compat: bool = False) -> str:
    """Return everything printed after the banner, prompts included, as if the lines came from a pipe."""
    printed: list[str] = []
    waiting = list(lines)

    def read(prompt: str) -> str:
        printed.append(prompt)
        if not waiting:
            raise EOFError
        return waiting.pop(0)

    session = Session(lambda text: printed.append(f"{text}\n"), compat)
    run(session, read)
    text = "".join(printed)
    banner = "RASP 0.1\nrunning example is: hello\n"
    assert text.startswith(banner)
    return text.removeprefix(banner)


def answer(*lines: str, compat: bool = False) -> str:
    """Return what is printed for the last line, without prompts."""
    before = transcript(*lines[:-1], compat=compat).removesuffix("\n")
    text = transcript(*lines, compat=compat)
    assert text.startswith(before)
    return text.removeprefix(before).removesuffix(">> \n")
