#!/bin/sh
# Everything that needs a GPU, in one go of less than ten minutes: tests, recordings, comparisons.
#
#   sh tests/gpu/session.sh OUT [NCCL_TESTS_SOURCE [MPI_HOME]]
#
# OUT gets one file per step and session.tgz with all of it, recordings (cases for explain) in record/. PYTHON (default: python3) is
# one with a CUDA torch, pytest and this project's dependencies. NCCL_TESTS_SOURCE is a checkout of nccl-tests; it is built with
# nvcc, against the libnccl that torch brings along. MPI_HOME (include/mpi.h, lib/libmpi.so, bin/mpiexec) is needed for its two
# ranks; without it, one rank is compared. Nothing stops at a failed step: what failed is told at the end.
set -u
cd "$(dirname "$0")/../.." || exit 2
out=${1:?usage: session.sh OUT [NCCL_TESTS_SOURCE [MPI_HOME]]}
source=${2:-}
mpi=${3:-}
python=${PYTHON:-python3}
mkdir -p "$out/record" || exit 2
out=$(cd "$out" && pwd)
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1 NCCL_DOCTOR_RECORD="$out/record"
began=$(date +%s)
failed=""

step() { # name, seconds at most, command ...
  name=$1 limit=$2
  shift 2
  timeout -k 10 "$limit" "$@" >"$out/$name.txt" 2>&1
  status=$?
  echo "$(($(date +%s) - began)) s: $name: status $status"
  [ "$status" = 0 ] || failed="$failed $name"
  tail -n "${show:-3}" "$out/$name.txt" | sed 's/^/    /'
}

build_nccl_tests() { # beside the tests, which are not timed
  nccl=$("$python" -c 'import pathlib, torch; print(next(pathlib.Path(torch.__file__).parents[1].glob("nvidia/nccl*"), ""))')
  arch=$("$python" -c 'import torch; print("%d%d" % torch.cuda.get_device_capability())')
  mkdir -p "$build/nccl/lib"
  ln -sfn "$nccl/include" "$build/nccl/include"
  ln -sfn "$nccl/lib/libnccl.so.2" "$build/nccl/lib/libnccl.so"
  nvcc=$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)
  cuda=$(dirname "$(dirname "$(readlink -f "$nvcc")")")
  # Only the binaries that are compared: building all takes minutes.
  timeout -k 10 280 make -C "$source/src" -j 8 CUDA_HOME="$cuda" NCCL_HOME="$build/nccl" BUILDDIR="$build" \
    MPI="$([ -n "$mpi" ] && echo 1 || echo 0)" MPI_HOME="$mpi" \
    NVCC_GENCODE="-gencode=arch=compute_$arch,code=sm_$arch" "BIN_FILES_LIST=all_reduce all_gather" build
}

show=1 step machine 30 sh -c "nvidia-smi; nvidia-smi topo -m; uname -r; ip -br addr; $python -c 'import torch; print(torch.__version__, torch.cuda.nccl.version())'"
if [ -n "$source" ]; then
  source=$(cd "$source" && pwd)
  build=$(mktemp -d)
  export LD_LIBRARY_PATH="${mpi:+$mpi/lib:}${LD_LIBRARY_PATH:-}"
  build_nccl_tests >"$out/build.txt" 2>&1 &
fi
show=30 step tests 330 "$python" -m pytest -q -m gpu tests/gpu -p no:cacheprovider --durations=10
[ -z "$source" ] || wait
show=4 step overhead 60 "$python" benchmarks/bench_overhead.py --backend nccl --sizes 64K:16M:x16 --limit 12
if [ -n "$source" ] && [ -x "$build/all_gather_perf" ]; then
  if [ -n "$mpi" ]; then
    show=6 step beside-nccl-tests 150 "$python" benchmarks/bench_beside_nccl_tests.py "$build" \
      --mpiexec "$mpi/bin/mpiexec" --sizes 1M,32M --rounds 2
  else
    show=6 step beside-nccl-tests 150 "$python" benchmarks/bench_beside_nccl_tests.py "$build" \
      --ranks 1 --collectives allgather --sizes 256M,1G
  fi
elif [ -n "$source" ]; then
  failed="$failed build"
  tail -n 5 "$out/build.txt"
fi

tar -C "$out" -czf "$out.tgz" . && mv "$out.tgz" "$out/session.tgz"
echo "$(($(date +%s) - began)) s in all; $(ls "$out/record" | wc -l) recordings; failed:${failed:- nothing}"
[ -z "$failed" ]
