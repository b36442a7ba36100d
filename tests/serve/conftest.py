"""A server with models of all kinds, shared by the tests that need no special settings."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from serve_folders import language_model, reverser, running, translator

from allyouneed.serve.backend import Backend


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("models")
    return [
        translator(folder, "numbers"),
        translator(folder, "lstm", target="fr", beam=3),
        translator(folder, "bytenet", target="es"),
        language_model(folder),
        reverser(folder),
    ]


@pytest.fixture(scope="session")
def server(folders: list[Path]) -> Iterator[tuple[str, Backend]]:
    with running(folders) as found:
        yield found


@pytest.fixture
def url(server: tuple[str, Backend]) -> str:
    return server[0]
