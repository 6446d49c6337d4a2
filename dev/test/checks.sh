# The checks of `make test` (length=short) and the parts of `make test-long` (length=long), in order; read by run.sh.

# Processor time of make test by group, as multiples of 10^9 multiply-adds (run.sh): what it took where it was measured, and
# a quarter more.
declare -A budgets=([build]=830 [unit]=100 [model]=800 [scripts]=450 [cuda]=1080)

builds_for_cpu() {
    group=build
    check "build, g++, bf16" gnu PRECISION=bf16 all unit_test test_gpt
    check "build, g++, fp32" gnu PRECISION=fp32 all unit_test test_gpt
}
has_nvcc() { command -v nvcc >/dev/null || [ -x /usr/local/cuda/bin/nvcc ]; }
builds_for_cuda() {   # NAME [VARIABLE=VALUE]... of cuda-compile
    group=cuda
    if has_nvcc; then
        check "$1" make --no-print-directory -j"$jobs" cuda-compile "${@:2}"
    else
        check "$1" echo "SKIPPED $1: no nvcc on this machine"
    fi
}
whole() { build/cpu-"$1"/unit_test --no-skip -tc="$2"; }   # PRECISION CASES: those that make test leaves out

# The certificate, `make test` runs in fp32, whose bounds are narrower: the same kernels, communicators and schedules serve
# both. In bf16 it runs the covering set's sample, in which every pair of settings stands, and what is bf16's own; PART=bf16
# runs the rest.
fp32_alone='certificate: *,layouts of several axes:*,optimizer: Muon of experts*,optimizer: every layout*'
fp32_alone+=',covering set: it is*,plan: the memory*'
bf16_own='certificate: *bf16*,certificate: bytes*,certificate: memory*,certificate: what*,certificate: a sample of ranks*'
model_in_bf16() { build/cpu-bf16/unit_test -tce="$fp32_alone" && build/cpu-bf16/unit_test -tc="$bf16_own"; }

