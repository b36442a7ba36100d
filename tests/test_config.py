"""Recipes: unknown keys are refused with a hint, at any depth; overrides, extends, and a round trip through TOML."""

import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field, PositiveInt, SerializeAsAny

from allyouneed.config import LARGEST_RECIPE, Config, choice, merge, override, parse, read_recipe, to_toml
from allyouneed.errors import ConfigError


class Shape(Config):
    type: str


class Round(Shape):
    type: Literal["round"] = "round"
    radius: float = 1.0


class Square(Shape):
    type: Literal["square"] = "square"
    side: PositiveInt = 2
    inside: "AnyShape | None" = None


SHAPES: dict[str, type[Shape]] = {"round": Round, "square": Square}
AnyShape = Annotated[SerializeAsAny[Shape], choice(SHAPES)]
Square.model_rebuild()


class Part(Config):
    count: int = 1
    shape: AnyShape | list[AnyShape] = Round()


class Recipe(Config):
    name: str = "x"
    file: Path | None = None
    numbers: tuple[float, ...] = ()
    words: dict[str, str] = Field(default_factory=dict)
    on: bool = True
    part: Part = Part()
    must: int = 3


def refused(tree: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(Recipe, tree, "a.toml")
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        (
            {"prt": {}},
            "a.toml: unknown name 'prt' (did you mean 'part'?); known: file, must, name, numbers, on, part, words",
        ),
        ({"part": {"cont": 1}}, "a.toml: part: unknown name 'cont' (did you mean 'count'?); known: count, shape"),
        (
            {"part": {"shape": {"type": "round", "radios": 3}}},
            "a.toml: part.shape: unknown name 'radios' (did you mean 'radius'?); known: radius, type",
        ),
        (
            {"part": {"shape": {"type": "square", "inside": {"type": "round", "zzz": 3}}}},
            "a.toml: part.shape.inside: unknown name 'zzz'; known: radius, type",
        ),
        (
            {"part": {"shape": ["round", {"type": "square", "sid": 3}]}},
            "a.toml: part.shape.1: unknown name 'sid' (did you mean 'side'?); known: inside, side, type",
        ),
        (
            {"part": {"shape": "sqare"}},
            "a.toml: part.shape: unknown name 'sqare' (did you mean 'square'?); known: round, square",
        ),
        (
            {"part": {"shape": {"type": "os.system"}}},
            "a.toml: part.shape: unknown name 'os.system'; known: round, square",
        ),
        ({"part": {"shape": {"side": 3}}}, "a.toml: part.shape: needs a type; known: round, square"),
        ({"part": {"shape": 3}}, "a.toml: part.shape: should be a name or a table with a type; found 3"),
        ({"part": {"shape": [3]}}, "a.toml: part.shape.0: should be a name or a table with a type; found 3"),
        (
            {"part": {"shape": {"type": "square", "side": 0}}},
            "a.toml: part.shape.side: Input should be greater than 0; found 0",
        ),
        ({"must": None}, "a.toml: must: Input should be a valid integer; found None"),
    ],
)
def test_errors_name_place_finding_and_remedy(tree: dict[str, Any], message: str) -> None:
    refused(tree, message)


def test_all_errors_are_reported() -> None:
    refused(
        {"must": "x", "part": {"cont": 1, "shap": 2}},
        "a.toml: part: unknown name 'cont' (did you mean 'count'?); known: count, shape; "
        "unknown name 'shap' (did you mean 'shape'?); known: count, shape; "
        "a.toml: must: Input should be a valid integer, unable to parse string as an integer; found 'x'",
    )


def test_nan_is_refused() -> None:
    refused({"numbers": [float("nan")]}, "a.toml: numbers.0: Input should be a finite number; found nan")


def test_a_missing_key_is_refused() -> None:
    class Needs(Config):
        inner: int

    with pytest.raises(ConfigError, match=r"^b: inner: is missing$"):
        parse(Needs, {}, "b")
    with pytest.raises(ConfigError, match=r"^inner: is missing$"):
        parse(Needs, {})


def test_configs_cannot_be_changed() -> None:
    with pytest.raises(ValueError):
        Recipe().must = 4  # type: ignore[misc]


# --- overrides -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pair", "tree"),
    [
        ("must=4", {"must": 4, "part": {"shape": "square"}}),
        ("part.count=7", {"part": {"shape": "square", "count": 7}}),
        ("part.shape.side=9", {"part": {"shape": {"type": "square", "side": 9}}}),
        ("part.shape=round", {"part": {"shape": "round"}}),
        ("part.shape.type=round", {"part": {"shape": {"type": "round"}}}),
        ('part.shape={type="square", side=3}', {"part": {"shape": {"type": "square", "side": 3}}}),
        ("name=a=b", {"name": "a=b", "part": {"shape": "square"}}),
        ("name=", {"name": "", "part": {"shape": "square"}}),
        ("name=1\nmust=3", {"name": "1\nmust=3", "part": {"shape": "square"}}),
        ("numbers=[1e-3, 2]", {"numbers": [0.001, 2], "part": {"shape": "square"}}),
        ("on=false", {"on": False, "part": {"shape": "square"}}),
        ("name=" + "9" * 5000, {"name": "9" * 5000, "part": {"shape": "square"}}),
    ],
)
def test_an_override_changes_one_key(pair: str, tree: dict[str, Any]) -> None:
    before = {"part": {"shape": "square"}}
    assert override(before, [pair]) == tree
    assert before == {"part": {"shape": "square"}}


