"""Tiny models that the tests of tuning start from."""

import pytest
from tuning_runs import make_classifier, make_language_model, make_translator


@pytest.fixture(scope="session")
def translator(tmp_path_factory: pytest.TempPathFactory) -> str:
    return make_translator(tmp_path_factory.mktemp("translator"))


@pytest.fixture(scope="session")
def language_model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return make_language_model(tmp_path_factory.mktemp("language"))


@pytest.fixture(scope="session")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> str:
    return make_classifier(tmp_path_factory.mktemp("classifier"))