short_checks() {
    builds_for_cpu
    group=model
    beside "unit tests of the model, fp32" build/cpu-fp32/unit_test
    beside "unit tests of the model, bf16" model_in_bf16
    beside "whole model, bf16" build/cpu-bf16/test_gpt
    beside "whole model, fp32" build/cpu-fp32/test_gpt
    group=unit
    beside "unit tests" build/cpu/unit_test
    reports
    builds_for_cuda "CUDA build, bf16, sm_90a" COMPILE_ARCHS=90a COMPILE_PRECISIONS=bf16 COMPILE_BENCH=
    # after the builds, because some look at what those left
    group=scripts
    check_scripts dev/test/*_test.sh
}

if [ "$length" = short ] || part short; then short_checks; fi

if part model; then
    builds_for_cpu
    for precision in bf16 fp32; do
        check "124M against double precision, $precision" build/cpu-$precision/test_gpt --no-skip -tc='gpt: a 124M*'
    done
    check "build, benchmarks" gnu PRECISION=bf16 build/cpu-bf16/bench
    check "every benchmark once" dev/test/benchmarks.sh all
    check "every parser, fuzzed under sanitizers" make --no-print-directory -j"$jobs" fuzz FUZZ_SECONDS=20
fi
if part bf16; then
    builds_for_cpu
    check "certificate and layouts of several axes, bf16" build/cpu-bf16/unit_test -tc="$fp32_alone"
fi
if part certificate; then
    builds_for_cpu
    for precision in bf16 fp32; do
        check "certificate of all layouts, $precision" whole $precision 'certificate: all*'
    done
fi
if part tensor; then
    builds_for_cpu
    for precision in bf16 fp32; do
        check "certificate of all tensor-parallel layouts, $precision" whole $precision 'certificate of tp ranks: all*'
    done
fi
if part pipeline; then
    builds_for_cpu
    for precision in bf16 fp32; do
        check "certificate of pipelines, $precision" whole $precision 'certificate: pipelines*'
    done
    check "pipelines of edited lists, fp32" whole fp32 'certificate: 500 edited*'
    check "memory of 500 layouts, fp32" whole fp32 'plan: the memory that is counted*'
    check "layouts that a plan chooses, fp32" whole fp32 'plan: chosen*'
fi
for precision in bf16 fp32; do
    if part context-$precision; then
        builds_for_cpu
        check "certificate of shared sequences, $precision" whole $precision 'shared sequences: all*'
    fi
done
if part context-long; then
    builds_for_cpu
    for precision in bf16 fp32; do
        check "attention over long sequences, $precision" whole $precision 'context parallel: attention over long*'
    done
    check "a sequence of 65,536 tokens over eight ranks, fp32" whole fp32 'shared sequences: 65*'
fi
if part composition; then
    builds_for_cpu
    for precision in bf16 fp32; do
        check "certificate of every pair of settings, $precision" whole $precision 'layouts: every pair*'
        check "heads that several ranks hold, $precision" whole $precision 'layouts: heads of keys*'
        check "30 changes of layout, $precision" whole $precision 'layouts: 30 pairs*'
    done
fi
if part layouts; then
    builds_for_cpu
    for precision in bf16 fp32; do
        check "all layouts cut and resumed, $precision" whole $precision 'layouts: the same*'
        check "other optimizers cut and resumed, $precision" whole $precision 'layouts: other optimizers under*'
        check "checkpoints of all meshes, $precision" whole $precision 'reshard: all meshes*,reshard: from one mesh to another*'
    done
fi
if part mutations; then
    builds_for_cpu
    check "certificate, every kind of traffic damaged, bf16" whole bf16 'certificate: every kind*'
    check "certificate, every reduction damaged, fp32" whole fp32 'certificate: each single*'
fi
if part processes; then
    builds_for_cpu
    check "a rank lost at 20 places" dev/test/lost_rank_test.sh long
    check "builds without what is optional" dev/test/optional_test.sh long
fi
if part reliability; then
    builds_for_cpu
    check "crash points of a save, 40 interleavings" whole bf16 'crash points: the same*'
    check "steps while a checkpoint is written, fp32" whole fp32 'trainer: steps take*,trainer: the same on*'
    check "read-only disks and cut sockets, named within 5 s" dev/test/cut_off_test.sh long
    check "1,000 strangers at every port" dev/test/strangers_test.sh 1000
fi
if part kills-bf16; then
    builds_for_cpu
    check "300 histories of kills, bf16" dev/test/killed.sh 1 300
fi
if part kills-fp32; then
    builds_for_cpu
    check "300 histories of kills, fp32" env TRAIN_GPT=build/cpu-fp32/train_gpt dev/test/killed.sh 301 600
fi
if part misuse; then
    builds_for_cpu
    check "damaged files, absurd options, strange environments" dev/test/misuse_test.sh long
fi
if part clang; then
    check "build, clang++, stand-in" clang build/cpu-clang/stand_in_test
    check "tests of the stand-in, clang++" build/cpu-clang/stand_in_test
    check "every source of the CPU build, clang++, syntax" dev/test/clang_syntax.sh
fi
# other machines' builds: every architecture of a GPU, and the least processor
if part cuda; then
    builds_for_cuda "CUDA build: sm_80, sm_90a, sm_100a and PTX"
    group=others
    check "spills, every architecture" dev/test/spill_test.sh 80 90a 100a
fi
if part old-cpu; then
    check "build, x86-64-v3, bf16" old_cpu PRECISION=bf16 unit_test build/cpu-bf16-old/test_gpt
    check "build, x86-64-v3, fp32" old_cpu PRECISION=fp32 build/cpu-fp32-old/unit_test build/cpu-fp32-old/test_gpt
    export ONEDNN_MAX_CPU_ISA=AVX2
    beside "unit tests, x86-64-v3" build/cpu-old/unit_test
    for precision in bf16 fp32; do
        beside "unit tests of the model, x86-64-v3, $precision" build/cpu-$precision-old/unit_test
        beside "whole model, x86-64-v3, $precision" build/cpu-$precision-old/test_gpt
    done
    reports
    unset ONEDNN_MAX_CPU_ISA
fi
if part scripts; then
    builds_for_cpu
    check "every training script, made small" dev/test/scripts_test.sh long
fi
if part dev-scripts; then
    builds_for_cpu
    check "every script of dev/ that the pages name" dev/test/dev_scripts.sh
    check "a run's page in a browser" dev/test/report_test.sh long
fi
if part signals; then
    builds_for_cpu
    check "runs interrupted at random times" dev/test/signals_test.sh long
fi
if part sanitizers; then
    check "build, address and undefined-behaviour sanitizers" sanitized unit_test
    check "unit tests, sanitizers" build/cpu-sanitized/unit_test
    check "22,000 damaged files, sanitizers" build/cpu-sanitized/unit_test --no-skip -tc='corruption: all*'
    check "unit tests of the model, sanitizers" build/cpu-bf16-sanitized/unit_test
fi
if part sanitized-programs; then
    check "build, address and undefined-behaviour sanitizers" sanitized \
        build/cpu-bf16-sanitized/test_gpt build/cpu-bf16-sanitized/train_gpt build/cpu-sanitized/tokenize
    check "whole model, sanitizers" build/cpu-bf16-sanitized/test_gpt
    on_sanitized="env VARIANT=-sanitized PRECISIONS=bf16 TOKENIZE=build/cpu-sanitized/tokenize TRAIN_GPT=build/cpu-bf16-sanitized/train_gpt"
    for script in cli train resume; do
        check "${script}_test.sh, sanitizers" $on_sanitized dev/test/${script}_test.sh
    done
fi
# the commands of the README where nothing was installed by hand
if part bare-quickstart; then
    check "bare machine, make quickstart" dev/test/bare_machine.sh 'make quickstart'
fi
if part bare-user; then
    check "bare machine, a new user" dev/test/bare_machine.sh 'make deps && NEW_USER_STEPS=300 bash dev/test/new_user_test.sh'
fi
if part bare-test; then
    check "bare machine, make deps && make test" dev/test/bare_machine.sh 'make deps && make test'
fi
