# PICNIC: the common tasks. `make` alone lists them.

.DEFAULT_GOAL := help
CARGO ?= cargo
# The prefix of `make install`.
PREFIX ?= /usr/local
# Seconds for each fuzz target of `make fuzz`.
SECONDS_EACH := $(or $(SECONDS),60)

.PHONY: help build fast run install deb dist check test test-all micro bench bench-peers fuzz fmt lint figures doc clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

build: ## the release binary, target/release/picnic
	@$(CARGO) build --locked --release -p picnic-cli

fast: ## the same without link-time optimisation, target/fast/picnic: builds faster
	@$(CARGO) build --locked --profile fast -p picnic-cli

run: fast ## the built-in demonstration card: five seconds, no root, no packages
	@target/fast/picnic run

install: build ## program, manual pages and completions below PREFIX=/usr/local
	install -d "$(DESTDIR)$(PREFIX)/bin" "$(DESTDIR)$(PREFIX)/share/man/man1" \
	    "$(DESTDIR)$(PREFIX)/share/bash-completion/completions"
	install -m 755 target/release/picnic "$(DESTDIR)$(PREFIX)/bin/picnic"
	target/release/picnic man "$(DESTDIR)$(PREFIX)/share/man/man1"
	target/release/picnic completions bash \
	    > "$(DESTDIR)$(PREFIX)/share/bash-completion/completions/picnic"

deb: ## a Debian package, in target/package
	@scripts/package deb

dist: ## a static program with its pages and examples, in target/package
	@scripts/package dist

check: ## before a commit: format, clippy, crate graph, unit and property tests
	@scripts/test format lint graph unit property

test: ## all tests, then a summary (installs the packages it needs, if root)
	@scripts/test

test-all: ## test, and clippy, API pages, models, a virtual machine, kills, fuzzing
	@PARTS=all scripts/test

micro: ## the micro-benchmarks, target/release/picnic-micro
	@$(CARGO) build --locked --release -p picnic-micro

bench: micro ## dispatch and hash benchmarks, as JSON
	target/release/picnic-micro dispatch --queues 4 --seconds 2 --json
	target/release/picnic-micro hash --json

bench-peers: micro ## dispatch against the DPDK program, interleaved
	$(MAKE) -C bench/peers
	bench/peers/compare.py

fuzz: ## the fuzz targets, SECONDS=60 for each (TARGETS="headers pcap" for some)
	scripts/fuzz $(SECONDS_EACH) $(TARGETS)

fmt: ## format the source
	$(CARGO) fmt --all

lint: ## format, clippy with warnings denied, the crate graph, dependencies
	scripts/test format lint graph

figures: ## docs/figures.md and its plots, from bench/results
	@scripts/figures

doc: ## the API's pages, target/doc
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --locked --no-deps

clean: ## remove build outputs
	$(CARGO) clean
	rm -rf fuzz/artifacts fuzz/corpus bench/peers/build
