#!/bin/tcsh
setenv NCCL_DEBUG INFO
setenv NCCL_IB_DISABLE 1
setenv NCCL_SOCKET_IFNAME "^docker0"
