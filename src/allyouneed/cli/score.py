"""`allyouneed score`: log probabilities of given texts."""

import sys

from allyouneed.cli.model_options import (
    Adapter,
    Data,
    Device,
    ModelFolder,
    SourceLanguage,
    TargetLanguage,
    corpora_of,
    in_languages,
    open_model,
)


def command(
    model: ModelFolder,
    data: Data = None,
    source_language: SourceLanguage = None,
    target_language: TargetLanguage = None,
    adapter: Adapter = None,
    device: Device = "cpu",
) -> None:
    """Print the log probability of each line of standard input, or of each row of --data.

    Prints the log probability (nats) and the number of tokens, separated by a TAB. An input line is source TAB target,
    text TAB class, or for a language model a text.
    """
    from allyouneed.cli.stdin import NAME, line_batches
    from allyouneed.evaluation.probabilities import score_files, score_lines

    bundle = in_languages(open_model(model, device, adapter=adapter), source_language, target_language)
    if data is not None:
        for scored in score_files(bundle, corpora_of(data)):
            print("" if scored is None else f"{scored.logprob:.6f}\t{scored.tokens}")
        return
    number = 0
    for lines in line_batches():
        for scored in score_lines(bundle, lines, str(NAME), number):
            print("" if scored is None else f"{scored.logprob:.6f}\t{scored.tokens}")
        sys.stdout.flush()
        number += len(lines)
