# l2relay. `make` alone lists what there is.
#
# Targets install what they need and is missing (Debian 12 packages; as root, or through sudo). Programs that use network
# namespaces run as root, or through sudo.

CARGO ?= cargo
CLANG ?= clang
TARGET := $(or $(CARGO_TARGET_DIR),target)
RELEASE := $(TARGET)/release
REPORT ?= report
IMAGE ?= l2relay
# Further arguments for l2relay-bench, and for cargo test.
ARGS ?=

SUDO := $(if $(filter-out 0,$(shell id -u)),$(shell command -v sudo))

# To build; to send traffic and look at it, for demo and tests; to compare with DPDK and with ns-3; for containers and labs; to check the
# sources.
BUILD_PACKAGES := gcc libc6-dev make pkg-config clang m4 libelf-dev zlib1g-dev libpcap-dev
TRAFFIC_PACKAGES := iproute2 ethtool iputils-ping sockperf iperf3 tcpdump tshark python3 util-linux procps libcap2-bin python3-jsonschema python3-yaml python3-prometheus-client python3-pyte python3-scapy
RIVAL_PACKAGES := dpdk-dev
NS3_PACKAGES := libns3-dev g++
CONTAINER_PACKAGES := docker.io docker-compose mininet libcap2-bin
LINT_PACKAGES := llvm libbpf-dev linux-libc-dev g++

# Installs the packages of a list that are missing, and says nothing if none is.
define install
@missing=; \
if command -v dpkg-query >/dev/null; then \
	for package in $(1); do \
		case $$(dpkg-query -W -f '$${db:Status-Status}' $$package 2>/dev/null) in \
			installed) ;; *) missing="$$missing $$package" ;; \
		esac; \
	done; \
else echo "No dpkg here: see to it yourself that there are (Debian's names): $(1)" >&2; fi; \
if [ -n "$$missing" ]; then \
	if [ "$$(id -u)" != 0 ] && [ -z "$(SUDO)" ]; then \
		echo "Missing:$$missing. Install them as root: apt-get install$$missing" >&2; exit 1; \
	fi; \
	echo "Installing:$$missing"; \
	$(SUDO) env DEBIAN_FRONTEND=noninteractive apt-get -qq update && \
	$(SUDO) env DEBIAN_FRONTEND=noninteractive apt-get -qq install --no-install-recommends $$missing >/dev/null || \
		{ echo "apt-get failed; it was to install:$$missing" >&2; exit 1; }; \
fi
endef

.PHONY: help setup build demo test test-tests test-containers test-model bench dumbbell lint image clean

help: ## List the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | while IFS="$$(printf '\t')" read -r name text; do \
		printf '  make %-11s %s\n' "$$name" "$$text"; \
	done

setup: ## Install every package that any target needs, if it is missing
	$(call install,$(BUILD_PACKAGES) $(TRAFFIC_PACKAGES) $(RIVAL_PACKAGES) $(NS3_PACKAGES) $(CONTAINER_PACKAGES) $(LINT_PACKAGES))

build: ## Build the programs, optimised: l2relay and l2relay-bench
	$(call install,$(BUILD_PACKAGES))
	$(CARGO) build --release --workspace --bins

demo: build ## Measure client - relay - server against no relay, in namespaces of its own: about a minute
	$(call install,$(TRAFFIC_PACKAGES))
	@mkdir -p $(REPORT)
	$(SUDO) $(RELEASE)/l2relay-bench chain --out $(REPORT) $(ARGS)

test: test-model ## Run every test; those with namespaces need root, and say so if they are skipped
	$(call install,$(BUILD_PACKAGES) $(TRAFFIC_PACKAGES))
	$(AS_ROOT) $(CARGO) test --workspace --no-fail-fast $(ARGS)

test-tests: ## Run the black-box tests against relays that are wrong on purpose: minutes
	$(call install,$(BUILD_PACKAGES) $(TRAFFIC_PACKAGES))
	$(AS_ROOT) $(CARGO) test --workspace --test netns -- --ignored sceptic

test-containers: ## Run the tests in containers and Mininet, with a Docker engine of their own: minutes
	$(call install,$(BUILD_PACKAGES) $(TRAFFIC_PACKAGES) $(CONTAINER_PACKAGES))
	$(SUDO) env PATH="$$PATH" HOME="$$HOME" docker/engine --scratch docker/test

# Tests that need root get it: cargo builds as the user, and only the tests run through sudo.
HOST := $(shell rustc -vV 2>/dev/null | sed -n 's/^host: //p' | tr 'a-z-' 'A-Z_')
AS_ROOT := $(if $(SUDO),CARGO_TARGET_$(HOST)_RUNNER="$(SUDO) -E")

# What threads share, in every order in which it can happen. Its own directory: everything is built with another --cfg.
test-model: ## Run the model checker over what threads share
	$(call install,$(BUILD_PACKAGES))
	RUSTFLAGS="--cfg loom" $(CARGO) test --target-dir $(TARGET)/loom -p l2relay --no-default-features --lib model::

bench: build ## Compare with DPDK's testpmd and the Linux bridge, in interleaved rounds
	$(call install,$(TRAFFIC_PACKAGES) $(RIVAL_PACKAGES))
	@mkdir -p $(REPORT)
	$(SUDO) $(RELEASE)/l2relay-bench peers --out $(REPORT) $(ARGS)

dumbbell: build ## TCP over emulated links as in ns-3's DCE Cradle, ns-3 beside it: a quarter of an hour (ARGS=--short: a minute)
	$(call install,$(TRAFFIC_PACKAGES) $(NS3_PACKAGES))
	@mkdir -p $(REPORT)
	$(SUDO) $(RELEASE)/l2relay-bench dumbbell --out $(REPORT) $(ARGS)

lint: ## Check format, lints, documentation, and that the BPF objects match their sources
	$(call install,$(BUILD_PACKAGES) $(LINT_PACKAGES))
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --no-deps --workspace
	@# The fuzz targets, which need another compiler to run, and the library without features, as they have it.
	RUSTFLAGS="-D warnings" $(CARGO) check --quiet --locked --manifest-path dataplane/fuzz/Cargo.toml --target-dir $(TARGET)/fuzz
	@if [ -e bpf/Makefile ]; then $(MAKE) --no-print-directory -C bpf check; fi

image: ## Build the container images: a static binary and nothing else
	$(call install,$(BUILD_PACKAGES) $(CONTAINER_PACKAGES))
	docker/build --binary-only
	$(SUDO) env PATH="$$PATH" HOME="$$HOME" docker/engine docker/build $(IMAGE)

clean: ## Remove what was built and reported
	$(CARGO) clean
	rm -rf $(REPORT)
