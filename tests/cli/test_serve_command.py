"""Mistakes in the arguments of `allyouneed serve`: one line, exit status 2. `tests/serve` tests servers that start."""

import socket

import pytest
from cli_commands import Commands
from test_bad_input import assert_one_line


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "no models"),
        (["--config", "nosuch.toml"], "nosuch.toml"),
        (["numbers", "--access-log", "xml"], "xml"),
        (["numbers", "--log-level", "loud"], "loud"),
    ],
)
def test_a_mistake_is_one_line(run: Commands, numbers: str, arguments: list[str], words: str) -> None:
    assert_one_line(run("serve", *[numbers if one == "numbers" else one for one in arguments]), 2, words)


def test_a_taken_port_is_reported(run: Commands, numbers: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert_one_line(run("serve", numbers, "--port", str(taken.getsockname()[1])), 2, "cannot listen there")
