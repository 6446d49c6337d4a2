#!/usr/bin/env bash
# A program that was built for instructions which this processor lacks says so and ends with 69, not by SIGILL
# (llmc/process/processor.cpp), and make refuses to build for less than x86-64-v3.
source "$(dirname "$0")/common.sh"
source=llmc/process/processor.cpp
build() { "${CXX:-g++}" -std=c++20 -O2 "$@" -Wl,-u,require_processor -x c++ "$source" <(echo 'int main() {}') -o "$work/program"; }
grep -q 'u,require_processor' Makefile
verdict $? "the Makefile links it"
if [ "$(uname -m)" != x86_64 ]; then
    echo "SKIPPED programs for another processor: this one is no x86-64"
else
    build -march=x86-64-v3
    check "a program for x86-64-v3 runs" "$work/program"
    other=fma4   # of AMD's Bulldozer alone
    if grep -qw $other /proc/cpuinfo; then other=avx512vpopcntdq; fi
    build -march=x86-64-v3 -m$other
    expect 69 "built for a processor with $other, which this one lacks" "$work/program"
    expect 69 "for every one that has AVX2, FMA and BMI2: make CPU_ARCH=x86-64-v3" "$work/program"
    nm "$train_gpt" | has ' T require_processor'
    verdict $? "$train_gpt asks for its processor"
    expect 69 "x86-64-v3" env CPU_ARCH=x86-64 dev/tools/deps.sh --check cpu
fi
echo "$passed passed, $failed failed"
[ $failed -eq 0 ]
