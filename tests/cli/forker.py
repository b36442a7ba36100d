"""Runs commands in processes of their own, without paying two seconds for `import torch` each time.

Reads requests (JSON, one a line), forks for each, and answers with the exit status and the peak memory in KiB. It is
started with a single thread, so forking is safe. A few tests start `python -m allyouneed` itself.
"""

import json
import os
import resource
import sys
from typing import Any

import torch

import allyouneed.cli
import allyouneed.evaluation.measure
import allyouneed.inspection.maps
import allyouneed.lab.compare.report
import allyouneed.training


def in_child(request: dict[str, Any]) -> None:
    for number, (name, mode) in enumerate((("stdin", os.O_RDONLY), ("stdout", os.O_WRONLY), ("stderr", os.O_WRONLY))):
        os.dup2(os.open(request[name], mode), number)
    os.chdir(request["folder"])
    sys.argv = ["allyouneed", *request["arguments"]]
    status: Any = 1
    try:
        allyouneed.cli.main()
    except SystemExit as end:
        status = end.code
    except BaseException:
        sys.excepthook(*sys.exc_info())
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(status)


def main() -> None:
    torch.set_num_threads(1)
    for line in sys.stdin:
        child = os.fork()
        if not child:
            in_child(json.loads(line))
        _, status, usage = os.wait4(child, 0)
        print(json.dumps([os.waitstatus_to_exitcode(status), usage.ru_maxrss]), flush=True)


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    main()
