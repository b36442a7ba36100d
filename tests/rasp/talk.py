"""A conversation with a REPL, for tests: what it prints for some lines."""

from allyouneed.rasp.repl import Session, run


def talk(*lines: str, compat: bool = False) -> str:
    """Everything that is printed from the prompt of the first line on, prompts included, as from a pipe."""
    said: list[str] = []
    waiting = list(lines)

    def read(prompt: str) -> str:
        said.append(prompt)
        if not waiting:
            raise EOFError
        return waiting.pop(0)

    session = Session(lambda text: said.append(f"{text}\n"), compat)
    run(session, read)
    text = "".join(said)
    banner = "RASP 0.1\nrunning example is: hello\n"
    assert text.startswith(banner)
    return text.removeprefix(banner)


def answer(*lines: str, compat: bool = False) -> str:
    """What is printed for the last line, without prompts."""
    before = talk(*lines[:-1], compat=compat).removesuffix("\n")
    text = talk(*lines, compat=compat)
    assert text.startswith(before)
    return text.removeprefix(before).removesuffix(">> \n")
