# The commands of the project; `make help` lists them. Each one prepares what it needs, from a bare
# Debian 12 on, and a second run does no set-up work.
#
# Expected time on two cores, first run: about 15 minutes for `make demo` (ten of them build
# llama.cpp, once per machine), about 25 for `make test`. Later runs: seconds, and about 10 minutes.

# Variables a person may set:
#   MODELS=all                also fetch the two larger test models (always so when CI is set)
#   PRECIS_LLAMA_DIR=path     own checkout or install of llama.cpp, in place of the pinned source
#   PRECIS_CACHE=path         where builds of llama.cpp and models are kept (~/.cache/precis)
#   PRECIS_NO_APT=1           do not install Debian packages
#   PREFIX, DESTDIR           where `make install` installs to
MODELS ?= $(if $(CI),all,default)
PREFIX ?= /usr/local
export PRECIS_LLAMA_DIR PRECIS_CACHE PRECIS_NO_APT

MODEL := models/SmolLM2-135M-Instruct.Q4_1.gguf
TEXT := /usr/share/common-licenses/GPL-3
QUESTION := What must you do if you convey a modified version of the work?

SOURCES = $(shell find src include tests bench -name '*.cpp' -o -name '*.h' -o -name '*.c' -o -name '*.inl')
CLANG_FORMAT ?= $(firstword $(wildcard /usr/bin/clang-format-14) clang-format)

.DEFAULT_GOAL := help
.PHONY: help setup build models demo test eval eval-smoke methods-doc format format-check lint tidy bench install clean

help:  ## this list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 14

setup:  ## install what is missing and build llama.cpp into the cache
	@tools/setup.sh

build: setup  ## the release binary, build/release/precis
	@tools/build.sh release precis precis_shared

models: setup  ## the default model into models/ (MODELS=all: the test models too)
	@tools/fetch_models.py $(MODELS)

demo: build models  ## condense the GPL-3 to a quarter, ask a question, compare with the full cache
	build/release/precis run -m $(MODEL) -f $(TEXT) -p "$(QUESTION)" --method selkv --keep 25% --compare

test:  ## everything that must pass: format, structure, unit tests under ASan and UBSan, model tests
	@tools/setup.sh test
	@tools/fetch_models.py $(MODELS)
	@$(MAKE) --no-print-directory format-check lint
	@tools/build.sh dev -- -DPRECIS_TESTS=ON
	ctest --preset dev
	@tools/build.sh release -- -DPRECIS_TESTS=ON
	ctest --preset release

eval: build  ## the evaluation of docs/RESULTS.md: many hours; stopped anywhere, it goes on
	@tools/fetch_models.py all
	tools/run_eval.sh whole

eval-smoke: build  ## the same in small: report in build/eval/smoke in less than five minutes
	@tools/fetch_models.py all
	tools/run_eval.sh smoke

methods-doc: build  ## measure every preset and write docs/METHODS.md: hours; stopped anywhere, it goes on
	@tools/fetch_models.py all
	tools/measure_methods.py
	tools/make_methods_doc.py

format:  ## rewrite our sources in the project's style
	@$(CLANG_FORMAT) -i $(SOURCES)

format-check:  ## fail when a source is not in the project's style
	@$(CLANG_FORMAT) --dry-run -Werror $(SOURCES)

lint:  ## the checks on structure: layers, sizes, names, text
	tools/check_layers.py --self-test
	tools/check_layers.py

tidy:  ## clang-tidy on our own sources (slow)
	@tools/setup.sh tidy
	@tools/build.sh tidy -- -DPRECIS_TESTS=OFF

bench:  ## micro-benchmarks of the kernels
	@tools/setup.sh bench
	@tools/build.sh release kernels_bench matmul_bench -- -DPRECIS_BENCH=ON
	build/release/bench/kernels_bench
	build/release/bench/matmul_bench

install: build  ## install to PREFIX: binary, library, header, backends
	cmake --install build/release --prefix $(PREFIX)

clean:  ## remove what was built here (not the cache, not the models)
	rm -rf build
