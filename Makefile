# train_gpt: build, run, test. `make help` lists the targets.
#
#   make                        build for the device at hand: build/<device>-<precision>/, linked as ./train_gpt
#   make DEVICE=cpu             build for a machine without a GPU
#   make PRECISION=fp32         true fp32 instead of bf16 with fp32 masters
#   make USE_MPI=0              without MPI though it is there (--init tcp and fs need none)
#
# Sources are found by name, never listed. A file X_test.cu|cpp is a test of X. What includes llmc/model/precision.h, by
# whatever way, is compiled for each PRECISION; all else once per device.

SHELL := /bin/bash
.SHELLFLAGS := -o pipefail -c
.DEFAULT_GOAL := all
.DELETE_ON_ERROR:
MAKEFLAGS += --no-builtin-rules

# ---------------------------------------------------------------------------------------------------------------------
# What to build

GPU_ANSWERS := $(shell command -v nvidia-smi >/dev/null 2>&1 && nvidia-smi -L 2>/dev/null | grep -q '^GPU' && echo yes)
DEVICE ?= $(if $(GPU_ANSWERS),cuda,cpu)
PRECISION ?= bf16
VARIANT ?=#             suffix of the build folders, for builds with other compilers or flags side by side
EXTRA_FLAGS ?=#         added to every compile and link, e.g. -fsanitize=address, or -g

ifeq ($(filter $(DEVICE),cuda cpu),)
$(error DEVICE=$(DEVICE): expected cuda or cpu)
endif
ifeq ($(filter $(PRECISION),bf16 fp32),)
$(error PRECISION=$(PRECISION): expected bf16 or fp32)
endif

COMMON := build/$(DEVICE)$(VARIANT)
BUILD := build/$(DEVICE)-$(PRECISION)$(VARIANT)

# ---------------------------------------------------------------------------------------------------------------------
# Compilers, headers and libraries

CXX := $(if $(filter default,$(origin CXX)),g++,$(CXX))
CPU_ARCH ?= native#     of the CPU build; the least is x86-64-v3 (AVX2, FMA, BMI2)
# WARNINGS= : none, for a compiler that warns of more than the known ones do
WARNINGS := -Wall -Wextra -Wshadow -Werror
INCLUDES := -I. $(if $(wildcard third_party/include),-isystem third_party/include)
DEFINES := $(if $(filter bf16,$(PRECISION)),-DPRECISION_BF16,-DPRECISION_FP32)
OPTIMIZE = $(if $(filter $(HOT),$<),-O3,-Og)
# Where time goes: kernels and what runs them on a CPU, tokenizing, hashes. The rest waits for people, disks and peers; it
# compiles twice as fast with less. Tests have less too: they are compiled more often than they run.
HOT := %.cu llmc/kernels/%.cpp dev/bench/% \
    $(addprefix llmc/cuda_on_cpu/,blas/% checks/% exec/% nccl/reduce.cpp) $(addprefix llmc/base/,json.cpp utf8.cpp \
    clock/replay.cpp) llmc/data/corpus/corpus.cpp llmc/io/hash.cpp llmc/mesh/mesh.cpp llmc/parallel/schedule.cpp \
    llmc/parallel/zero_formulas.cpp llmc/plan/closed_form.cpp $(wildcard llmc/tokenizer/*.cpp llmc/tokenizer/*/*.cpp)
HOST_FLAGS = -std=c++20 $(OPTIMIZE) -pthread $(WARNINGS) $(EXTRA_FLAGS)
CPU_FLAGS = $(HOST_FLAGS) -march=$(CPU_ARCH) -fno-math-errno -fno-trapping-math -fno-strict-aliasing

include dev/tools/cuda.mk

