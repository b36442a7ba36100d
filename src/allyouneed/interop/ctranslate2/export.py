"""`allyouneed export --to ctranslate2`: a folder that runs with CTranslate2 and `tokenizers` alone.

The folder contains CTranslate2's files, the tokenizers, and a README with a program. Both engines are run and compared
(check.py) before the folder gets its name. An export that disagrees is never written.
"""

from pathlib import Path

from allyouneed.errors import ConfigError
from allyouneed.folder import Bundle
from allyouneed.interop.check_inputs import LONGEST, NO_TEXTS, framed, random_rows, stage_name, task_texts
from allyouneed.interop.ctranslate2.check import Prompt, check_folder, check_shortlist, computes, greedy
from allyouneed.interop.ctranslate2.files import QUANTIZATIONS, Quantization, names_of, require_package, write_model
from allyouneed.interop.ctranslate2.vmap import FILE, unwritable_name, write_vmap
from allyouneed.interop.export_notes import shortlist_note
from allyouneed.interop.output_folder import require_safe_output
from allyouneed.interop.progress import ProgressStages, ReportProgress, no_progress
from allyouneed.interop.text_program import library_of, text_functions, write_spm_files
from allyouneed.models import Model
from allyouneed.models.decoder import Decoder
from allyouneed.models.encoder_decoder import EncoderDecoder
from allyouneed.shortlist.table import Shortlist
from allyouneed.storage import new_folder
from allyouneed.text.codec import Codec
from allyouneed.text.specials import BOS, EOS, SPECIALS
from allyouneed.version import __version__

CARD = "README.md"
LISTED = """
`vmap.txt` lists the words that a source allows: `translate_batch(.., use_vmap=True)` considers no others, which is
faster. All texts of a batch then share the words that any of them allows.
"""


def export_folder(
    bundle: Bundle, out: Path, quantization: str | None = None, report: ReportProgress = no_progress
) -> list[str]:
    """Write the folder and return notes for the user."""
    require_safe_output(out, bundle.path, "ctranslate2")
    require_package()
    chosen = next((one for one in QUANTIZATIONS if one == (quantization or "float32")), None)
    if chosen is None:
        raise ConfigError(f"--quantization {quantization}: not one of {', '.join(QUANTIZATIONS)}")
    model, codec = bundle.model, bundle.codec
    with new_folder(out) as folder:
        write_model(model, codec, folder, chosen)
        listed = bundle.shortlist is not None and isinstance(model, EncoderDecoder)
        next_stage = ProgressStages(report, 3 + (chosen != "float32") + listed)
        texts = task_texts(bundle)
        next_stage(stage_name(texts))
        prompts = prompts_of(model, codec, texts)
        notes = check_folder(folder, model, codec, chosen, prompts, next_stage)
        if bundle.shortlist is not None and listed:
            next_stage("greedy search with the shortlist in both engines")
            notes.append(_with_shortlist(bundle, bundle.shortlist, folder, chosen, prompts))
        else:
            notes += shortlist_note(bundle, "CTranslate2 supports vmap.txt for encoder-decoder models only")
        codec.save(folder)
        write_spm_files(codec, folder)
        text = card(bundle, chosen) + (LISTED if (folder / FILE).exists() else "")
        (folder / CARD).write_text(text, encoding="utf-8")
    return [*notes, *_notes(chosen, texts)]


def _with_shortlist(
    bundle: Bundle, shortlist: Shortlist, folder: Path, quantization: Quantization, prompts: list[Prompt]
) -> str:
    """Write the shortlist if CTranslate2 can represent it. Return a note for the user."""
    assert isinstance(bundle.model, EncoderDecoder)
    source, target = bundle.codec.both()
    names = names_of(source, bundle.model.sizes.source), names_of(target, bundle.model.sizes.target)
    odd = unwritable_name(shortlist, *names)
    if odd is not None:
        return f"the shortlist is left out: CTranslate2's vmap.txt cannot contain {odd!r}"
    write_vmap(shortlist, *names, folder)
    return check_shortlist(folder, bundle.model, bundle.codec, quantization, prompts, shortlist)


