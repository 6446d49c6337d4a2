# The checks of `make test` (length=short) and `make test-long` (length=long), in order; read by run.sh.

check "build, g++, bf16" gnu PRECISION=bf16 all unit_test test_gpt build/cpu-bf16/bench
check "build, g++, fp32" gnu PRECISION=fp32 all unit_test test_gpt
check "unit tests" build/cpu/unit_test
check "unit tests of the model, bf16" build/cpu-bf16/unit_test
check "unit tests of the model, fp32" build/cpu-fp32/unit_test
check "whole model, bf16" build/cpu-bf16/test_gpt
check "whole model, fp32" build/cpu-fp32/test_gpt
if [ "$length" = long ]; then
    check "every parser, fuzzed under sanitizers" make --no-print-directory -j"$jobs" fuzz FUZZ_SECONDS=20
    check "a rank lost at 20 places" dev/test/lost_rank_test.sh long
    check "124M against double precision, bf16" build/cpu-bf16/test_gpt --no-skip -tc='gpt: a 124M*'
    check "124M against double precision, fp32" build/cpu-fp32/test_gpt --no-skip -tc='gpt: a 124M*'
    check "certificate of all layouts, bf16" build/cpu-bf16/unit_test --no-skip -tc='certificate: all*'
    check "certificate of all layouts, fp32" build/cpu-fp32/unit_test --no-skip -tc='certificate: all*'
    check "every benchmark once" dev/test/bench_test.sh all
    check "all layouts cut and resumed, bf16" build/cpu-bf16/unit_test --no-skip -tc='layouts: the same*'
    check "all layouts cut and resumed, fp32" build/cpu-fp32/unit_test --no-skip -tc='layouts: the same*'
    check "certificate, every kind of traffic damaged, bf16" build/cpu-bf16/unit_test --no-skip -tc='certificate: every kind*'
    check "certificate, every reduction damaged, fp32" build/cpu-fp32/unit_test --no-skip -tc='certificate: each single*'
    check "build, address and undefined-behaviour sanitizers" sanitized unit_test \
        build/cpu-bf16-sanitized/test_gpt build/cpu-bf16-sanitized/train_gpt build/cpu-sanitized/tokenize
    check "unit tests, sanitizers" build/cpu-sanitized/unit_test
    check "unit tests of the model, sanitizers" build/cpu-bf16-sanitized/unit_test
    check "whole model, sanitizers" build/cpu-bf16-sanitized/test_gpt
    on_sanitized="env VARIANT=-sanitized PRECISIONS=bf16 TOKENIZE=build/cpu-sanitized/tokenize TRAIN_GPT=build/cpu-bf16-sanitized/train_gpt"
    for script in cli train resume; do
        check "${script}_test.sh, sanitizers" $on_sanitized dev/test/${script}_test.sh
    done
fi
check "build, clang++, stand-in" clang build/cpu-clang/stand_in_test
check "tests of the stand-in, clang++" build/cpu-clang/stand_in_test
if command -v nvcc >/dev/null || [ -x /usr/local/cuda/bin/nvcc ]; then
    check "CUDA build: sm_80, sm_90a, sm_100a and PTX" make --no-print-directory -j"$jobs" cuda-compile
else
    echo "SKIPPED CUDA build: no nvcc on this machine"
    skipped=$((skipped + 1))
fi
if [ "$length" = long ]; then check "builds without and with MPI" dev/test/mpi_builds.sh; fi
# after the builds, because some look at what those left
for script in dev/test/*_test.sh; do
    [ -e "$script" ] && check "$(basename "$script")" "$script"
done