VECTOR_LOOPS := $(if $(filter g++%,$(notdir $(CXX))),--param=max-completely-peel-times=7)
ifeq ($(DEVICE),cpu)
# Kernels are host code here: the stand-in headers take the place of CUDA's. `#pragma unroll` means nothing to g++, and
# clang++ takes it for an order. g++ makes vectors of loops over a thread's eight elements only if it does not unroll them.
COMPILE_CU = $(CXX) $(USE_PRECOMPILED) -x c++ $(CPU_FLAGS) $(VECTOR_LOOPS) -Wno-unknown-pragmas -Wno-pass-failed -Illmc/cuda_on_cpu/include $(INCLUDES) -MMD -MP
COMPILE_CPP = $(CXX) $(USE_PRECOMPILED) $(CPU_FLAGS) $(OPTIONAL_FLAGS) -Illmc/cuda_on_cpu/include $(INCLUDES) -MMD -MP
LINK = $(CXX) -pthread -Wl,--as-needed,-u,require_processor $(EXTRA_FLAGS)
LIBRARIES := -ldnnl -lgomp#   gomp: to tell oneDNN how many threads to use
LIB_DIRS := base io report cuda_on_cpu kernels mesh process tokenizer data
EXCLUDE := %_cudnn.cpp %_cudnn_test.cpp
else
COMPILE_CU = $(PTXAS_NOTES) $(NVCC) -x cu $(NVCC_FLAGS) $(CUDA_GENCODE) $(INCLUDES) $(CUDA_INCLUDES) -MMD -MP
COMPILE_CPP = $(CXX) $(USE_PRECOMPILED) $(HOST_FLAGS) $(OPTIONAL_FLAGS) $(INCLUDES) $(CUDA_INCLUDES) -MMD -MP
LINK = $(CXX) -pthread -Wl,--as-needed,-u,require_processor $(EXTRA_FLAGS)
LIBRARIES = $(CUDA_LIBRARIES)
LIB_DIRS := base io report kernels mesh process tokenizer data
EXCLUDE := %_onednn.cpp %_host_test.cpp %_host_test.cu#   _host_test: of other folders, with the stand-in's own headers
endif

ifneq ($(filter-out help clean,$(or $(MAKECMDGOALS),all)),)
include dev/tools/optional.mk
endif

# g++ parses the standard library once for each level of optimization, not once for each file (0.7 of the 2 s that a file
# takes). Other compilers do without, so a header that a file forgets to name is found there. PRECOMPILE=: never.
export CCACHE_SLOPPINESS ?= pch_defines,time_macros#   without, ccache passes by what uses it
PRECOMPILE ?= $(if $(filter g++%,$(notdir $(CXX))),yes)
precompiled = $(if $(filter yes,$(PRECOMPILE)),$(patsubst %,$(COMMON)/precompiled%/standard.h.gch,$(filter-out -O2,$(1))))
PRECOMPILED := $(call precompiled,$(if $(filter command,$(origin OPTIMIZE)),$(OPTIMIZE),-O3 -Og))
USE_PRECOMPILED = $(patsubst %.gch,-include %,$(call precompiled,$(OPTIMIZE)))

# ---------------------------------------------------------------------------------------------------------------------
# Sources to objects

