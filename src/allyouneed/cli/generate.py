"""`allyouneed generate`: continue a text, token by token."""

import sys
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from allyouneed.cli.model_options import Adapter, Device, Engine, Int8, ModelFolder, check_engine, open_model
from allyouneed.cli.stdin import NAME, read_all, text_argument

if TYPE_CHECKING:
    from allyouneed.decode import SampleConfig
    from allyouneed.folder import Bundle
    from allyouneed.text.codec import Codec

Seed = Annotated[int | None, typer.Option(help="Random seed; the same seed samples the same text.", show_default="0")]
MaxLength = Annotated[int | None, typer.Option(help="Maximum number of new tokens.", show_default="256")]


def command(
    model: ModelFolder,
    prompt: Annotated[
        str | None, typer.Option(help="Text to continue.", show_default="standard input", callback=text_argument)
    ] = None,
    temperature: Annotated[
        float | None,
        typer.Option(help="Sampling temperature; 0 always takes the most probable token.", show_default="1"),
    ] = None,
    top_k: Annotated[int | None, typer.Option(help="Sample from the k most probable tokens.")] = None,
    top_p: Annotated[
        float | None, typer.Option(help="Sample from the fewest tokens whose total probability reaches p.")
    ] = None,
    min_p: Annotated[
        float | None, typer.Option(help="Sample from tokens at least p times as probable as the most probable one.")
    ] = None,
    epsilon: Annotated[float | None, typer.Option(help="Sample from tokens of at least this probability.")] = None,
    seed: Seed = None,
    max_length: MaxLength = None,
    n: Annotated[int | None, typer.Option("--n", help="Number of samples.", show_default="1")] = None,
    engine: Engine = "torch",
    int8: Int8 = False,
    adapter: Adapter = None,
    device: Device = "cpu",
) -> None:
    """Continue a text, token by token.

    Prints only the new text. A model that reads a source (such as a translation model) takes the text as its source.
    `--engine ctranslate2` cannot sample; use it with `--temperature 0`.
    """
    from allyouneed.config import parse
    from allyouneed.decode import SampleConfig
    from allyouneed.evaluation.settings import require_generator
    from allyouneed.text.checks import require_short

    given = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p, "epsilon": epsilon}
    given |= {"seed": seed, "max_length": max_length, "n": n}
    config = parse(SampleConfig, {name: value for name, value in given.items() if value is not None})
    check_engine(engine, device)
    if engine == "ctranslate2":
        from allyouneed.interop.ctranslate2.engine import refuse_sampling

        refuse_sampling(config)
    bundle = open_model(model, device, int8=int8, engine=engine, adapter=adapter)
    require_generator(bundle)
    codec, text = bundle.codec, prompt if prompt is not None else "" if sys.stdin.isatty() else read_all()
    require_short(codec.source or codec.target, [text], "--prompt" if prompt is not None else str(NAME))
    config = config.model_copy(update={"ends": codec.ends})
    begin = codec.encode_prompt(text) if codec.source is None else [*codec.encode_prompt(), *codec.prefix]
    source = codec.encode_source(text) if codec.source is not None else None
    decode = _in_torch if engine == "torch" else partial(_in_ctranslate2, int8)
    samples = decode(bundle, begin, config, source)
    if config.n == 1:
        for piece in _pieces(codec, begin, next(samples)):
            _print(piece)
        _print("\n")
        return
    for number, ids in enumerate(samples, start=1):
        _print(f"--- {number}\n{''.join(_pieces(codec, begin, ids))}\n")


def _in_torch(
    bundle: "Bundle", begin: list[int], config: "SampleConfig", source: list[int] | None
) -> Iterator[Iterator[int]]:
    """Yield the ids of each sample; those of a single sample as they are generated."""
    from allyouneed.decode import sample, stream

    if config.n == 1:
        yield stream(bundle.model, begin[1:], config, source, begin=begin[0])
        return
    for one in sample(bundle.model, [begin[1:]], config, None if source is None else [source], begin=begin[0])[0]:
        yield iter(one.ids)


def _in_ctranslate2(
    int8: bool, bundle: "Bundle", begin: list[int], config: "SampleConfig", source: list[int] | None
) -> Iterator[Iterator[int]]:
    """Yield the same ids for each sample: this engine does not sample."""
    from allyouneed.interop.ctranslate2.engine import CTranslate2Engine

    engine, given = CTranslate2Engine(bundle, int8), begin[1:] if source is None else source
    for _ in range(config.n):
        yield engine.stream(given, config, begin=begin[0])


def _pieces(codec: "Codec", begin: Sequence[int], ids: Iterator[int]) -> Iterator[str]:
    """Yield the text of new ids as soon as it is complete: a character may need several tokens."""
    generated = list(begin)
    known = codec.decode_target(generated)
    for token in ids:
        generated.append(token)
        text = codec.decode_target(generated)
        if not text.endswith("\N{REPLACEMENT CHARACTER}"):
            yield text[len(known) :]
            known = text
    yield codec.decode_target(generated)[len(known) :]


def _print(piece: str) -> None:
    from allyouneed.cli.terminal import shown

    sys.stdout.write(shown(piece))
    sys.stdout.flush()
