#!/bin/sh
# Everything that needs a GPU, in one go of less than ten minutes: tests, recordings, comparisons.
#
#   sh tests/gpu/session.sh OUT [NCCL_TESTS_SOURCE [MPI_HOME]]
#
# OUT gets one file per step and session.tgz with all of it, recordings (cases for explain) in record/; serial numbers, UUIDs,
# addresses and secrets are blacked out before anything is kept. PYTHON (default: python3) is one with a CUDA torch, pytest and
# this project's dependencies. NCCL_TESTS_SOURCE is a checkout of nccl-tests; it is built with nvcc, against the libnccl that
# torch brings along. MPI_HOME (include/mpi.h, lib/libmpi.so, bin/mpiexec) is needed for its two ranks; without it, one rank is
# compared. Nothing stops at a failed step: what failed is told at the end. STEPS="hardware nccl" runs these steps alone, LIMIT
# (seconds, default 570) ends the last one in time.
set -u
cd "$(dirname "$0")/../.." || exit 2
out=${1:?usage: session.sh OUT [NCCL_TESTS_SOURCE [MPI_HOME]]}
source=${2:-}
mpi=${3:-}
python=${PYTHON:-python3}
limit=${LIMIT:-570}
steps=${STEPS:-needs machine hardware look nccl overhead beside-nccl-tests}
mkdir -p "$out/record" || exit 2
out=$(cd "$out" && pwd)
raw=$(mktemp -d) || exit 2
build=$raw/build
trap 'rm -rf "$raw"' EXIT
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1 NCCL_DOCTOR_RECORD="$out/record"
export PYTEST_DISABLE_PLUGIN_AUTOLOAD=1 # whatever else that Python has for its own tests
# A name server that never answers costs each connection to torch's store ten seconds: here one, and only in what is started here.
export RES_OPTIONS="timeout:1 attempts:1"
began=$(date +%s)
failed=""

passed() { echo $(($(date +%s) - began)); }

# A file into OUT, blacked out; one that cannot be is not kept.
keep() {
  "$python" -m tests.gpu.hide <"$raw/$1.txt" >"$raw/$1.hidden" 2>"$raw/hide.txt" ||
    echo "not kept, it could not be blacked out: $(tail -n 1 "$raw/hide.txt")" >"$raw/$1.hidden"
  mv "$raw/$1.hidden" "$out/$1.txt"
}

step() { # name, lines of it to show, seconds at most, command ...
  name=$1 show=$2 most=$3
  shift 3
  case " $steps " in *" $name "*) ;; *) return 0 ;; esac
  left=$((limit - $(passed)))
  if [ "$left" -lt 5 ]; then
    echo "$(passed) s: $name: no time left"
    failed="$failed $name"
    return 0
  fi
  [ "$most" -le "$left" ] || most=$left
  # Interrupted, pytest still tells what failed so far.
  timeout -s INT -k 10 "$most" "$@" >"$raw/$name.txt" 2>&1 </dev/null
  status=$?
  echo "$(passed) s: $name: status $status"
  [ "$status" = 0 ] || failed="$failed $name"
  keep "$name"
  tail -n "$show" "$out/$name.txt" | sed 's/^/    /'
}

build_nccl_tests() { # beside the tests, which are not timed
  nccl=$("$python" -c 'import pathlib, torch; print(next(pathlib.Path(torch.__file__).parents[1].glob("nvidia/nccl*"), ""))')
  arch=$("$python" -c 'import torch; print("%d%d" % torch.cuda.get_device_capability())')
  nvcc=$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)
  [ -x "$nvcc" ] || { echo "no nvcc: neither on PATH nor $nvcc"; return 1; }
  mkdir -p "$build/nccl/lib"
  ln -sfn "$nccl/include" "$build/nccl/include"
  ln -sfn "$nccl/lib/libnccl.so.2" "$build/nccl/lib/libnccl.so"
  cuda=$(dirname "$(dirname "$(readlink -f "$nvcc")")")
  # Only the binaries that are compared: building all takes minutes.
  timeout -k 10 280 make -C "$source/src" -j 8 CUDA_HOME="$cuda" NCCL_HOME="$build/nccl" BUILDDIR="$build" \
    MPI="$([ -n "$mpi" ] && echo 1 || echo 0)" MPI_HOME="$mpi" \
    NVCC_GENCODE="-gencode=arch=compute_$arch,code=sm_$arch" "BIN_FILES_LIST=all_reduce all_gather" build
}

build_pid=""
case " $steps " in *" beside-nccl-tests "*) [ -z "$source" ] || {
  mkdir -p "$build"
  if source=$(cd "$source" && pwd); then
    build_nccl_tests >"$raw/build.txt" 2>&1 &
    build_pid=$!
  fi
} ;; esac

step needs 3 120 "$python" -c 'import importlib.util as u, sys
names = "torch pytest hypothesis pynvml msgspec typer rich yaml paramiko psutil ClusterShell hyperscan jinja2 zstandard".split()
missing = [name for name in names if u.find_spec(name) is None]
import torch
if "typer" not in missing:
    import typer
    if [int(part) for part in typer.__version__.split(".")[:2]] < [0, 28]:
        missing.append("typer 0.28 (%s is here)" % typer.__version__)
print("missing:", ", ".join(missing) or "nothing")
print(sys.version, "torch", torch.__version__, "CUDA", torch.version.cuda, "GPUs", torch.cuda.device_count())
print("NCCL", torch.cuda.is_available() and torch.cuda.nccl.version())
sys.exit(1 if missing or not torch.cuda.is_available() else 0)'
step machine 1 40 sh -c "ip -br addr; ulimit -a; nvidia-smi topo -m; uname -r; nvidia-smi"
step hardware 20 240 "$python" -m pytest -q --tb=short -rfEs -m gpu tests/gpu/test_hardware_here.py -p no:cacheprovider
step look 3 240 sh tests/gpu/look.sh "$python"
step nccl 30 480 "$python" -m pytest -q --tb=short -rfEs -m gpu tests/gpu/test_bench_nccl.py -p no:cacheprovider --durations=10
if [ -n "$build_pid" ]; then
  wait "$build_pid" || failed="$failed build"
  keep build
fi
# Blocks far longer than a turn of one of two ranks on the GPU.
step overhead 4 100 "$python" benchmarks/bench_overhead.py --backend nccl --sizes 64K:16M:x16 --seconds 0.2 --limit 12
if [ -x "$build/all_gather_perf" ] && [ -n "$mpi" ]; then
  export LD_LIBRARY_PATH="$mpi/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
  step beside-nccl-tests 6 220 "$python" benchmarks/bench_beside_nccl_tests.py "$build" \
    --mpiexec "$mpi/bin/mpiexec" --sizes 1M,32M --rounds 2 --iters 20 --warmup 5
elif [ -x "$build/all_gather_perf" ]; then
  step beside-nccl-tests 6 150 "$python" benchmarks/bench_beside_nccl_tests.py "$build" \
    --ranks 1 --collectives allgather --sizes 256M,1G
elif [ -n "$build_pid" ]; then
  echo "no binaries of nccl-tests:"
  tail -n 5 "$out/build.txt" | sed 's/^/    /'
elif [ -n "${2:-}" ] && [ -z "$source" ]; then
  echo "nccl-tests: no folder ${2:-}"
  failed="$failed build"
fi

tar -C "$out" --exclude=session.tgz -czf "$raw/session.tgz" . && mv "$raw/session.tgz" "$out/session.tgz"
echo "$(passed) s in all; $(find "$out/record" -type f | wc -l) recordings; failed:${failed:- nothing}"
[ -z "$failed" ]
