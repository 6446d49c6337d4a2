# The checks of `make test` (short_checks) and the table of those of `make test-long`, in order; read by run.sh.

# Processor time of make test by group, as multiples of 10^9 multiply-adds (run.sh): what it took where it was measured, and
# a quarter more.
declare -A budgets=([build]=890 [unit]=130 [model]=600 [scripts]=350 [cuda]=880)

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

# Some cases `make test` runs in one precision. In fp32, whose bounds are narrower: the certificate, compression, local steps,
# and what optimizers and evaluations compute; the same kernels, communicators and schedules serve both. In bf16, which has
# master weights too: three cases of reshard, going back from an outlier, the bytes of checkpoints, late gradients, the
# covering set's sample, in which every pair of settings stands, and what is bf16's own. The shape of a GPU's blocks
# (llmc/cuda_on_cpu/checks/checks.h) takes half of that time and is left to the kernels' tests and the whole model; PART=fp32
# and PART=bf16 run everything with all checks.
fp32_alone='certificate: *,layouts of several axes:*,optimizer: Muon and*,optimizer: Muon of*,optimizer: every layout*'
fp32_alone+=',options: sizes*,covering set: it is*,plan: the memory*,layouts: local*,layouts: one local*,layouts: between*,layouts: with compressed*,compress*'
fp32_alone+=',layouts: other optimizers*,layouts: Muon and*,layouts: every evaluation*,layouts: documents*'
bf16_alone='reshard: blocks*,reshard: where one*,reshard: every value*'
bf16_alone+=',layouts: back from*,layouts: the checkpoint*,layouts: after a move*,layouts: with gradients that*'
bf16_own='certificate: *bf16*,certificate: bytes*,certificate: memory*,certificate: what*,certificate: a sample of ranks*'
model_unit_tests() { TRAIN_GPT_CHECKS=memory,poison,races,order "build/cpu-$1/unit_test" -d "${@:2}"; }   # PRECISION CASES...
model_in_bf16() { model_unit_tests bf16 -tce="$fp32_alone" && model_unit_tests bf16 -tc="$bf16_own"; }

