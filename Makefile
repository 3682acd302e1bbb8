# `make demo` and `make test` need Debian, Python 3.11+, python3-venv and make; they bring everything else.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
SPARK_STAMP := $(VENV)/.installed-spark
RELEASE := $(VENV)/release
RELEASE_STAMP := $(RELEASE)/.installed
INTEROP := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/offset-adapter-interop
VERSION := $(shell sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)
IMAGE := build/offset-adapter-$(VERSION)-image.tar
BENCH_STAMP := $(VENV)/.installed-bench

.DEFAULT_GOAL := help
.PHONY: help setup wheel demo demo-cluster demo-pipeline demo-rocketmq demo-alerts console plugin example check test coverage tools lint format types proto proto-check mutants soak interop model model-search model-coverage bench lock chart chart-check image image-check audit release-check clean

help: ## Show these targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  %-12s %s\n", $$1, $$2}'

# Without --no-compile, pip compiles every module of every package; most are never imported, and the others are compiled when they
# are. That has to be kept: with this variable set, as on some CI machines, every process would compile what it imports again.
unexport PYTHONDONTWRITEBYTECODE
PIP_FLAGS := --quiet --disable-pip-version-check --no-compile

$(STAMP): requirements/dev.lock pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install $(PIP_FLAGS) --require-hashes -r requirements/dev.lock
	$(BIN)/pip install $(PIP_FLAGS) --no-build-isolation --no-deps --editable .
	@touch $(STAMP)

