#!/usr/bin/env bash
# The native code under the sanitizers, called by several threads of PyTorch and
# of JAX. Takes the sanitizers as arguments; by default `thread` and
# `address,undefined`. The Python is that of the variable PYTHON.
set -euo pipefail
cd "$(dirname "$0")"
python=${PYTHON:-../../.venv/bin/python}
compiler=${CXX:-g++}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
# Kept from one run to the next if the variable is set.
cache=${KERAS_LINREC_CACHE_DIR:-$scratch}

# Less optimisation, because the instrumented code takes minutes to compile.
# GCC cannot compile XLA's headers for the undefined-behaviour sanitizer.
cat >"$scratch/compiler" <<COMPILER
#!/usr/bin/env bash
sanitizer=\$SANITIZER
[[ "\$*" == *jax.cpp* ]] && sanitizer=\${sanitizer%,undefined}
exec $compiler "\${@/#-O3/-O1}" -g1 -fsanitize=\$sanitizer \\
    -fno-sanitize-recover=all
COMPILER
chmod +x "$scratch/compiler"

export CXX=$scratch/compiler JAX_PLATFORMS=cpu TF_CPP_MIN_LOG_LEVEL=3
export OMP_NUM_THREADS=2 KERAS_LINREC_NUM_THREADS=3
# The frameworks are not instrumented: the sanitizer does not see how they
# synchronise their own threads, and reports hundreds of races within XLA. It
# is to watch this library's code, whoever calls it.
export TSAN_OPTIONS=ignore_noninstrumented_modules=1:halt_on_error=1:exitcode=66
# Python and the frameworks keep memory until the process ends.
export ASAN_OPTIONS=detect_leaks=0

[[ $# -gt 0 ]] || set -- thread address,undefined
for SANITIZER in "$@"; do
    export SANITIZER KERAS_LINREC_CACHE_DIR=$cache/$SANITIZER
    KERAS_BACKEND=torch "$python" -m keras_linrec.kernels build core jax
    library=$("$compiler" -print-file-name="lib${SANITIZER:0:1}san.so")
    # Its runtime looks for the functions of C++ exceptions when it starts.
    runtimes="$library $("$compiler" -print-file-name=libstdc++.so.6)"
    run=(env LD_PRELOAD="$runtimes" setarch -R "$python" frameworks_worker.py)
    if "${run[@]}" torch wrong &>"$scratch/log" ||
        ! grep -q "SUMMARY: .*Sanitizer" "$scratch/log"; then
        echo "$SANITIZER does not see a wrong call:"
        cat "$scratch/log"
        exit 1
    fi
    for framework in torch jax; do
        "${run[@]}" $framework calls
        echo "$SANITIZER: $framework is clean"
    done
done
