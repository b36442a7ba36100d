# Every target sets up what it needs: on a machine with Python 3.11 only, `make demo` and `make test` work.
VENV   := .venv
PY     := $(VENV)/bin/python
STAMP  := $(VENV)/.installed

.PHONY: setup browser nginx demo test test-fast sanitize check format bench faults clean
.DEFAULT_GOAL := help

help:
	@echo "make setup   make .venv with everything pinned in constraints.txt"
	@echo "make demo    train English -> German number words, translate unseen ones, draw the attention"
	@echo "make test    run the tests (minutes)"
	@echo "make test-fast  contracts and units only: no child processes, no slow test (two minutes)"
	@echo "make sanitize  kernel, inference and serving tests with sanitizers in the C code (half an hour)"
	@echo "make check   format, lint, types, import layers, sizes of files and functions (seconds)"
	@echo "make bench   measure speed against torch.nn and Hugging Face (minutes)"
	@echo "make faults  kills, broken disks, flipped bits, hostile corpora, fuzzers (about two hours)"

setup: $(STAMP)

# The tests of the page drive a real browser. Without one they are skipped, so nothing here fails.
browser:
	@if command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null; then :; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  echo "installing chromium for the tests of the page"; \
	  { apt-get update -qq && apt-get install -y -qq chromium; } >/dev/null 2>&1 || \
	  echo "chromium could not be installed: the tests of the page will be skipped"; \
	else echo "no chromium here (as root: apt-get install chromium): the tests of the page will be skipped"; fi

# nginx is the proxy of the tests of deploy/. Without it they are skipped.
nginx:
	@if command -v nginx >/dev/null || [ -x /usr/sbin/nginx ]; then :; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  echo "installing nginx for the tests of the server"; \
	  { apt-get update -qq && apt-get install -y -qq nginx-light; } >/dev/null 2>&1 || \
	  echo "nginx could not be installed: the tests behind a proxy will be skipped"; \
	else echo "no nginx here (as root: apt-get install nginx-light): the tests behind a proxy will be skipped"; fi

$(STAMP): pyproject.toml constraints.txt
	python3 -m venv $(VENV)
	$(PY) -m pip install --quiet --disable-pip-version-check -c constraints.txt torch==2.13.0
	$(PY) -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

demo: setup
	$(VENV)/bin/allyouneed demo --out runs/demo

test: setup browser nginx
	$(PY) -m pytest -n 2

test-fast: setup
	$(PY) -m pytest -n 2 --fast

# AddressSanitizer with UBSan, then ThreadSanitizer (docs/sanitizers.md). setarch: TSan needs a fixed memory layout.
SANITIZED := -m pytest -n 2 --no-shapes tests/kernels tests/inference tests/serve
runtime    = $(shell gcc -print-file-name=$(1))

sanitize: setup browser nginx
	ALLYOUNEED_SANITIZE=address PYTHONMALLOC=malloc ASAN_OPTIONS=detect_leaks=0 \
	  LD_PRELOAD="$(call runtime,libasan.so) $(call runtime,libstdc++.so.6)" $(PY) $(SANITIZED)
	ALLYOUNEED_SANITIZE=thread TOKENIZERS_PARALLELISM=false LD_PRELOAD=$(call runtime,libtsan.so) \
	  TSAN_OPTIONS="suppressions=$(CURDIR)/tests/kernels/tsan.supp halt_on_error=1 exitcode=66" \
	  setarch -R $(PY) $(SANITIZED)

check: setup
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports --no-logo
	$(PY) scripts/house.py

format: setup
	$(VENV)/bin/ruff format .
	$(VENV)/bin/ruff check --fix .

bench: setup
	$(PY) benchmarks/train_speed.py
	$(PY) benchmarks/decode_speed.py
	$(PY) benchmarks/long_sequences.py
	$(PY) benchmarks/decode_positions.py
	$(PY) benchmarks/busy.py

FUZZ := -max_total_time=600 -timeout=60 -rss_limit_mb=3000

faults: setup
	$(PY) -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[fuzz]'
	for kind in language translation xl ddp; do $(PY) tests/faults/kill.py --kind $$kind --kills 50 || exit 1; done
	$(PY) tests/faults/two_hosts.py || [ $$? = 77 ]
	$(PY) tests/faults/faults.py
	$(PY) tests/faults/flip.py --changes 3000
	$(PY) tests/faults/corpora.py
	$(PY) tests/faults/hostile_requests.py
	$(PY) tests/faults/rolling_restart.py || [ $$? = 77 ]
	for reader in recipe tokenizer codec manifest safetensors; do \
	  $(PY) tests/faults/fuzz_readers.py $$reader $(FUZZ) -len_control=0 -max_len=400 || exit 1; done
	$(PY) tests/faults/fuzz_rasp.py $(FUZZ)
	$(PY) tests/faults/fuzz_rasp_compiler.py --seconds 180

clean:
	rm -rf $(VENV) runs .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
