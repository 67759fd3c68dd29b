#!/bin/bash
# Shell variables of this script, none of NCCL's.
NCCL_TESTS_DIR=/opt/nccl-tests
NCCL_LIB_DIR=/usr/local/lib
NCCL_TEST_BIN="$NCCL_TESTS_DIR/build/all_reduce_perf"
NCCL_RESULTS=results.txt
export NCCL_DIR=/usr/local/nccl NCCL_INCLUDE_DIR=/usr/include
make -C "$NCCL_TESTS_DIR" NCCL_HOME=/usr MPI=1
grep "NCCL_IB_DISABLE=1" ~/.bashrc && echo "remove NCCL_IB_DISABLE=1 from your .bashrc" >&2
LD_LIBRARY_PATH=$NCCL_LIB_DIR:$LD_LIBRARY_PATH mpirun -np 8 "$NCCL_TEST_BIN" -g 1 | tee "$NCCL_RESULTS"