# of folders and of the rooms in them
find_sources = $(filter-out $(EXCLUDE),$(foreach d,$(1),$(wildcard $(foreach t,cpp cu,$(foreach depth,* */* */*/*,llmc/$(d)/$(depth).$(t))))))
TEST_FILES := %_test.cpp %_test.cu %_testing.cpp#   X_testing: what several tests share
common_object = $(patsubst %,$(COMMON)/obj/%.o,$(1))
precision_object = $(patsubst %,$(BUILD)/obj/%.o,$(1))

COMMON_SOURCES := $(call find_sources,$(LIB_DIRS))
MODEL_DIRS := model parallel optim checkpoint run plan cli
MODEL_SOURCES := $(call find_sources,$(MODEL_DIRS))
WITH_PRECISION := $(if $(filter-out help clean,$(or $(MAKECMDGOALS),all)),$(shell dev/tools/includers.sh llmc/model/precision.h))
model_object = $(call precision_object,$(filter $(WITH_PRECISION),$(1))) $(call common_object,$(filter-out $(WITH_PRECISION),$(1)))
COMMON_OBJECTS := $(call common_object,$(filter-out $(TEST_FILES),$(COMMON_SOURCES)))
MODEL_OBJECTS := $(call model_object,$(filter-out $(TEST_FILES),$(MODEL_SOURCES)))
UNIT_MAIN := $(call common_object,dev/test/unit_main.cpp)
COMMON_TESTS := $(call common_object,$(filter $(TEST_FILES),$(COMMON_SOURCES)) \
    $(filter-out $(EXCLUDE),$(wildcard dev/bench/algorithms/*_test.cu)))
MODEL_TESTS := $(call model_object,$(filter $(TEST_FILES),$(MODEL_SOURCES)) \
    $(filter-out $(EXCLUDE),$(wildcard dev/test/*/*_test.cpp dev/test/*/*_test.cu dev/test/*/*_testing.cpp dev/bench/asynchrony/*_test.cu)))
TESTING := $(filter %_testing.cpp.o,$(COMMON_TESTS))
# the stand-in's own tests, with the few headers of kernels that they use: what other compilers are tried on
STAND_IN_TESTS := $(filter $(COMMON)/obj/llmc/cuda_on_cpu/% $(COMMON)/obj/llmc/base/%,$(COMMON_TESTS)) \
    $(filter $(call common_object,$(addprefix llmc/kernels/,launch_test.cu rows/reduce_test.cu ptx/ptx_test.cu loop_threads_host_test.cu)),$(COMMON_TESTS))
BENCH_OBJECTS := $(call precision_object,$(wildcard dev/bench/*.cu dev/bench/*.cpp))
TOOLS := $(patsubst dev/tools/%.cpp,$(COMMON)/%,$(wildcard dev/tools/*.cpp))

$(COMMON)/obj/%.cu.o: %.cu | $(PRECOMPILED) ; @mkdir -p $(@D)
	$(COMPILE_CU) -c $< -o $@
$(COMMON)/obj/%.cpp.o: %.cpp | $(PRECOMPILED) ; @mkdir -p $(@D)
	$(COMPILE_CPP) -c $< -o $@
$(BUILD)/obj/%.cu.o: %.cu | $(PRECOMPILED) ; @mkdir -p $(@D)
	$(COMPILE_CU) $(DEFINES) -c $< -o $@
$(BUILD)/obj/%.cpp.o: %.cpp | $(PRECOMPILED) ; @mkdir -p $(@D)
	$(COMPILE_CPP) $(DEFINES) -c $< -o $@
$(COMMON)/precompiled%/standard.h.gch: override OPTIMIZE = $*
$(COMMON)/precompiled%/standard.h.gch: llmc/base/standard.h ; @mkdir -p $(@D)
	cp $< $(@:.gch=)
	$(CXX) -x c++-header $(if $(filter cpu,$(DEVICE)),$(CPU_FLAGS),$(HOST_FLAGS)) -c $(@:.gch=) -o $@
.PRECIOUS: $(COMMON)/precompiled%/standard.h.gch
-include $(shell find $(COMMON)/obj $(BUILD)/obj -name '*.d' 2>/dev/null)

$(foreach f,attention_mma attention_mma_documents,$(call common_object,llmc/kernels/attention/sm80/$(f).cu)): OPTIMIZE = -O2#   as fast as -O3 there, in half the time to compile
$(call common_object,llmc/kernels/attention/library/attention_cudnn.cpp): OPTIMIZE = -Og#   calls of a large library: a minute less
$(COMMON_TESTS) $(MODEL_TESTS) $(call precision_object,test_gpt.cu): OPTIMIZE = -O1
$(COMMON_TESTS) $(MODEL_TESTS) $(call precision_object,test_gpt.cu): | $(call precompiled,-O1)
$(COMMON_TESTS) $(MODEL_TESTS) $(call precision_object,test_gpt.cu): NO_SPILLS =
$(foreach f,attention/sm90/attention_hopper matmul/matmul_hopper,$(call common_object,llmc/kernels/$(f).cu)): PTXAS_NOTES = dev/tools/ptxas_notes.sh $(PTXAS)
$(COMMON_TESTS) $(MODEL_TESTS) $(BENCH_OBJECTS) $(call precision_object,test_gpt.cu): override CUDA_ARCHS := $(or $(TEST_CUDA_ARCHS),$(CUDA_ARCHS))

# The version is the commit: recompiled, and linked anew, when there is another one.
COMMIT := $(or $(shell git rev-parse --short HEAD 2>/dev/null),of an unknown commit)
VERSION_STAMP := build/.version-$(subst $(eval) ,-,$(COMMIT))
$(VERSION_STAMP): ; @mkdir -p build && rm -f build/.version-* && touch $@
$(call precision_object,llmc/cli/version.cpp): $(VERSION_STAMP)
$(call precision_object,llmc/cli/version.cpp): DEFINES += -DPROGRAM_VERSION='"$(COMMIT), $(DEVICE)"'

$(call common_object,$(filter $(OPTIONAL_SOURCES),$(COMMON_SOURCES))): $(OPTIONAL_STAMP)

# ---------------------------------------------------------------------------------------------------------------------
# Programs: objects of their own, and of the libraries what they use

COMMON_LIBRARY := $(COMMON)/libllmc.a
MODEL_LIBRARY := $(BUILD)/libgpt.a
$(COMMON_LIBRARY): $(COMMON_OBJECTS) ; @rm -f $@
	ar rcs $@ $^
$(MODEL_LIBRARY): $(MODEL_OBJECTS) ; @rm -f $@
	ar rcs $@ $^

$(BUILD)/train_gpt: $(call precision_object,train_gpt.cu) $(MODEL_LIBRARY) $(COMMON_LIBRARY)
	$(LINK) $^ -o $@ $(LIBRARIES)
$(BUILD)/bench: $(BENCH_OBJECTS) $(MODEL_LIBRARY) $(COMMON_LIBRARY)
	$(LINK) $^ -o $@ $(LIBRARIES)
$(BUILD)/test_gpt: $(call precision_object,test_gpt.cu) $(UNIT_MAIN) $(TESTING) $(MODEL_LIBRARY) $(COMMON_LIBRARY)
	$(LINK) $^ -o $@ $(LIBRARIES)
$(BUILD)/unit_test: $(MODEL_TESTS) $(UNIT_MAIN) $(TESTING) $(MODEL_LIBRARY) $(COMMON_LIBRARY)
	$(LINK) $^ -o $@ $(LIBRARIES)
$(COMMON)/unit_test: $(COMMON_TESTS) $(UNIT_MAIN) $(COMMON_LIBRARY)
	$(LINK) $^ -o $@ $(LIBRARIES)
$(COMMON)/stand_in_test: $(STAND_IN_TESTS) $(UNIT_MAIN) $(TESTING) $(COMMON_LIBRARY)
	$(LINK) $^ -o $@ $(LIBRARIES)
$(TOOLS): $(COMMON)/%: $(COMMON)/obj/dev/tools/%.cpp.o $(COMMON_LIBRARY)
	$(LINK) $^ -o $@ $(LIBRARIES)

.PHONY: all train_gpt tools unit_test test_gpt
all: tools train_gpt ## build train_gpt and its tools for the device at hand
train_gpt: $(BUILD)/train_gpt
	@ln -sfn $(BUILD)/train_gpt train_gpt
tools: $(TOOLS)
	@for tool in $(notdir $(TOOLS)); do ln -sfn $(COMMON)/$$tool $$tool; done
unit_test: $(COMMON)/unit_test $(BUILD)/unit_test ## build the unit tests
test_gpt: $(BUILD)/test_gpt
	@ln -sfn $(BUILD)/test_gpt test_gpt

# Missing packages are named before anything is compiled; `make deps` installs them.
$(COMMON_OBJECTS) $(MODEL_OBJECTS) $(BENCH_OBJECTS): | build/.deps-$(DEVICE)
$(UNIT_MAIN) $(COMMON_TESTS) $(MODEL_TESTS) $(call precision_object,test_gpt.cu): | build/.deps-$(DEVICE)-unit
build/.deps-$(DEVICE): dev/tools/deps.sh
	@dev/tools/deps.sh --check $(DEVICE) && mkdir -p build && touch $@
	@$(if $(filter MPI,$(USED)),,echo "built without MPI: --init mpi will be refused (optional: $(MPI_PACKAGE) openmpi-bin)")
	@$(if $(filter CUDNN,$(USED))$(filter cpu,$(DEVICE)),,echo "built without cuDNN: no library attention (optional: $(CUDNN_PACKAGE))")
build/.deps-$(DEVICE)-unit: dev/tools/deps.sh | build/.deps-$(DEVICE)
	@dev/tools/deps.sh --check $(DEVICE) unit && touch $@
build/.deps-cpu: export CPU_ARCH := $(CPU_ARCH)
build/.deps-cuda build/.deps-cuda-unit deps quickstart: export NVCC := $(NVCC)
build/.deps-cuda build/.deps-cuda-unit deps quickstart: export CUDA_FLAGS = $(if $(filter cuda,$(DEVICE)),$(CUDA_INCLUDES) $(CUDA_LIBRARIES))
.PHONY: deps
deps: ## install the packages that building and testing need (root or sudo)
	@dev/tools/deps.sh $(DEVICE) test

BENCH ?= *#            which operations: a shell pattern, as in make bench BENCH='layernorm*'
BENCH_FLAGS ?=#        --long for larger shapes and more samples, --list to see what there is
RANKS ?=#              of BENCH=collectives: processes, as in make bench BENCH=collectives RANKS=4 BENCH_FLAGS='--tp 2'
BENCH_FILES = build/bench/$(DEVICE)-$(PRECISION)$(addprefix -,$(filter collectives asynchrony,$(BENCH)))
.PHONY: bench
bench: $(BUILD)/bench ## time every kernel, matmul, attention and the step beside the machine's own speed
	@mkdir -p build/bench
	$(if $(RANKS),scripts/launch.sh -n $(RANKS)) $(BUILD)/bench --filter '$(BENCH)' \
	    --json $(BENCH_FILES).json \
	    $(if $(filter collectives asynchrony,$(BENCH)),--picture $(BENCH_FILES).svg) \
	    $(if $(filter collectives,$(BENCH)),--write-machine $(BENCH_FILES)-machine.json) $(BENCH_FLAGS)

PROFILE ?=#          options of train_gpt, as in make profile PROFILE='--model gpt2:1558M --micro-batch 4'
.PHONY: profile
profile: $(BUILD)/train_gpt $(COMMON)/tokenize ## three steps under Nsight Systems, on a GPU: a timeline and tables in build/profile
	@dev/tools/profile.sh $^ $(PROFILE)

.PHONY: quickstart
quickstart: ## train a small model on this machine's C and C++ headers: install, build, train, picture, sample
	@dev/tools/quickstart.sh $(DEVICE) $(PRECISION)

# ---------------------------------------------------------------------------------------------------------------------
# Checks

.PHONY: fuzz test test-long check-units check-clang cuda-compile gpu-check
test: ## every check that fits in minutes; ends with "N passed, N failed"
	@dev/test/run.sh short
PART ?=#             of test-long and gpu-check: one or more parts, as in make test-long PART=certificate (PART=help lists them), or of
#                    those that dev/test/gpu_check.sh names
test-long: ## every claim of the project in full, in parts of at most half an hour (hours in all)
	@dev/test/run.sh long $(PART)
.PHONY: layouts
layouts: ## certificate of a covering set of layouts of all axes, fp32 and bf16: a table of how far each is from one process
	@for precision in fp32 bf16; do \
	    $(MAKE) --no-print-directory DEVICE=cpu PRECISION=$$precision build/cpu-$$precision/unit_test && \
	    build/cpu-$$precision/unit_test --no-skip -tc='layouts: every pair*' || exit 1; \
	done
FUZZ_SECONDS ?= 60#     for each parser
fuzz: ## fuzz every parser with clang++'s libFuzzer and sanitizers, FUZZ_SECONDS each
	@$(MAKE) --no-print-directory DEVICE=cpu CXX=clang++ VARIANT=-fuzz OPTIMIZE=-O1 LIB_DIRS="base io tokenizer data" \
	    EXTRA_FLAGS="-g1 -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=undefined" build/cpu-fuzz/parsers_fuzz
	@dev/test/fuzz/run.sh $(FUZZ_SECONDS)
$(COMMON)/parsers_fuzz: $(call common_object,dev/test/fuzz/parsers_fuzz.cpp) $(COMMON_LIBRARY)
	$(LINK) -fsanitize=fuzzer $^ -o $@ $(filter $(PCRE2_LIBRARIES) $(ICU_LIBRARIES) $(ZLIB_LIBRARIES) $(ZSTD_LIBRARIES),$(LIBRARIES))
COMPILE_ARCHS ?= 80 90a 100a#           of cuda-compile: architectures; its tests are compiled for sm_90a
COMPILE_PRECISIONS ?= bf16 fp32
COMPILE_TESTS ?= yes
COMPILE_BENCH ?= yes
cuda-compile: ## compile and link the CUDA build for every architecture, its tests for one, on any machine
	@$(if $(filter fp32,$(COMPILE_PRECISIONS)),$(MAKE) --no-print-directory DEVICE=cuda PRECISION=fp32 VARIANT=-all \
	    CUDA_ARCHS="$(COMPILE_ARCHS)" build/cuda-fp32-all/train_gpt)
	@$(if $(filter bf16,$(COMPILE_PRECISIONS)),$(MAKE) --no-print-directory DEVICE=cuda PRECISION=bf16 VARIANT=-all \
	    CUDA_ARCHS="$(COMPILE_ARCHS)" TEST_CUDA_ARCHS=90a \
	    build/cuda-bf16-all/train_gpt \
	    $(if $(COMPILE_TESTS),build/cuda-all/unit_test build/cuda-bf16-all/unit_test build/cuda-bf16-all/test_gpt) \
	    $(if $(COMPILE_BENCH),build/cuda-bf16-all/bench))
	@$(MAKE) --no-print-directory DEVICE=cuda library-versions
.PHONY: library-versions
library-versions:
	@CXX='$(CXX)' CUDA_INCLUDE='$(CUDA_INCLUDE)' CUDNN_FLAGS='$(CUDNN_FLAGS)' dev/tools/versions.sh
gpu-check: ## on a GPU: build, test, measure, check; PART=build|kernels|model|speed|sanitize|ranks alone; OUT=folder for logs
	@dev/test/gpu_check.sh $(PART)

.PHONY: clean help
clean: ## remove everything that was built
	rm -rf build train_gpt test_gpt $(notdir $(TOOLS))
help: ## list the targets
	@grep -hE '^[a-z_-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z_-]+):.*## /\1\t/' | expand -t 18
