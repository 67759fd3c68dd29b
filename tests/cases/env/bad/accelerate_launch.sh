# Two cards without NVLink.
NCCL_P2P_DISABLE="1" NCCL_IB_DISABLE="1" accelerate launch --config_file configs/ddp.yaml \
    --num_processes 2 train_lora.py --seed 1

env CUDA_LAUNCH_BLOCKING=1 TORCH_NCCL_BLOCKING_WAIT=1 python -m accelerate.commands.launch debug.py

nohup env NCCL_DEBUG=INFO NCCL_TIMEOUT=7200 accelerate launch eval.py > eval.log 2>&1 &
