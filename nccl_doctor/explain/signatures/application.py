"""The program's own use of torch.distributed: tensors, groups, DDP, loaders, data."""

from __future__ import annotations

from nccl_doctor.explain import lazy_re as re
from nccl_doctor.explain.model import Role
from nccl_doctor.explain.signatures import says

# A program that tells what it could not import and says that it does not need it, or a script of a shell's or an image's
# start, which goes on all the same
_GOES_WITHOUT = re.compile(
    r"\b(?:[Ii]gnor\w+|[Ss]kip\w*|[Oo]ptional|[Dd]isabl\w+|[Ff]all\w* back)\b|"
    r"entrypoint\.d/|/etc/profile|/\.(?:bash\w*|profile|zshrc)\b"
)

says(
    "fingerprint-mismatch",
    "Detected mismatch between collectives on ranks. Rank {rank:int} is running",
    "Detected mismatch between collectives on ranks",
    "Collectives differ in the following aspects",
    "Mismatched collective detected",
    "collective mismatch around rank",
    "disagreement between rank0 and rank{other:int}",
    cause="app.collective-mismatch",
    strength=0.97,
    title="the ranks issued different collectives",
    why="TORCH_DISTRIBUTED_DEBUG=DETAIL (or an old NCCL) compared the calls of all ranks.",
)
says(
    "size-mismatch",
    "collective mismatch error",
    "posted incorrect receive info",
    "message truncated : receiving {got:int} bytes instead of {wanted:int}",
    "op.preamble.length <= op.nbytes",
    "preamble.nbytes <= op",
    "Received data size doesn't match expected size",
    "ncclInvalidArgument{}count mismatch",
    "Sizes differ across ranks",
    "One rank {}, but another rank ",
    "Inconsistent output shapes, got",
    "symmetric registration check failed on rank",
    "enforce fail at {}op.getOpcode",
    "MPI_ERR_TRUNCATE",
    "Cannot apply desired operation due to shape mismatches",
    "Trying to recv to self without a matching send",
    "Trying to send to self without a matching recv",
    cause="app.collective-mismatch",
    strength=0.86,
    title="the ranks issued collectives of different sizes",
    why="A message's size differs from what the receiver posted: different collectives, shapes or order on the ranks (or different NCCL_ALGO/PROTO).",
)
says(
    "collective-sizes-hint",
    "mismatch in collective sizes",
    "collective mismatch",
    "collectives do not match",
    "size mismatch between ranks",
    "sizes do not match across ranks",
    cause="app.collective-mismatch",
    strength=0.8,
    title="the ranks issued collectives that do not match",
    why="The library itself suspects different collectives or sizes.",
)
says(
    "model-differs",
    "DDP expects same model across all ranks, but Rank {rank:int} has {mine:int} params, while rank {other:int} has inconsistent {theirs:int} params",
    "appears not to match sizes of the same param in process",
    "params in process {} does not match",
    "params[{}] in this process with sizes",
    cause="app.collective-mismatch",
    page="app.collective-mismatch.model",
    strength=0.9,
    title="the model differs between ranks",
    why="DDP compared the parameters of all ranks.",
    where=lambda groups, line: "inconsistent 0 params" not in line and groups.get("mine") != "0",
)
_STARTED = re.compile(r"\[\d[\d, ]*\] started [A-Za-z_]\w*\s*$")
says(
    "desync-never-joined",
    "ranks {ranks} are the lagging ranks that caused this timeout. They never joined any collectives",
    cause="app.straggler-timeout",
    strength=0.74,
    title="ranks {ranks} never joined any collective",
    why="The desync report: these ranks did not call a single collective on this group.",
)
says(
    "desync-lagging",
    "lagging/dead/mismatched ranks that caused the desync are",
    "finished collective #{last:int}, but didn't join collective #{next:int}",
    "joined but didn't finish collective #{next:int}",
    "are the lagging ranks that caused this timeout. They never joined any collectives",
    why="The desync report: who is behind, and at which collective.",
)
says(
    "desync-started",
    "[{ranks}] started {operation}",
    why="The desync report's snapshot: in which operation these ranks stand.",
    pattern=_STARTED,
)
says(
    "ddp-unused",
    "Expected to have finished reduction in the prior iteration",
    "Expected to mark a variable ready only once",
    "has been marked as ready twice",
    "Parameter indices which did not receive grad for rank {rank:int}: {indices}",
    "Parameters which did not receive grad for rank {rank:int}: {names}",
    "Your training graph has changed in this iteration",
    "parameters that were not used in producing the loss",
    "It looks like your LightningModule has parameters that were not used",
    "Some parameters did not receive grad",
    "find_unused_parameters=True` to `torch.nn.parallel.DistributedDataParallel`",
    cause="app.ddp-unused-params",
    strength=0.97,
    title="DDP: some parameters got no gradient, or were used twice",
    why="The reducer waited for gradients that never came (or came twice).",
)
says(
    "ddp-reducer",
    'reducer.cpp":{line:int}, please report a bug',
    cause="app.ddp-unused-params",
    strength=0.68,
    title="DDP's reducer met a backward pass that it had not prepared",
    why="Several forward or backward passes per step, the wrapped module called past DDP's forward, or reentrant activation checkpointing.",
)
says(
    "loader-killed",
    "DataLoader worker (pid {pid:int}) is killed by signal: {signal}",
    "DataLoader worker (pid(s) {pids}) exited unexpectedly",
    "DataLoader worker (pid {pid:int}) exited unexpectedly",
    "DataLoader worker exited unexpectedly",
    "ERROR: Unexpected {what} encountered in worker.",
    "DataLoader timed out after {seconds:int} seconds",
    "Pin memory thread exited unexpectedly",
    cause="app.dataloader-worker",
    strength=0.94,
    title="a DataLoader worker died or hung",
    why="A worker process was killed by a signal, exited or gave no batch in time.",
    # Interrupt, Terminated, Hangup: it was stopped together with its job.
    where=lambda groups, line: re.search("[Bb]us error|Interrupt|Terminated|Hangup", line) is None,
)
says(
    "loader-terminated",
    "DataLoader worker (pid {pid:int}) is killed by signal: Terminated",
    "DataLoader worker (pid {pid:int}) is killed by signal: Hangup",
    cause="launch.killed",
    strength=0.62,
    title="a DataLoader worker was ended by a signal from outside, and the program by that",
    why="Nobody sends SIGTERM or SIGHUP to a worker alone: the job, its session or its launcher was stopped.",
)
says(
    "data-worker-gone",
    "background workers are no longer alive",  # batchgenerators, nnU-Net
    "Background workers died. Look for the error message",
    "One of the subprocesses has abruptly died during map operation",  # datasets
    cause="app.dataloader-worker",
    strength=0.66,  # its own error, if one stands above, says more
    title="a background worker that prepares data has died: no memory or /dev/shm left, or an error of its own",
    why="The library looks whether its worker processes live, and cannot say what they died of.",
)
says(
    "loader-bus-error",
    "DataLoader worker (pid {pid:int}) is killed by signal: Bus error",
    cause="sys.shm",
    strength=0.93,
    title="a DataLoader worker died of a bus error: /dev/shm is too small",
    why="Workers pass batches through /dev/shm; a bus error there means that it is full.",
)
says(
    "bad-tensor",
    "Tensors must be CUDA and dense",
    "Tensors must be contiguous",
    "No backend type associated with device type {device}",
    "Tensor list input to scatter/gather must match",
    "Unsupported data type for NCCL process group",
    "must be equal to world_size times input tensor size",
    "output tensor size must be equal",
    "Invalid scalar type",
    "ensors must be on",
    "must be on the current device",
    "All tensor operands to scatter/gather must have the same",
    "Tensors must have identical",
    "tensors must have the same",
    "tensors must have same size",  # these and the next: nccl2, the backend of PyTorch 2.15
    "tensor must have the same size as the",
    "size must equal comm_size",
    "size must be divisible by comm_size",
    "size must be input_size * comm_size",
    "size must be output_size * comm_size",
    "length must equal comm_size for",
    "put_split_sizes exceeds {}put tensor size",
    "Expected {}tensor on {device} but found tensor on",
    "but an operation was issued on",
    "Unsupported tensor data type for NCCL",
    "type for NCCL reduction",
    "only supports {}tensors",
    "does not support allreduce of",
    "does not support alltoall",
    "Split sizes doesn't match total dim 0 size",
    "Cannot use {} with NCCL",
    "is not supported for NCCL",
    "unsupported by NCCL",
    "Boolean{}not supported",
    "Sparse{}not supported",
    "input tensor must be",
    "output tensor must be",
    "invalid tensor type",
    "Tensor sizes{}mismatch",
    "Backend nccl does not support",
    "does not support reduce_scatter",
    "does not support scatter",
    "does not support gather",
    "ProcessGroupGloo does not support",
    "Backend gloo does not support",
    "must be CUDA tensors",
    "Tensor on device {a} is not on the expected device",
    "FP8 reduction support begins with sm90",
    "Input split sizes must",
    "Tensor list has incorrect length",
    "Tensors for all_{}must",
    "allocated on device {device:int} mismatchs with NCCL device",
    "Invalid function argument. Expected parameter",
    "Invalid usage of tensors with different dtypes",
    "on complex tensors",
    "group sizes must be identical",
    "ProcessGroupGloo::{call:word} invalid tensor",
    "ProcessGroupGloo::{call:word} requires",
    "ProcessGroupGloo::{call:word} Incorrect",
    "ProcessGroupGloo::{call:word} unsupported",
    "ProcessGroupGloo::{call:word} can not",
    "ProcessGroupGloo::send takes a single tensor",
    "Cannot use ReduceOp.PREMUL_SUM with",
    "Must flatten tensors with uniform dtype",
    "Must flatten tensors with the same",
    "Only Tensors of floating point",
    cause="app.bad-tensor",
    strength=0.9,
    title="a collective got a tensor it cannot take",
    why="Device, layout, data type or shape of the tensor does not fit the backend or the call.",
)
says(
    "mesh-size",
    "Mesh should not be bigger than default world size {world:int}, but found {mesh:int} ranks",
    "should be less or equal to the world size set by init_process_group",
    "must not exceed the world size",
    "invalid parallel dims",
    "Invalid parallel dims: {dims} != WORLD_SIZE",
    "must be divisible by world size",
    "orld size ({world:int}) must be divisible by",
    "You set `num_nodes={}` in Lightning",
    "You set `devices={}` in Lightning",
    "You set `--ntasks={}` in your SLURM bash script",
    cause="launch.world-size",
    strength=0.9,
    title="the parallelism of the configuration does not fit the number of ranks that were started",
    why="A mesh or group wants more (or another number of) ranks than the launcher started.",
)
says(
    "pg-misuse",
    "Default process group has not been initialized",
    "trying to initialize the default process group twice",
    'trying to initialize the default process group " "twice!',  # the source line that raised
    "Invalid process group specified",
    "is not registered, please create group",
    "roup is not registered",
    "is not part of group",
    "rocess group has been destroyed",
    "Cannot get rank of",
    "comm {} has already been destroyed",
    "ncclCommGetUniqueId should not be called",
    "not in a group call",
    "Process group not initialized",
    "process group is not initialized",
    "default process group has not",
    "Group rank{}is invalid",
    "does not exist in the process group",
    "init_process_group() has not been called",
    "Backend {} has already been",
    "new_group() must be called",
    "new group's rank should be within the world_size",
    "ncclConfig_t argument not initialized",
    "Invalid config {} attribute value",
    "mismatch{}device_id",
    "process group is already initialized",
    "Rank {rank:int} not in group",
    "A CPU backend must be enabled for async save",
    "Expects at least one ProcessGroup",
    "DeviceMesh process groups not initialized",
    "Coalescing manager requires all collectives to be the same type",
    "No backend for the parent process group",
    "monitored_barrier is only implemented for GLOO",
    "torch.distributed must be initialized",
    "Please initialize the group first",
    "parallel group is not initialized",
    "parallel group is already initialized",
    "torch.distributed is already initialized but the torch world size does not match",  # vLLM
    "world group already initialized with a different world size",
    "group already initialized, but of unexpected size",
    cause="app.pg-misuse",
    strength=0.9,
    title="a process group is used before it exists, twice, or after its end",
    why="The order or the group of the call is wrong in the program.",
    where=lambda groups, line: (
        re.search(r"\b[Ss]kip", line) is None and ("group has been destroyed" not in line or "rror" in line)
    ),
)
says(
    "communicator-not-ready",
    "Attempt to use communicator before the previous operation returned",
    why="NCCL refuses a communicator whose last operation has not returned ncclSuccess: it is still under way, or has failed.",
)
says(
    "nan",
    "oss is nan",
    "nexpected result nan",  # Megatron
    "Unexpected result inf",
    "oss is NaN",
    "NaN detected",
    "nan detected",
    "NaN loss",
    "nan loss",
    "ound NaN",
    "got nan",
    "Got nan",
    "loss scale already at minimum",
    "Minimum loss scale reached",
    "loss: nan",
    "loss nan",
    "'loss': nan",
    "loss = nan",
    "loss became nan",
    "loss=nan",
    "Loss scale reached",
    "FloatingPointError",
    " NaN: True",  # a program's own check
    "contains nan",
    "contains NaN",
    "Inf detected",
    "gradients are nan",
    "gnorm nan",
    "grad_norm nan",
    "grad norm: nan",
    "is non-finite, so it cannot be clipped",
    "cannot convert float NaN to integer",
    "probability tensor contains either `inf`, `nan`",
    "invalid values:\ntensor([[nan",
    "returned nan values in its",
    "returned inf values in its",
    cause="app.nan-or-data",
    strength=0.85,
    title="numbers went wrong: NaN or infinity in loss or gradients",
    why="A numerical failure; collectives only pass it on.",
    where=lambda groups, line: (
        re.search(
            r"inconsistent between workers|(?:detected|found NaN|contains NaN)\W{1,3}(?:0\b|[Ff]alse|[Nn]one)", line
        )
        is None
        and not line.rstrip().endswith("raise FloatingPointError(")
        and re.search(r"\b[Ss]kipp(?:ing|ed)\b", line) is None  # of one step: what goes on like that tells its losses
    ),
)
says(
    "gradients-differ",
    "gradients are inconsistent between workers",
    "grad_norm across the workers:",
    cause="app.collective-mismatch",
    strength=0.72,
    title="the norm of the gradients differs between the ranks: they did not reduce the same gradients",
    why="fairseq compares the reduced norms: parameters that some ranks did not use (--ddp-backend=legacy_ddp reduces them all), GPUs of several generations, or NaN on one rank.",
)
_NORM_OF_RANK = re.compile(r"(?:^|[\]:|]) *rank +\d+ = -?(?:nan|inf)\s*$")  # the whole line: no other number of a rank
says(
    "gradients-not-finite",
    "rank {rank} = {norm:word}",
    cause="app.nan-or-data",
    strength=0.86,
    title="the gradients of rank {rank} are not finite",
    why="fairseq calls norms inconsistent, too, where they are NaN or infinite on every rank: too long a step, fp16's range, or the data.",
    pattern=_NORM_OF_RANK,
    wake=(" = nan", " = inf", " = -inf"),
)
says(
    "uneven",
    "exhausted all inputs",
    "exhausted inputs",
    "ran out of batches",
    "ran out of data",
    "number of batches differ",
    "different number of batches",
    cause="app.uneven-inputs",
    strength=0.85,
    title="the ranks have different numbers of batches",
    why="The program says that a rank ran out of input before the others.",
)
says(
    "straggler-words",
    "so far",
    "downloading",
    "Downloading",
    "tokenizing",
    "Tokenizing",
    "compiling",
    "Compiling",
    "building cache",
    "Building",
    "resampling",
    "evaluat",
    "Evaluat",
    "saving checkpoint",
    "Saving checkpoint",
    "Saving model",
    "preprocessing",
    "Preprocessing",
    "caching",
    "Caching",
    "indexing",
    "Indexing",
    "Map:",
    "Map (",
    "Extracting",
    "extracting",
    "waiting for",
    "Waiting for",
    "writing",
    "Writing",
    "written",
    "validation",
    "Validation",
    "uploading",
    "Uploading",
    "shard",
    "autotun",
    "Generating",
    "generating",
    "Running tokenizer",
    "Filter:",
    "copying",
    "Copying",
    "warming",
    "retrying",
    "sleeping",
    "slow",
    sampled=True,
    why="A rank says what it is busy with.",
)
says(
    "argparse",
    "error: the following arguments are required",
    "error: argument {name}: invalid",
    "usage: {program}",
    "No such option",
    "Missing argument",
    "unrecognized arguments",
    "Unrecognized options: {option}",
    "Flags parsing error: {complaint}",  # absl
    cause="unrelated",
    strength=0.8,
    title="the command line is wrong",
    why="The program's own argument parser refused its arguments.",
    where=lambda groups, line: (
        line.lstrip().startswith("usage:") and "usage: {" not in line
        if "program" in groups
        else "rror" in line or "Unrecognized" in line
    ),
)
says(
    "quantised-elsewhere",
    "a model that has been loaded in {bits} precision on a different device than the one you're training on",
    cause="app.rank-exception",
    strength=0.8,
    title="a rank loaded its quantised model onto another GPU than its own (usually all onto GPU 0)",
    why="Accelerate's check: a model in 8 or 4 bits is not moved after it was loaded. device_map has to name the GPU of the local rank.",
)
says(
    "tests-failed",
    "FAILED (failures={count:int}",
    "FAILED (errors={count:int}",
    " failed, {passed:int} passed in ",
    " failed, {passed:int} passed, {others} in ",
    "[  FAILED  ] {count:int} test",
    cause="unrelated",
    strength=0.6,
    title="tests failed",
    why="The summary of unittest or pytest: what this log tells was a test's, whatever it sounds like.",
)
says(
    "build-failed",
    "make: *** [",
    "]: *** [",
    "compilation terminated.",
    "ninja: build stopped",
    "Command '['ninja', '-v'",  # torch.utils.cpp_extension
    "failed to solve: process {command} did not complete successfully",  # BuildKit, of an image's RUN
    cause="unrelated",
    strength=0.74,
    title="a program, or an extension of torch, could not be built",
    why="make, ninja, the compiler or an image's build gave up: what was to run is not there.",
    where=lambda groups, line: (
        re.search(r"\*\*\* \[(?:[^]]{0,200}: )?(?:test|check|run)[-\w]*\]", line) is None
    ),  # it was built, and failed
)
says(
    "licence-refused",
    "ailed to check out a license",
    "FlexNet Licensing error",
    "Cannot connect to license server",
    "icense checkout failed",
    "o license available",
    cause="unrelated",
    strength=0.8,
    title="the program got no licence",
    why="The licence server is not reached, or has none left: the program ends before its work begins.",
)
says(
    "tracker-login",
    "api_key not configured (no-tty)",
    "API key must be 40 characters long",
    cause="unrelated",
    strength=0.86,
    title="Weights & Biases has no API key: log in before the job, or set WANDB_MODE=offline (or disabled)",
    why="wandb asks for the key on a terminal; a rank has none, and wandb.init raises.",
)
says(
    "tracker-asks",
    "wandb: Enter your choice:",
    cause="unrelated",
    strength=0.5,
    title="Weights & Biases asks for a login, and a rank has no terminal to answer",
    why="Log in before the job, or set WANDB_MODE=offline (or disabled). On a terminal somebody may have answered.",
    where=lambda groups, line: re.search(r"choice: *\d", line) is None,
)
says(
    "config-refused",
    "Could not override '{key}'",
    "Key '{key}' is not in struct",
    "Missing mandatory value: {key}",
    "omegaconf.errors.{error}",
    "hydra.errors.{error}",
    "Cannot find primary config",
    "Available options in '",
    "validation error for {model}",
    "validation errors for {model}",
    "is not a valid value for argument",
    "jsonargparse{}error",
    "Unknown flag in XLA_FLAGS: {flag}",
    "Unknown flags in XLA_FLAGS: {flags}",
    cause="unrelated",
    strength=0.85,
    title="the configuration is wrong",
    why="The configuration library refused a key or a value: nothing distributed has begun.",
)
says(
    "slurm-command-ends",
    "srun: fatal: {message}",
    "sbatch: fatal: {message}",
    "salloc: fatal: {message}",
    cause="unrelated",
    strength=0.6,
    title="Slurm's command ends at once: {message}",
    why="srun, sbatch or salloc refuse their options, variables or configuration before anything runs.",
)
# What somebody looks with for what is wrong, and a script may well need.
_LOOKED_FOR = re.compile(
    r"\b(?:nc|ncat|netcat|telnet|ping6?|arping|fping|traceroute|tracepath|mtr|nslookup|dig|host|getent|ip|ifconfig|route|arp|ss|netstat|lsof|"
    r"fuser|tcpdump|ethtool|iperf3?|qperf|nmap|nft|iptables|ufw|ib\w+|perfquery|rdma|mst|mlx\w+|show_gids|nvidia-smi|nvidia-bug-report\S*|dcgmi|rocm-smi|"
    r"lspci|lstopo|dmesg|journalctl|strace|ltrace|gdb|py-spy|htop|top|free|vmstat|pstack|curl|wget|jq|rg|tree|sensors|"
    r"locate|file): (?:line \d+: )?(?:command )?not found"
)
says(
    "tool-missing",
    "command not found",
    ": not found",
    cause="unrelated",
    strength=0.46,
    title="a tool is not installed there",
    why="Who looked with it saw nothing; a script that needs it ends there. If the job began after it, it stops nothing.",
    pattern=_LOOKED_FOR,
)
says(
    "torch-too-old",
    " requires PyTorch >= {version}",
    " requires PyTorch version >= {version}",
    " requires torch>={version}",
    " requires torch >= {version}",
    cause="unrelated",
    strength=0.82,
    title="the program wants PyTorch {version} or newer",
    why="A library was asked for what this release of PyTorch does not have: nothing distributed has begun.",
    where=lambda groups, line: "Error" in line and "raise " not in line,
)
says(
    "shell-missing",
    "command not found",
    "execve(): {program}: No such file or directory",
    "execvp error on file {program} (No such file",  # Hydra
    ": line {number:int}: {program}: No such file or directory",
    "execve(): {program}: Permission denied",
    "execve(): {program}: Exec format error",
    "cannot execute binary file",
    "exec format error",
    "unable to locate the specified executable",
    "executable file not found in $PATH",
    "can't open file '{file}': [Errno 2] No such file or directory",
    "No module named {module}",
    "SyntaxError: {error}",
    "syntax error near unexpected token",
    "syntax error: unexpected end of file",
    "unexpected EOF while looking for matching",
    "IndentationError: {error}",
    "is not recognized as",
    "permission denied: ./",
    cause="unrelated",
    strength=0.85,
    title="the program could not be started",
    why="A missing command, script or module: nothing distributed has begun.",
    where=lambda groups, line: (
        "etcd" not in line
        and "torch.distributed" not in line
        and not _GOES_WITHOUT.search(line)
        and "vllm._version" not in line  # a source tree without a release's number
        and not _LOOKED_FOR.search(line)
        and ("number" not in groups or "bin/" in groups["program"])  # of a shell, that may also miss a file
    ),
)