def prompts_of(model: Model, codec: Codec, texts: list[str]) -> list[Prompt]:
    """Return random sequences, and texts of the task with our model's outputs."""
    assert isinstance(model, EncoderDecoder | Decoder)
    assert codec.target is not None
    # BOS, EOS and the frame of a source take some positions; in a decoder both sides share the rest.
    longest = model.longest or LONGEST
    most = max(1, (longest - sum(map(len, codec.framing)) - 2) // 2)
    targets = random_rows(codec.target.size, most, seed=1)
    if codec.source is None:
        given = [[BOS, *row] for row in random_rows(codec.target.size, most)]
        real = [codec.encode_prompt(text)[: most + 1] for text in texts]
    else:
        begin = [] if isinstance(model, EncoderDecoder) else [BOS]
        given = [[*framed(codec, row), *begin] for row in random_rows(codec.source.size, most)]
        real = [[*framed(codec, row[:most]), *begin] for row in codec.source.encode_batch(texts)]
    pairs = list(zip([*given, *real], [*targets, *greedy(model, real)], strict=True))
    return [Prompt(one, target) for one, target in pairs]


def _notes(quantization: Quantization, texts: list[str]) -> list[str]:
    notes = [] if texts else [NO_TEXTS]
    if not computes(quantization):
        notes.append(f"CTranslate2 does not support {quantization} on this CPU and computes in another type here")
    return notes


def card(bundle: Bundle, quantization: Quantization) -> str:
    """Return README.md: a description, and a program that runs the model."""
    codec, search, longest = bundle.codec, bundle.recipe.get("decode", {}), bundle.model.longest
    beam = search.get("beam", 1) if isinstance(search, dict) else 1
    about = str(bundle.recipe.get("about", "") if isinstance(bundle.recipe, dict) else "")
    if codec.source is None:
        program = _generate(codec, longest)
    elif isinstance(bundle.model, EncoderDecoder):
        program = _translate(codec, int(beam), longest)
    else:
        program = _answer(codec, longest)
    return f"""# A model for CTranslate2

{about}

Written by allyouneed {__version__}, weights in {quantization}; `pip install ctranslate2 {library_of(codec)}` is
all it needs. Run this in the folder:

```python
{program}```

`suppress_sequences` prevents generating padding and begin-of-text tokens. `max_input_length=0` prevents CTranslate2
from truncating long texts silently. It ranks by log P / length^length_penalty, allyouneed by
log P / ((5 + length) / 6)^alpha.
"""


def _framed(tokens: str, codec: Codec) -> str:
    """Return an expression for a text framed as the model expects."""
    assert codec.source is not None
    names = {number: name for name, number in codec.source.vocabulary.items()}
    before, behind = ([names[number] for number in side] for side in codec.framing)
    return " + ".join([*([repr(before)] if before else []), tokens, *([repr(behind)] if behind else [])])


def _too_long(texts: str, longest: int | None) -> str:
    """Return lines of a program that exit if a text exceeds the learned positions."""
    if longest is None:
        return ""
    return f"""if max(map(len, {texts}), default=0) > {longest}:
    sys.exit("a text has more than {longest} tokens: this model has no more learned positions")
"""


def _longest(prompt: str, longest: int | None) -> str:
    """Return an expression for the maximum output after a prompt; the last token needs no position."""
    return "100" if longest is None else f"min(100, {longest + 1} - len({prompt}))"


def _translate(codec: Codec, beam: int, longest: int | None) -> str:
    limit = "" if longest is None else f"\n    max_decoding_length={min(256, longest)},"
    return f"""import sys

import ctranslate2
{text_functions(codec)}translator = ctranslate2.Translator(".", device="cpu")
lines = [line.rstrip("\\n") for line in sys.stdin]
given = [{_framed("tokens_of(line)", codec)} for line in lines]
{_too_long("given", longest)}found = translator.translate_batch(
    given, beam_size={beam}, length_penalty=1, max_input_length=0, min_decoding_length=0, max_batch_size=32,{limit}
    suppress_sequences=[["{SPECIALS[0]}"], ["{SPECIALS[BOS]}"]],
)
for one in found:
    print(text_of(one.hypotheses[0]))
"""


def _generate(codec: Codec, longest: int | None) -> str:
    begin, tokens = f'["{SPECIALS[BOS]}"]', 'tokens_of(sys.stdin.read().rstrip("\\n"))'
    prompt = f"{begin} + {tokens}" if codec.bos else f"{tokens} or {begin}"
    ends = f"\n    end_token={[EOS, *codec.ends]}," if codec.ends else ""
    return f"""import sys

import ctranslate2
{text_functions(codec)}generator = ctranslate2.Generator(".", device="cpu")
prompt = {prompt}
{_too_long("[prompt]", longest)}found = generator.generate_batch(
    [prompt], beam_size=1, max_length={_longest("prompt", longest)}, include_prompt_in_result=False,
    suppress_sequences=[["{SPECIALS[0]}"], ["{SPECIALS[BOS]}"]],{ends}
)
print(text_of(prompt + found[0].sequences[0]))
"""


def _answer(codec: Codec, longest: int | None) -> str:
    target = "source" if codec.source is codec.target else 'Tokenizer.from_file("tokenizer.target.json")'
    options = f"""include_prompt_in_result=False,
    suppress_sequences=[["{SPECIALS[0]}"], ["{SPECIALS[BOS]}"]],"""
    search = f"""found = generator.generate_batch(
    given, beam_size=1, max_length=100, {options}
)"""
    if longest is not None:  # a batch has one limit, but the positions left differ by text
        search = f"""found = [
    generator.generate_batch([one], beam_size=1, max_length={_longest("one", longest)}, {options})[0]
    for one in given
]"""
    return f"""import json
import sys

import ctranslate2
from tokenizers import Tokenizer

source = Tokenizer.from_file("tokenizer.json")
target = {target}
names = json.load(open("vocabulary.json", encoding="utf-8"))
generator = ctranslate2.Generator(".", device="cpu")
lines = [line.rstrip("\\n") for line in sys.stdin]
encoded = [source.encode(line, add_special_tokens=False).ids for line in lines]
given = [{_framed("[names[i] for i in ids]", codec)} + ["{SPECIALS[BOS]}"] for ids in encoded]
{_too_long("given", longest)}{search}
for one in found:
    ids = [target.token_to_id(token) for token in one.sequences[0] if not token.startswith("< ")]
    print(target.decode(ids, skip_special_tokens=False))
"""