def test_later_overrides_win() -> None:
    assert override({}, ["a.b=1", "a.c=2", "a.b=3"]) == {"a": {"b": 3, "c": 2}}


@pytest.mark.parametrize("pair", ["must", "=3", ".must=3", "part.=3", "part..count=3", ""])
def test_a_bad_override_is_refused(pair: str) -> None:
    with pytest.raises(ConfigError, match=r"should look like model\.layers=3"):
        override({}, [pair])


def test_a_table_of_another_type_replaces_the_one_below() -> None:
    below = {"shape": {"type": "square", "side": 3}}
    assert merge(below, {"shape": {"side": 4}}) == {"shape": {"type": "square", "side": 4}}
    assert merge(below, {"shape": {"type": "square"}}) == below
    assert merge(below, {"shape": {"type": "round"}}) == {"shape": {"type": "round"}}
    assert merge(below, {"shape": "round"}) == {"shape": "round"}
    assert merge({"shape": "square"}, {"shape": {"side": 4}}) == {"shape": {"type": "square", "side": 4}}


# --- files -----------------------------------------------------------------------------------------------------------


def test_extends(tmp_path: Path) -> None:
    (tmp_path / "base.toml").write_text('must = 1\n[part]\nshape = { type = "square", side = 5 }\n')
    (tmp_path / "middle.toml").write_text('extends = "base.toml"\nmust = 2\n')
    (tmp_path / "top.toml").write_text('extends = "middle.toml"\n[part]\ncount = 4\nshape = { side = 6 }\n')
    tree = read_recipe(tmp_path / "top.toml")
    assert tree == {"must": 2, "part": {"count": 4, "shape": {"type": "square", "side": 6}}}
    assert parse(Recipe, tree).part.shape == Square(side=6)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'extends = "a.toml"', "is there a cycle"),
        (b'extends = "../a.toml"', "not the name of a file in the same folder"),
        (b'extends = "/etc/passwd"', "not the name of a file in the same folder"),
        (b"extends = 3", "not the name of a file in the same folder"),
        (b'extends = ".."', "not readable as TOML"),
        (b'extends = "none.toml"', "none.toml: no such file"),
        (b"x = ", "not readable as TOML"),
        (b"\xff", "not readable as TOML"),
        (b"x = " + b"9" * 5000, "not readable as TOML"),
        (b"x = " + b"[" * 5000, "not readable as TOML"),
        (b" " * (LARGEST_RECIPE + 1), "at most 1,048,576 bytes"),
    ],
)
def test_a_bad_file_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "a.toml").write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        read_recipe(tmp_path / "a.toml")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        read_recipe(tmp_path / "a.toml")
    with pytest.raises(ConfigError, match="not readable as TOML"):
        read_recipe(tmp_path)


# --- round trip ------------------------------------------------------------------------------------------------------

TEXT = st.text(max_size=8)
FLOATS = st.floats(allow_nan=False, allow_infinity=False)
ROUNDS = st.builds(Round, radius=FLOATS)
ANY_SHAPES = st.recursive(
    ROUNDS, lambda shapes: st.builds(Square, side=st.integers(1, 9), inside=st.none() | shapes), max_leaves=3
)
RECIPES = st.builds(
    Recipe,
    name=TEXT,
    file=st.none() | st.just(Path("data/ü x.txt")),
    numbers=st.lists(FLOATS, max_size=3),
    words=st.dictionaries(TEXT, TEXT, max_size=3),
    on=st.booleans(),
    part=st.builds(Part, count=st.integers(), shape=ANY_SHAPES | st.lists(ANY_SHAPES, max_size=2)),
    must=st.integers(),
)


@given(RECIPES)
def test_toml_round_trip(recipe: Recipe) -> None:
    assert parse(Recipe, tomllib.loads(to_toml(recipe))) == recipe


@given(name=TEXT, value=st.integers() | FLOATS | st.booleans())
def test_unknown_keys_are_never_ignored(name: str, value: object) -> None:
    if name in Recipe.model_fields:
        return
    with pytest.raises(ConfigError, match="unknown name"):
        parse(Recipe, {name: value})


@given(value=st.integers() | FLOATS | st.booleans())
def test_an_override_is_read_as_toml(value: float) -> None:
    text = str(value).lower() if isinstance(value, bool) else repr(value)
    assert override({}, [f"a.b={text}"]) == {"a": {"b": value}}