short_checks() {
    builds_for_cpu
    group=model
    beside "unit tests of the model, fp32" model_unit_tests fp32 -tce="$bf16_alone"
    beside "unit tests of the model, bf16" model_in_bf16
    beside "whole model, bf16" build/cpu-bf16/test_gpt
    beside "whole model, fp32" build/cpu-fp32/test_gpt
    group=unit
    beside "unit tests" build/cpu/unit_test -d
    reports
    # the program's own files; its tests and benchmarks are compiled by PART=cuda
    builds_for_cuda "CUDA build, bf16, sm_90a" COMPILE_ARCHS=90a COMPILE_PRECISIONS=bf16 COMPILE_TESTS= COMPILE_BENCH=
    # after the builds, because some look at what those left
    group=scripts
    check_scripts dev/test/*_test.sh
}

# The parts of make test-long, in order: part, what the check needs, the check. @P stands for bf16 and fp32, a check each.
# Needed are `cpu`, the CPU build, which the part makes first, and tools; a check skips itself without a tool that has a ?.
# `make test-long PART=help` lists them.
row short       ""              short_checks

row model       cpu             check "124M against double precision, @P" build/cpu-@P/test_gpt --no-skip -tc='gpt: a 124M*'
row model       cpu             check "build, benchmarks" gnu PRECISION=bf16 build/cpu-bf16/bench
row model       cpu             check "every benchmark once" dev/test/benchmarks.sh all
row model       cpu             check "collectives of 2 and 4 ranks, timed" dev/test/collectives.sh
row model       "cpu clang++"   check "every parser, fuzzed under sanitizers" make --no-print-directory -j"$jobs" fuzz FUZZ_SECONDS=20

row @P          cpu             check "unit tests of the model, all checks, @P" build/cpu-@P/unit_test
row certificate cpu             check "certificate of all layouts, @P" whole @P 'certificate: all*'
row tensor      cpu             check "certificate of all tensor-parallel layouts, @P" whole @P 'certificate of tp ranks: all*'

row pipeline    cpu             check "certificate of pipelines, @P" whole @P 'certificate: pipelines*'
row pipeline    cpu             check "pipelines of edited lists, fp32" whole fp32 'certificate: 500 edited*'
row pipeline    cpu             check "memory of 500 layouts, fp32" whole fp32 'plan: the memory that is counted*'
row pipeline    cpu             check "layouts that a plan chooses, @P" whole @P 'plan: chosen*,plan: gpt3:1300M*'

row context-@P  cpu             check "certificate of shared sequences, @P" whole @P 'shared sequences: all*'
row context-long cpu            check "attention over long sequences, @P" whole @P 'context parallel: attention over long*'
row context-long cpu            check "masks of documents, their time" build/cpu/unit_test --no-skip -tc='library_attention: what masks*'
row context-long cpu            check "a sequence of 65,536 tokens over eight ranks, fp32" whole fp32 'shared sequences: 65*'

row composition cpu             check "certificate of every pair of settings, @P" whole @P 'layouts: every pair*'
row composition cpu             check "heads that several ranks hold, @P" whole @P 'layouts: heads of keys*'
row composition cpu             check "replicas of compressed gradients, 50 steps, fp32" whole fp32 'compressed gradients: replicas*50 steps'
row composition cpu             check "30 changes of layout, @P" whole @P 'layouts: 30 pairs*'

row layouts     cpu             check "all layouts cut and resumed, @P" whole @P 'layouts: the same*'
row layouts     cpu             check "other optimizers cut and resumed, @P" whole @P 'layouts: other optimizers under*'
row layouts     cpu             check "checkpoints of all meshes, @P" whole @P 'reshard: all meshes*,reshard: from one mesh to another*'

row mutations   cpu             check "certificate, every kind of traffic damaged, bf16" whole bf16 'certificate: every kind*'
row mutations   cpu             check "certificate, every reduction damaged, fp32" whole fp32 'certificate: each single*'

row processes   cpu             check "a rank lost at 20 places" dev/test/lost_rank_test.sh long
row processes   cpu             check "builds without what is optional" dev/test/optional_test.sh long

row reliability cpu             check "crash points of a save, 40 interleavings" whole bf16 'crash points: the same*'
row reliability cpu             check "steps while a checkpoint is written, fp32" whole fp32 'trainer: steps take*,trainer: the same on*'
row reliability cpu             check "read-only disks and cut sockets, named within 5 s" dev/test/cut_off_test.sh long
row reliability cpu             check "1,000 strangers at every port" dev/test/strangers_test.sh 1000

row kills-bf16  cpu             check "300 histories of kills, bf16" dev/test/killed.sh 1 300
row kills-fp32  cpu             check "300 histories of kills, fp32" env TRAIN_GPT=build/cpu-fp32/train_gpt dev/test/killed.sh 301 600
row misuse      "cpu python3?"  check "damaged files, absurd options, strange environments" dev/test/misuse_test.sh long

row clang       clang++         check "build, clang++, stand-in" clang build/cpu-clang/stand_in_test
row clang       clang++         check "tests of the stand-in, clang++" build/cpu-clang/stand_in_test
row clang       clang++         check "every source of the CPU build, clang++, syntax" dev/test/clang_syntax.sh

# other machines' builds: every architecture of a GPU, and the least processor
row cuda        nvcc?           builds_for_cuda "CUDA build: sm_80, sm_90a, sm_100a and PTX"
row cuda        nvcc?           check "spills, every architecture" dev/test/spill_test.sh 80 90a 100a

avx2=(env ONEDNN_MAX_CPU_ISA=AVX2)
row old-cpu     ""              check "build, x86-64-v3, bf16" old_cpu PRECISION=bf16 unit_test build/cpu-bf16-old/test_gpt
row old-cpu     ""              check "build, x86-64-v3, fp32" old_cpu PRECISION=fp32 build/cpu-fp32-old/{unit_test,test_gpt}
row old-cpu     ""              beside "unit tests, x86-64-v3" "${avx2[@]}" build/cpu-old/unit_test
row old-cpu     ""              beside "unit tests of the model, x86-64-v3, @P" "${avx2[@]}" build/cpu-@P-old/unit_test
row old-cpu     ""              beside "whole model, x86-64-v3, @P" "${avx2[@]}" build/cpu-@P-old/test_gpt

row scripts     cpu             check "every training script, made small" dev/test/scripts_test.sh long
row dev-scripts "cpu python3?"  check "every script of dev/ that the pages name" dev/test/dev_scripts.sh
row dev-scripts "cpu chromium?" check "a run's page in a browser" dev/test/report_test.sh long
row signals     cpu             check "runs interrupted at random times" dev/test/signals_test.sh long

row sanitizers  ""              check "build, address and undefined-behaviour sanitizers" sanitized unit_test
row sanitizers  ""              check "unit tests, sanitizers" build/cpu-sanitized/unit_test
row sanitizers  ""              check "22,000 damaged files, sanitizers" build/cpu-sanitized/unit_test --no-skip -tc='corruption: all*'
row sanitizers  ""              check "unit tests of the model, sanitizers" build/cpu-bf16-sanitized/unit_test

on_sanitized=(env VARIANT=-sanitized PRECISIONS=bf16 TOKENIZE=build/cpu-sanitized/tokenize TRAIN_GPT=build/cpu-bf16-sanitized/train_gpt)
row sanitized-programs ""       check "build, address and undefined-behaviour sanitizers" sanitized \
    build/cpu-bf16-sanitized/{test_gpt,train_gpt} build/cpu-sanitized/tokenize
row sanitized-programs ""       check "whole model, sanitizers" build/cpu-bf16-sanitized/test_gpt
for script in cli train resume; do
    row sanitized-programs ""   check "${script}_test.sh, sanitizers" "${on_sanitized[@]}" dev/test/${script}_test.sh
done

# the commands of the README where nothing was installed by hand
row bare-quickstart debootstrap? check "bare machine, make quickstart" dev/test/bare_machine.sh 'make quickstart'
row bare-user   debootstrap?    check "bare machine, a new user" dev/test/bare_machine.sh 'make deps && NEW_USER_STEPS=300 bash dev/test/new_user_test.sh'
row bare-test   debootstrap?    check "bare machine, make deps && make test" dev/test/bare_machine.sh 'make deps && make test'