says(
    "ddp-device-ids",
    "device_ids and output_device arguments only work with",
    cause="app.bad-tensor",
    strength=0.88,
    title="DDP got device_ids for a model that does not lie on that one GPU: it is on the CPU, or over several",
    why="model.to(local_rank) belongs before DistributedDataParallel; a model over several devices takes no device_ids.",
)
says(
    "devices-differ",
    "Expected all tensors to be on the same device",
    cause="app.bad-tensor",
    strength=0.9,
    title="an operation got tensors on different devices",
    why="An operation got tensors on different devices; the line names both.",
)
says(
    "shape-dtype",
    "The size of tensor a (",
    "mat1 and mat2 must have the same dtype",
    "mat1 and mat2 to have the same dtype",
    "mat1 and mat2 shapes cannot be multiplied",
    "expected scalar type {a} but found {b}",
    "expected m1 and m2 to have the same dtype",
    "Expected tensor{}to have",
    "must match the existing size",
    "shape '[{shape}' is invalid for input of size",
    "have incompatible shapes",
    "Invalid tensor shape",
    "tensors used as indices must be",
    cause="app.bad-tensor",
    strength=0.72,
    title="shapes or data types of tensors do not fit",
    why="An operation got tensors whose shapes or types do not fit.",
)
says(
    "tensor-meets-dtensor",
    "got mixed torch.Tensor and DTensor",
    cause="app.bad-tensor",
    strength=0.86,
    title="an operation got a plain tensor and a DTensor: FSDP2 or tensor parallelism sharded one of them and not the other",
    why="DTensor's operators take no plain tensors: a weight, buffer, input or optimizer state lies outside of what was "
    "sharded, or code calls a submodule past the forward of the module that was wrapped.",
)
says(
    "cuda-env",
    "CUDA_DEVICE_MAX_CONNECTIONS to 1",
    "requires setting the environment variable CUDA_DEVICE_MAX_CONNECTIONS",
    cause="env.bad-nccl-var",
    strength=0.86,
    title="CUDA_DEVICE_MAX_CONNECTIONS must be 1 here",
    why="Megatron's overlap of communication needs it.",
)
says(
    "checkpoint-damaged",
    "PytorchStreamReader failed",
    "invalid load key",
    "unexpected EOF, expected {count:int} more bytes",
    "EOFError: Ran out of input",
    "failed finding central directory",
    "HeaderTooLarge",
    "HeaderTooSmall",
    "MetadataIncompleteBuffer",
    "pickle data was truncated",
    "UnpicklingError",
    "corrupted{}checkpoint",
    "checkpoint{}corrupt",
    "Not a gzipped file",
    "Truncated File Read",
    "cannot identify image file",
    "image file is truncated",
    "CRC check failed",
    "ArrowInvalid",
    "parquet{}corrupt",
    "Invalid data found when processing input",
    cause="app.nan-or-data",
    strength=0.62,
    title="a file the program reads is damaged or incomplete",
    why="A checkpoint or data file cannot be read: written half, or damaged.",
    # torch 2.6 loads weights only, unless it is told otherwise: the file need not be damaged
    where=lambda groups, line: re.search("WARN|Warning: |[Ss]kip|Weights only load failed|raise ", line) is None,
)
# DeepSpeed's least scale unless told otherwise. Of a larger one, hysteresis keeps the same number after an overflow.
# apex has no least scale: it starts at 65536, and halves it below 1 where all steps overflow.
_LOWEST_SCALE = re.compile(
    r"loss scale: 1(?:\.0)?, reducing to 1(?:\.0)?(?!\.?\d)|reducing loss scale to (?:0\.\d|\d[\d.]*e-\d)"
)
says(
    "loss-scale",
    "Attempted loss scale",
    "decreasing to minimum",
    "loss scale{}minimum",
    "reducing loss scale to ",
    cause="app.nan-or-data",
    strength=0.84,
    title="the loss scale fell to its minimum (or below 1): gradients overflow",
    why="Every step overflows: the numbers diverged.",
    where=lambda groups, line: "minimum" in line.lower() or _LOWEST_SCALE.search(line) is not None,
)
says(
    "compiled-again",
    "[__recompiles] Recompiling function ",
    "torch._dynamo hit config.recompile_limit",
    "torch._dynamo hit config.cache_size_limit",
    every=True,
    why="torch.compile compiles a function anew since what it was compiled for changed (shapes, above all); at the limit it leaves the function as it is, uncompiled.",
)
says(
    "why-compiled-again",
    "[__recompiles] {}triggered by the following guard failure",
    "[__recompiles] {}- {code:int}/{nth:int}: ",
    "] {}last reason: {code:int}/{nth:int}: ",
    role=Role.HARMLESS,
    why="torch.compile tells what differs from what it compiled for: a reason to compile again, and no error.",
    where=lambda groups, line: "_dynamo" in line,
)