# spark.lock has all of dev.lock in it: one pass of pip installs both. Every Python process of Spark imports PySpark from the archives
# below python/lib if it can, and compiles it each time, half a second: empty, they lead it to what pip installed (docs/pipeline.md).
$(SPARK_STAMP): requirements/dev.lock requirements/spark.lock pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install $(PIP_FLAGS) --require-hashes -r requirements/spark.lock
	@for archive in $(VENV)/lib/python*/site-packages/pyspark/python/lib/*.zip; do : > $$archive; done
	$(BIN)/pip install $(PIP_FLAGS) --no-build-isolation --no-deps --editable .
	@touch $(STAMP) $(SPARK_STAMP)

$(BENCH_STAMP): $(SPARK_STAMP) requirements/bench.lock
	$(BIN)/pip install $(PIP_FLAGS) --require-hashes -r requirements/bench.lock
	@touch $(BENCH_STAMP)

$(RELEASE_STAMP): requirements/release.lock
	$(PYTHON) -m venv $(RELEASE)
	$(RELEASE)/bin/pip install $(PIP_FLAGS) --require-hashes -r requirements/release.lock
	@touch $(RELEASE_STAMP)

setup: $(STAMP) ## Make the virtual environment with everything pinned

demo: $(STAMP) ## Show the main job on real data, end to end, in under a minute
	$(BIN)/python -m demo

demo-cluster: $(STAMP) ## Show the Meta Service on etcd: Raft groups, processes and adapters under load, each part killed in turn, comparison
	@sh demo/install-etcd.sh
	$(BIN)/python -m demo.raft

demo-pipeline: $(SPARK_STAMP) ## Show the Spark pipeline: a fleet under load, lag tables, a crash, reconcile, repair, the report
	$(BIN)/python -m demo.pipeline

demo-rocketmq: $(STAMP) ## Show a real RocketMQ broker under kill -9: stock, with the bridge, with the plugin (Java, Maven; KILLS=... DESIGNS="stock bridge")
	@sh tests/interop/install-rocketmq.sh
	@$(MAKE) --no-print-directory plugin
	$(BIN)/python -m demo.rocketmq $(if $(KILLS),--kills $(KILLS)) $(foreach design,$(DESIGNS),--design $(design))

console: $(STAMP) ## Show the console on a fleet with load, until Ctrl-C: groups that stall, stop, lag, go back, are reset (FOR=seconds LISTEN=host:port)
	$(BIN)/python -m demo.console $(if $(FOR),--for $(FOR)) $(if $(LISTEN),--listen $(LISTEN))

demo-alerts: $(STAMP) ## Show faults on the console's page and in a real Prometheus: kill, pause, full disk, stall, reset (FAULTS="kill stall")
	@sh demo/install-prometheus.sh
	$(BIN)/python -m demo.alerts $(foreach fault,$(FAULTS),--fault $(fault))

plugin: ## Build and test the plugin for RocketMQ brokers: integrations/rocketmq/target/offset-adapter-rocketmq.jar (Java, Maven)
	@sh tests/interop/install-packages.sh javac:openjdk-17-jdk-headless mvn:maven
	mvn -q -B -f integrations/rocketmq/pom.xml package

example: $(STAMP) ## Show a real consumer: NATS JetStream, kills, positions in the adapter, beside NATS's own (MESSAGES=... KILLS=... ACK_WAIT=...)
	@sh demo/unpack.sh nats-server nats-server
	$(BIN)/python -m examples $(if $(MESSAGES),--messages $(MESSAGES)) $(if $(KILLS),--kills $(KILLS)) $(if $(ACK_WAIT),--ack-wait $(ACK_WAIT))

check: $(SPARK_STAMP) lint types ## The inner loop: format, lint, import contracts, types, unit tests; some three minutes
	$(BIN)/python -m pytest --quiet --numprocesses=$(or $(JOBS),3) --dist=loadfile tests/unit tests/mutants

test: $(SPARK_STAMP) ## Run all checks: format, lint, types, generated code, tests; but for the long forms of release-tests
	@$(MAKE) --no-print-directory --jobs --output-sync tools lint types proto-check collect
	$(BIN)/python -m pytest --numprocesses=$(or $(JOBS),4) --dist=loadfile -p tests.pipeline.spreading -m "not release" $(if $(COVERAGE),--cov --cov-report=) \
	  $(if $(RERUNS),--reruns 1 --max-suite-reruns $(RERUNS) --rerun-show-tracebacks)

coverage: ## The same, and show the lines that no test ran; takes half as long again
	@$(MAKE) --no-print-directory test COVERAGE=1
	$(BIN)/coverage report

tools: ## Install the Debian packages that the fault tests use
	@sh tests/install-tools.sh

# Compiles the tests and what they import, once: the workers of pytest would do it beside each other.
.PHONY: collect
collect: $(SPARK_STAMP)
	@$(BIN)/python -m pytest --quiet --quiet --collect-only > $(VENV)/collected || { cat $(VENV)/collected; exit 1; }

lint: $(STAMP) ## Check format, lint, and which package may import which
	$(BIN)/ruff format --check --quiet . || { $(BIN)/ruff format --diff --quiet .; exit 1; }
	$(BIN)/ruff check --quiet .
	$(BIN)/lint-imports --no-cache > $(VENV)/contracts || { cat $(VENV)/contracts; exit 1; }

format: $(STAMP) ## Format the code and apply safe fixes
	$(BIN)/ruff format --quiet .
	$(BIN)/ruff check --quiet --fix .

types: $(SPARK_STAMP) ## Check types
	$(BIN)/mypy

proto: $(STAMP) ## Generate the wire code from proto/
	$(BIN)/python -m grpc_tools.protoc -Iadapter/rpc=proto \
	  --plugin=protoc-gen-mypy=$(BIN)/protoc-gen-mypy --plugin=protoc-gen-mypy_grpc=$(BIN)/protoc-gen-mypy_grpc \
	  --python_out=$(or $(OUT),.) --grpc_python_out=$(or $(OUT),.) --mypy_out=quiet:$(or $(OUT),.) --mypy_grpc_out=quiet:$(or $(OUT),.) proto/*.proto

proto-check: $(STAMP) ## Check that the generated code is current
	@rm -rf $(VENV)/proto && mkdir -p $(VENV)/proto
	@$(MAKE) --no-print-directory --silent proto OUT=$(VENV)/proto
	@for file in adapter/rpc/*_pb2*; do cmp -s $$file $(VENV)/proto/$$file || { echo "$$file is not current: run make proto"; exit 1; }; done

mutants: $(SPARK_STAMP) ## Plant bugs in copies of the code; each has to be caught (RUNS=... of the model for each)
	$(BIN)/python -m tests.mutants $(if $(RUNS),--runs $(RUNS))

soak: $(STAMP) ## Crash real processes 200 times under load; nothing acknowledged may be lost (CYCLES=... SEED=...)
	$(BIN)/python -m tests.soak $(if $(CYCLES),--cycles $(CYCLES)) $(if $(SEED),--seed $(SEED))

.PHONY: linearizability
linearizability: $(STAMP) ## Judge a history of the soak, and thousands broken on purpose, by our checker and by Porcupine (Go; SEED=...)
	$(BIN)/python -m tests.linearizability $(if $(SEED),--seed $(SEED))

.PHONY: evidence evidence-page track-record
evidence: $(SPARK_STAMP) tools ## Spend MINUTES=10 on random seeds of all machines of proof; docs/evidence.md shows the totals (ONLY="model soak")
	nice -n 15 $(BIN)/python -m tests.evidence --minutes $(or $(MINUTES),10) $(foreach name,$(ONLY),--only $(name))

evidence-page: $(SPARK_STAMP) ## Draw docs/evidence.md from evidence/runs.jsonl, as every slice of make evidence does
	$(BIN)/python -m tests.evidence --page

track-record: $(SPARK_STAMP) ## Replay every bug of docs/track-record.md on the commit before its fix; takes an hour
	nice -n 15 $(BIN)/python -m tests.evidence.replay --all

interop: $(SPARK_STAMP) ## Others' software: RobustMQ's Meta Service and broker (ROBUSTMQ_META, ROBUSTMQ_BROKER: paths of their binaries); RocketMQ's own classes on offset files; its brokers beside the bridge and with the plugin; h2spec and gRPC clients in five languages on both gRPC servers; the clients in Go, Java and Rust by the conformance suite; KEDA's external scaler; a Spark cluster, an S3 server; Spark with Kafka, Delta, Iceberg, OpenLineage, HDFS and Google Cloud Storage (Java, Node, Go, Cargo)
	@sh tests/interop/install-rocketmq.sh 5.5.0 5.3.3 5.2.0 5.4.0 4.9.7
	@$(MAKE) --no-print-directory plugin
	@sh tests/interop/install-java-node.sh
	@sh tests/interop/install-go-rust.sh
	@sh tests/interop/install-keda.sh
	@PYTHON=$(abspath $(BIN)/python) sh tests/interop/install-spark-libraries.sh
	$(BIN)/python -m pytest tests/interop/keda.py
	$(BIN)/python -m pytest tests/interop/exchange.py tests/interop/h2spec.py
	$(BIN)/python -m pytest tests/interop/spark_cluster.py
	$(BIN)/python -m pytest tests/interop/spark_libraries.py tests/interop/spark_kafka.py tests/interop/spark_urls.py
	$(BIN)/python -m pytest tests/interop/kafka_leave.py
	$(BIN)/python -m pytest --timeout=1200 tests/interop/rocketmq_takeover.py tests/interop/rocketmq_bridge.py
	$(BIN)/python -m pytest tests/interop/grpc_clients.py --numprocesses=2
	$(BIN)/python -m pytest tests/interop/go_client.py tests/interop/rust_client.py tests/interop/clients.py tests/interop/own_broker.py
	@[ -z "$$ROBUSTMQ_BROKER" ] || $(MAKE) --no-print-directory $(BENCH_STAMP) # its Kafka client
	$(BIN)/python -m pytest -rs tests/interop/robustmq.py tests/interop/robustmq_broker.py
	$(BIN)/python -m pytest tests/interop/rocketmq_plugin.py
	@$(MAKE) --no-print-directory chart-check

.PHONY: monitoring
monitoring: $(STAMP) ## Generate the rules, alerts and dashboards in deploy/monitoring from their source there
	$(BIN)/python -m deploy.monitoring.source

chart: $(STAMP) ## Render deploy/kubernetes from the chart in deploy/helm (Go)
	@PYTHON=$(abspath $(BIN)/python) sh tests/interop/install-helm.sh
	sh deploy/helm/render.sh $(INTEROP)/helm/helm deploy/kubernetes

chart-check: $(STAMP) ## Check the chart with Helm, and what it renders with Kubernetes' schemas (Go)
	@PYTHON=$(abspath $(BIN)/python) sh tests/interop/install-helm.sh
	$(BIN)/python -m pytest tests/interop/helm.py

image: ## Build the image: with Docker, or as root with buildah and a base of Debian's packages (or BASE=...); as a file in build/
	COMMIT=$$(git describe --always --abbrev=40 --dirty --exclude='*') sh deploy/image/build.sh offset-adapter:$(VERSION) $(IMAGE)

image-check: $(STAMP) image ## Build the image, look into it, and start it until a commit came back (root; Debian's runc)
	@PATH="$$PATH:/usr/sbin" sh tests/interop/install-packages.sh runc:runc
	PATH="$$PATH:/usr/sbin" IMAGE=$(IMAGE) $(BIN)/python -m pytest -s tests/interop/image.py

audit: $(STAMP) $(RELEASE_STAMP) ## Look for known vulnerabilities of what is locked; exit code 3: the registry has no data here
	$(BIN)/python -m tests.release.audit $(RELEASE)/bin/pip-audit requirements/runtime.lock requirements/console.lock requirements/journal.lock requirements/spark.lock

.PHONY: release-tests
release-tests: $(SPARK_STAMP) tools ## The tests that make test leaves out, marked `release`: all benchmarks, whole demos, the console in each width and colour; more examples
	$(BIN)/python -m pytest --numprocesses=$(or $(JOBS),2) --dist=loadfile -p tests.pipeline.spreading -m release
	$(BIN)/python -m pytest --numprocesses=$(or $(JOBS),2) --dist=loadfile --hypothesis-profile=many -m "hypothesis and not release"

wheel: $(STAMP) ## Build the wheel, in dist/ (the README says how to install it)
	$(BIN)/python -m hatchling build --target wheel --directory dist

release-check: $(STAMP) $(RELEASE_STAMP) proto-check ## All of a release but the upload: versions, sdist and wheel, a fresh install, SBOM, audit, release-tests, chart, image (root, Go)
	$(BIN)/python -m tests.release $(RELEASE) dist
	@$(MAKE) --no-print-directory release-tests
	@$(MAKE) --no-print-directory chart-check
	$(INTEROP)/helm/helm package --destination dist deploy/helm/offset-adapter
	@$(MAKE) --no-print-directory image-check
	cp $(IMAGE) dist/
	@ls -l dist

model: $(STAMP) ## Run the model test with random seeds (SEED= of the first): RUNS=5000 runs, or as many as SECONDS=120 allow, on all cores
	$(BIN)/python -m tests.model $(if $(RUNS),--runs $(RUNS)) $(if $(SECONDS),--seconds $(SECONDS)) $(if $(SEED),--seed $(SEED))

model-search: $(STAMP) ## Search SECONDS=600 for plans of the model that take decisions which no other takes, and keep them in tests/model/kept.txt
	$(BIN)/python -m tests.model.guided --seconds $(or $(SECONDS),600) --keep tests/model/kept.txt

model-coverage: $(STAMP) ## Which decisions on the way of a commit RUNS=1000 runs of the model take, and which none takes (REPLACED=1: also by tests, what it replaces)
	$(BIN)/python -m tests.model.decisions --runs $(or $(RUNS),1000) --plans tests/model/kept.txt --lines $(if $(REPLACED),--replaced)

.PHONY: exploration
exploration: $(STAMP) ## Explore every interleaving of the fences and the rebalance in small scopes; takes an hour (SCOPE="small two")
	PYTHONHASHSEED=0 $(BIN)/python -m tests.exploration $(foreach name,$(or $(SCOPE),full),--scope $(name))

bench: $(BENCH_STAMP) ## Measure; tables, JSON and a plot (BENCH=short or full, NAMES="floor client")
	@sh benchmarks/install-peers.sh
	$(BIN)/python -m benchmarks $(NAMES)

# With extras: Debian 12's pip (23.0) else takes the newest `coverage[toml]` for another package than the locked `coverage`.
LOCK_FLAGS := --universal --no-strip-extras --python-version 3.11 --generate-hashes --no-header --quiet
lock: ## Resolve the dependencies again (needs uv); UPGRADE=1 takes newer versions
	uv pip compile pyproject.toml $(LOCK_FLAGS) $(if $(UPGRADE),--upgrade) -o requirements/runtime.lock
	uv pip compile pyproject.toml --group dev --extra console $(LOCK_FLAGS) -c requirements/runtime.lock -o requirements/dev.lock
	uv pip compile --group build $(LOCK_FLAGS) -c requirements/dev.lock -o requirements/build.lock
	uv pip compile --group release $(LOCK_FLAGS) -c requirements/dev.lock -o requirements/release.lock
	uv pip compile pyproject.toml --group dev --group pipeline --extra connect --extra console --extra delta --extra hdfs --extra journal --extra openlineage --extra otel --extra spark $(LOCK_FLAGS) -c requirements/dev.lock -o requirements/spark.lock
	uv pip compile pyproject.toml --extra console $(LOCK_FLAGS) -c requirements/dev.lock -o requirements/console.lock
	uv pip compile pyproject.toml --extra journal $(LOCK_FLAGS) -c requirements/spark.lock -o requirements/journal.lock
	uv pip compile pyproject.toml --extra otel $(LOCK_FLAGS) -c requirements/spark.lock -o requirements/otel.lock
	uv pip compile pyproject.toml --group dev --group pipeline --group bench --extra connect --extra console --extra delta --extra hdfs --extra journal --extra openlineage --extra otel --extra spark $(LOCK_FLAGS) -c requirements/spark.lock -o requirements/bench.lock
	uv pip compile pyproject.toml --group docs $(LOCK_FLAGS) -c requirements/runtime.lock -o requirements/docs.lock

DOCS := $(VENV)/docs
DOCS_STAMP := $(DOCS)/.installed
$(DOCS_STAMP): requirements/docs.lock
	$(PYTHON) -m venv $(DOCS)
	$(DOCS)/bin/pip install $(PIP_FLAGS) --require-hashes -r requirements/docs.lock
	@touch $(DOCS_STAMP)

.PHONY: docs
docs: $(DOCS_STAMP) ## Build the documentation as a site in build/docs; warnings and broken links are errors
	$(DOCS)/bin/python -m sphinx -W --keep-going -n -q -E -c docs -b html -d build/doctrees . build/docs
	@echo "open build/docs/index.html"

clean: ## Remove what the targets above made
	rm -rf $(VENV) data build dist docs/rpc.md .pytest_cache .mypy_cache .ruff_cache .coverage
