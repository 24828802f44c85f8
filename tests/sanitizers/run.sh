#!/usr/bin/env bash
# The core under the address, undefined-behaviour and thread sanitizers. With
# "widest", the thread sanitizer runs on the widest instruction set of this
# machine alone, with the name of a set on that one: the sets differ in their
# arithmetic, and share all threads.
set -euo pipefail
cd "$(dirname "$0")"
source=../../kernels/native/source
compiler=${CXX:-g++}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

declare -A sets=([baseline]="")
extra=()
if [[ $(uname -m) == x86_64 ]]; then
    sets[avx2]="-mavx2 -mfma"
    sets[avx512]="-mavx2 -mfma -mavx512f -mavx512dq -mavx512bw -mavx512vl"
    extra+=(-DKERAS_LINREC_X86)
fi

for sanitizer in address,undefined thread; do
    flags=(-std=c++17 -O1 -g -Wall -Wextra -Werror "${extra[@]}"
        "-fsanitize=$sanitizer" -fno-sanitize-recover=all "-I$source")
    objects=()
    for set in "${!sets[@]}"; do
        # shellcheck disable=SC2086
        "$compiler" "${flags[@]}" ${sets[$set]} -DKERAS_LINREC_SET="$set" \
            -c "$source/base/kernels.cpp" -o "$scratch/$set.o" &
        objects+=("$scratch/$set.o")
    done
    wait
    "$compiler" "${flags[@]}" exercise.cpp \
        "$source"/{convolution,matrix,moves,nonlinear,scan,structured}/*.cpp \
        "$source"/base/{parallel,processors,systems,dispatch,operations}.cpp \
        "$source"/cuda/*.cpp "${objects[@]}" -pthread -ldl \
        -o "$scratch/exercise"
    run=("${!sets[@]}")
    if [[ $sanitizer == thread && ${1:-all} != all ]]; then
        run=("${1/widest/}")
    fi
    for set in "${run[@]}"; do
        # The program forks with threads running, and starts threads afterwards.
        TSAN_OPTIONS=die_after_fork=0 KERAS_LINREC_NUM_THREADS=3 \
            KERAS_LINREC_INSTRUCTION_SET=$set "$scratch/exercise"
        echo "$sanitizer: ${set:-the widest set} is clean"
    done
done

# The blocks of a GPU, which wait for one another, are threads of the stand-in.
for sanitizer in address,undefined thread; do
    flags=(-std=c++17 -O1 -g -Wall -Wextra -Werror "-fsanitize=$sanitizer"
        -fno-sanitize-recover=all "-I$source")
    "$compiler" "${flags[@]}" -shared -fPIC ../support/cuda_stand_in.cpp -pthread \
        -o "$scratch/stand_in.so" &
    "$compiler" "${flags[@]}" exercise_cuda.cpp \
        "$source"/cuda/*.cpp "$source"/base/systems.cpp \
        -pthread -ldl -o "$scratch/exercise_cuda"
    wait
    "$scratch/exercise_cuda" "$scratch/stand_in.so"
    echo "$sanitizer: the CUDA core is clean"
done
