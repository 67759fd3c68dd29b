#!/bin/sh
# What a user sees on a GPU machine: sh tests/gpu/look.sh PYTHON. Findings and gaps (11, 4) are no failure of ours.
bad=0
unset NCCL_DOCTOR_RECORD # ours, and no variable of a job's
look() {
  echo "\$ nccl-doctor $*"
  timeout -k 5 80 "$python" -m nccl_doctor "$@"
  status=$?
  echo "exit status $status"
  case $status in 0 | 4 | 11) ;; *) bad=1 ;; esac
}
python=${1:?usage: look.sh PYTHON}
look check
look topo
look env recommend
look bench allreduce --sizes 1M:64M:x8 --gpus-per-host 1 --backend nccl --allow-busy
look bench gemm --time-budget 3 --allow-busy
exit "$bad"
