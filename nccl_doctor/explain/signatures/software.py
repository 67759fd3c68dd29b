"""Versions, libraries, builds and known bugs."""

from __future__ import annotations

from nccl_doctor.explain import lazy_re as re
from nccl_doctor.explain.model import Role
from nccl_doctor.explain.signatures import says
from nccl_doctor.explain.signatures.system import QUOTED_OUTPUT

says(
    "other-nccl",
    "libnccl.so.2.{release}",
    "with NCCL 2.{release}",
    "nccl-cu12==2.{release}",
    "nccl-cu13==2.{release}",
    "in NCCL 2.{release}",
    "to NCCL 2.{release}",
    why="Somebody names a release of NCCL: the one in use, or another one that was tried.",
)
_HEADING = re.compile(
    r"[=#-]{2} (?:torch|nccl|driver)[\s=:@]{1,4}v?\d+(?:\.\d+){1,4}\S{0,20}\W{0,80}$",
    re.IGNORECASE,
)
says(
    "release-heading",
    "torch {release}",
    "orch=={release}",
    "nccl {release}",
    "NCCL {release}",
    "driver {release}",
    rows=24,
    wake=tuple(f"{mark} {name}" for mark in "=#-" for name in ("torch", "nccl", "NCCL", "driver")),
    why="The heading of one run of several, in a comparison of releases; its result stands below.",
    pattern=_HEADING,
)
says(
    "nccl-mismatch",
    "Mismatched NCCL version detected",
    "Mismatched NCCL git versions detected",
    "NCCL version mismatch",
    cause="sw.nccl-version-mismatch",
    strength=0.98,
    title="ranks run different NCCL versions",
    why="NCCL 2.23+ compares the versions of all ranks.",
    where=lambda groups, line: "RAS" not in line and "remote peer" not in line,
)
says(
    "bootstrap-truncated",
    "Message truncated : received",
    cause="sw.nccl-version-mismatch",
    strength=0.82,
    title="bootstrap messages have different lengths: ranks run different NCCL versions",
    why="The structures exchanged in bootstrap differ in size: different NCCL versions, or a foreign process on the port.",
    # NVSHMEM's compares versions itself; ranks that give up leave the others with other messages than they wait for.
    where=lambda groups, line: "bootstrap_uid" not in line,
)
says(
    "device-file-missing",
    "/dev/nvidia{name:word} No such file or directory",
    cause="sys.container",
    strength=0.92,
    title="a device file of the NVIDIA driver is not in the container (or the module is not loaded)",
    why="CUDA needs /dev/nvidia-uvm, /dev/nvidiactl and the GPUs' own files; a container gets only those that were passed to it.",
    where=lambda groups, line: re.match(r"(?:\d+|ctl|-uvm)\b", groups["name"]) is not None and "gres.conf" not in line,
)
says(
    "driver-library-missing",
    "Failed to open libnvidia-ml.so.1",
    "could not load NVML library",  # the device plugin
    "ERROR_LIBRARY_NOT_FOUND",  # go-nvml: dcgm-exporter and others
    "Incompatible strategy detected auto",
    "invalid device discovery strategy",
    cause="sys.container",
    page="gpu.driver.library-missing",
    strength=0.72,
    title="the driver's libraries are not here: the container was started without the NVIDIA runtime",
    why="libnvidia-ml comes with the driver and is mounted into containers (--gpus, --nv); without it there is no driver, or no mount.",
)
says(
    "vgpu-library",
    "ERROR (pid:{}Illegal device id: {id:int}",  # HAMi-core
    'File "/libvgpu/src/{file}"',
    " in libvgpu.so[",
    cause="sw.library-conflict",
    strength=0.86,
    title="the vGPU library that is loaded before CUDA's (HAMi's libvgpu.so) fails in a call of CUDA",
    why="It stands between every program and the driver, and lacks or mistakes some of the calls that newer releases of NCCL and CUDA make.",
)
says(
    "undefined-symbol",
    "undefined symbol: {symbol}",
    "numpy.core.multiarray failed to import",
    "may indicate binary incompatibility",
    "symbol lookup error",
    "version `{version}' not found",
    "GLIBCXX_{version} not found",
    "GLIBC_{version} not found",
    "is a stub library",
    "wrong ELF class",
    "NCCL library is not backwards compatible",
    "NCCL library is too old",
    "NCCL library version is too old",
    "was compiled with too old version of NCCL",
    "CUDA some PFN functions not found",
    "dlvsym failed",
    "compiled with NCCL version {a}, but is running with NCCL library version {b}",
    "undefined reference to",
    "version mismatch{}libnccl",
    "file too short",
    "cannot allocate memory in static TLS block",
    cause="sw.library-conflict",
    strength=0.93,
    title="libraries do not fit together (or the wrong one is loaded)",
    why="The loader found another library than the one the program was built with, or none.",
    where=lambda groups, line: (
        not re.search(
            r"libnccl-net|libnccl-tuner|libnccl-profiler|libnccl-env|libibverbs|libmlx|libefa|libfabric|INFO (?:NET|TUNER|PROFILER|ENV)/|NET/Plugin|libcuda\.so\.1|hns|rxe|INFO .*dlvsym",
            line,
        )
    ),
)
says(
    "toolkit-mismatch",
    "The detected CUDA version ({system}) mismatches the version that was used to compile",
    "Installed CUDA version {system} does not match the version torch was compiled with {torch}",
    "PyTorch was compiled with {torch}, but {}CUDA{}detected",
    "PyTorch and torchvision were compiled with different CUDA major versions",
    "Detected that PyTorch and {other} were compiled with different CUDA",
    cause="sw.library-conflict",
    strength=0.9,
    title="the CUDA toolkit (or a library) does not fit the CUDA that torch was built with",
    why="An extension is compiled with, or was built for, another CUDA than torch's.",
    where=lambda groups, line: "this combination" not in line,  # "accepting", "Allowing"
)
says(
    "toolkit-accepted",
    "but since the APIs are compatible, accepting this combination",
    "Allowing this combination of CUDA",
    role=Role.HARMLESS,
    why="DeepSpeed compiles its extensions with a CUDA of the same major version as torch's, or was told not to look.",
)
# bitsandbytes 0.35 to 0.50
_NO_BITSANDBYTES = "bitsandbytes can load no binary: it has none for this CUDA, or does not find CUDA's runtime"
says(
    "bitsandbytes-refuses",
    "CUDA Setup failed despite {device} being available",
    "Attempted to use bitsandbytes native library functionality but it's not available",
    "not available in CPU-only version of bitsandbytes",
    cause="sw.library-conflict",
    strength=0.88,
    title=_NO_BITSANDBYTES,
    why="It raises where its binary is used: the wheel has one for each CUDA, BNB_CUDA_VERSION chooses another than torch's; python -m bitsandbytes tells.",
)
says(
    "bitsandbytes-without-binary",
    "Could not find the bitsandbytes {backend} binary at",
    "Could not load bitsandbytes native library: {error}",
    "bitsandbytes library load error: {error}",
    "CUDA SETUP: Required library version not found: libbitsandbytes",
    cause="sw.library-conflict",
    strength=0.6,
    title=_NO_BITSANDBYTES,
    why="Only told at its import: it fails later, and only if the job uses it.",
)
# xformers 0.0.16 to 0.0.35
says(
    "xformers-of-another-build",
    "xFormers can't load C++/CUDA extensions",
    "xFormers wasn't build with CUDA support",
    "xFormers is not built: Need to compile C++ extensions",
    cause="sw.library-conflict",
    strength=0.55,
    title="xFormers has no CUDA extensions for this torch: it was built for another torch, CUDA or Python, or for none",
    why="Told at its import; the job fails later, and only if it uses memory_efficient_attention (No operator found).",
)
says(
    "cudnn-mismatch",
    "Loaded runtime CuDNN library: {loaded} but source was compiled with: {wanted}",  # XLA: JAX and TensorFlow
    "cuDNN version incompatibility",  # torch
    cause="sw.library-conflict",
    strength=0.9,
    title="the cuDNN that was loaded is not the one that the program was built for",
    why="Another package, or LD_LIBRARY_PATH, put an older or newer cuDNN in its place.",
)
says(
    "no-nccl",
    "doesn't have NCCL built in",
    "NCCL backend is not available",
    "backend nccl is not available",
    "Torch not compiled with CUDA enabled",
    "Unknown c10d backend type NCCL",
    "NCCL is not available",
    "built without NCCL",
    "Unrecognized backend: nccl",
    "No module named 'torch.distributed'",
    "Invalid backend: 'nccl'",
    "module 'torch.distributed' has no attribute",
    "is_nccl_available() is False",
    "not built with NCCL",
    "built without distributed support",
    "Distributed package doesn't have",
    "module 'torch._C' has no attribute '_c10d_init'",
    "module 'torch._C' has no attribute '_cuda_{name:word}'",
    "No module named 'torch._C._distributed_c10d'",
    "PyTorch is not compiled with NCCL support",
    "Unknown communication backend: nccl",  # turbomind
    cause="sw.no-nccl-backend",
    strength=0.95,
    title="this build of torch (or turbomind) lacks NCCL, CUDA or torch.distributed",
    why="A CPU-only or foreign-platform build is installed on this host.",
)
says(
    "torch-lacks-part",
    "use_libuv was requested but PyTorch was buil{}without libuv support",
    "makeDeviceForHostname(): unsupported gloo device",
    "makeDeviceForInterface(): unsupported gloo device",
    "No rendezvous handler for {scheme:word}://",
    cause="sw.no-nccl-backend",
    strength=0.93,
    title="this build of torch lacks a part of torch.distributed (libuv, Gloo's transport or the store's rendezvous), as builds for Windows do",
    why="torch's store takes libuv unless USE_LIBUV=0; GlooDeviceFactory finds no transport that was compiled in.",
)
says(
    "nccl-not-loaded",
    "Unable to load NCCL library",  # XLA: JAX and TensorFlow
    "Failed to load NCCL library from {path}",  # vLLM
    "You may need to install '{name}ccl{}' from {vendor} official website",  # Paddle
    cause="sw.library-conflict",
    strength=0.8,
    title="the program finds no libnccl that it can load",
    why="libnccl.so.2 is not where the loader looks (nvidia-nccl-cu12 is not installed, or not in LD_LIBRARY_PATH), is damaged, or another copy stands before it.",
)
says(
    "nccl-bug-shared-memory",
    "exceeds device/fn maxSharedMem",
    why="NCCL wants more shared memory per block than this GPU allows: kernel launches fail with invalid argument. Fixed in later releases.",
    cause="sw.nccl-bug",
    strength=0.82,
    title="this NCCL release does not fit this GPU (shared memory per block)",
)
says(
    "nccl-segfault",
    "in libnccl.so",
    "libnccl.so{}+0x",
    cause="sw.nccl-bug",
    strength=0.72,
    title="a process crashed inside NCCL",
    why="The crash's stack or the kernel's segfault line names libnccl: an NCCL bug, or memory corrupted by something else.",
    where=lambda groups, line: bool(re.search(r"segfault|\(\+0x|\[0x|SIGSEGV|#\d|\(nccl", line)),
)
says(
    "nccl-corruption",
    "Out of bounds values : {count:int} FAILED",
    "corrupted comm object detected",
    "Error: corrupted comm object",
    cause="sw.nccl-bug",
    strength=0.62,
    title="a collective returned wrong data",
    why="nccl-tests found wrong values: data corruption by hardware, driver (P2P, IOMMU) or a bug.",
)
says(
    "nccl-internal",
    "internal error - please report this issue to the NCCL developers",
    "Test NCCL failure {place} 'internal error'",
    "ncclInternalError: Internal check failed",
    role=Role.SYMPTOM,
    cause="sw.nccl-bug",
    strength=0.36,
    fold="NCCL internal error",
    title="an internal check of NCCL failed",
    why="NCCL's catch-all; the WARN line before it says which check.",
)
# what the kernel's line of a crash names besides: a process of a job, or a library that only such have
_OF_A_JOB = re.compile(r"\bpython|\bpt_|nccl|\blib(?:cuda|torch|c10|mpi|ucp)\w*\.so")
says(
    "segfault",
    "Signal 11 (SIGSEGV) received by PID",
    "*** SIGSEGV (@",  # glog's handler
    "exitcode  : -11",
    "exitcode: -11",
    "exitcode=-11",
    "shutdown with signal 11 ",
    "signal: segmentation fault",
    "status=11/SEGV",
    "return code = -11",
    "died with <Signals.SIGSEGV",
    "terminated with signal SIGSEGV",
    "exit code 139",
    "exit code -11",
    "*** Process received signal ***",
    "Signal code: Address not mapped",  # Open MPI's handler, cut above it
    "signal 11 (SIGSEGV)",
    "Segmentation fault",
    "]: segfault at {address} ip ",  # the kernel's own line
    "general protection fault ip:{address}",
    role=Role.SYMPTOM,
    cause="sw.nccl-bug",
    strength=0.45,
    fold="a crash in native code",
    title="a process crashed in native code",
    why="A signal of the system or an abort of a library; the frames say whose.",
    where=lambda groups, line: (
        "DataLoader" not in line
        and not QUOTED_OUTPUT.search(line)
        and ("address" not in groups or bool(_OF_A_JOB.search(line)))
    ),
)
says(
    "crash-stack",
    "*** Process received signal ***",
    "] Failing at address: ",
    "==== backtrace",
    rows=14,
    why="Open MPI's or UCX's crash handler: the stack of the process follows, innermost frame first.",
)
says(
    "ucx-frame",
    "uct_{function:word}",
    "ucp_{function:word}",
    why="A function of UCX in a stack, or in the line of source that its crash handler shows.",
    where=lambda groups, line: re.search(r"\buc[tp]_\w+(?:\(\)|\+0x)", line) is not None,
)
says(
    "crash-python",
    "Current thread {pid:hex} (most recent call first)",
    rows=1,
    why="faulthandler: the Python line that the crashed thread was in follows; native code that it called crashed.",
)
says(
    "nccl-invalid-launch",
    "enqueue.cc:{}NCCL WARN Cuda failure {code:int} 'invalid argument'",
    "Cuda failure 'invalid argument'",
    "Cuda failure 'invalid resource handle'",
    "Cuda failure 400 'invalid resource handle'",
    "Cuda failure 1 'invalid argument'",
    cause="sw.nccl-bug",
    strength=0.55,
    title="a CUDA call inside NCCL was refused (invalid argument)",
    why="NCCL passed what this driver or GPU does not accept: a release that does not fit the driver or GPU, or virtualised memory (cuMem) that is not supported.",
    where=lambda groups, line: "nvls.cc" not in line,
)
says(
    "cumem-refused",
    "Cuda failure {code:int} '{error}'",  # torch repeats it below "Last error:"
    "Cuda failure '{error}'",
    role=Role.SYMPTOM,
    cause="gpu.driver",
    strength=0.4,
    fold="a CUDA call inside NCCL failed",
    title="a CUDA call inside NCCL failed: {error}",
    why="A CUDA call inside NCCL failed; the error text says more.",
    where=lambda groups, line: "nvls.cc" not in line,
)
says(
    "cuda-call",
    "CUDA error: {error}",
    "CUDA Error: {error}",  # Transformer Engine
    "CUDA driver error: {error}",
    "cudaError{name:word}",
    "CUDA_ERROR_{name:word}",
    role=Role.SYMPTOM,
    cause="gpu.driver",
    strength=0.4,
    fold="CUDA errors",
    title="a CUDA call failed: {error}",
    why="A CUDA error that nothing more specific explains.",
)

says(
    "library-missing",
    "cannot open shared object file: No such file or directory",
    cause="sw.library-conflict",
    strength=0.86,
    title="a shared library is missing",
    why="The loader did not find a library that the program needs.",
    where=lambda groups, line: (
        bool(
            re.search(
                r"ImportError|OSError|error while loading|lib(?:nccl|cud|cublas|torch|c10|nv|mpi|rccl|amdhip|gomp|stdc)",
                line,
            )
        )
        and not re.search(
            r"libGLX?\.|libEGL|libglib|libgthread|libSM\.|libICE|libX\w*\.so|libsndfile|libav\w+\.so|libnvinfer|"  # no part of a job's path
            r"libnccl-|libibverbs|libmlx|libefa|libfabric|libtpu|INFO (?:NET|TUNER|PROFILER|ENV)/|NET/Plugin|libcuda\.so\.1|libnvidia-ml|hns|rxe|"
            r"Failed to find CUDA library|"  # NCCL goes on without it
            r"[a-z]Warning: ",  # and Python behind a warning
            line,
        )
    ),
)
says(
    "nccl-frame",
    " nccl{name:word}",
    "(nccl{name:word}",
    "`nccl{name:word}",  # lldb's
    role=Role.SYMPTOM,
    cause="sw.nccl-bug",
    strength=0.5,
    fold="NCCL functions in a stack",
    title="a process crashed inside NCCL ({name})",
    why="A native stack names NCCL's own functions.",
    where=lambda groups, line: (
        bool(re.search(r"(?:@\s+0x|^\s*(?:\* )?(?:frame )?#\d+|\[0x|PC: @|0x[0-9a-f]{8,}\s+nccl\w+\()", line))
        # a function: no type of a parameter, and no host that is called nccl-0
        and bool(re.search(r"[ (`]nccl[A-Z_]\w*(?:\s*[(+<]|\) ?\[0x|\s*$)", line))
        and "watchdog" not in line.lower()
    ),
)
says(
    "paddle-install-check",
    "some problem with multiple GPU",
    "PaddlePaddle meets some problem with",
    role=Role.SYMPTOM,
    cause="sw.library-conflict",
    strength=0.42,
    fold="Paddle's install check",
    title='Paddle\'s install check (run_check) works on one GPU and not on several: its "Original Error" says why',
    why="It lists what it can be (GPUs hidden or busy, a wrong NCCL) whatever happened.",
)
says(
    "torch-bug",
    "INTERNAL ASSERT FAILED at",
    "please report a bug to PyTorch",
    "Please report this to the PyTorch",
    cause="sw.nccl-bug",
    strength=0.66,
    title="an internal assertion of torch failed",
    why="torch's own consistency check failed: a bug of that release, or a use it did not foresee.",
)
says(
    "crash-while-finalizing",
    "Python runtime state: finalizing",
    "at interpreter shutdown, possibly due to daemon threads",
    role=Role.SYMPTOM,
    cause="app.rank-exception",
    strength=0.36,
    title="Python crashed while it ended: a thread of a library outlived the interpreter; the log does not say why the program ended",
    why="The program was over, well or by an exception, when a thread that still ran asked for the interpreter.",
)
says(
    "crash-handler",
    "SIGSEGV received at time",
    "SIGABRT received at time",
    "Fatal Python error: ",
    "Caught signal {number:int} (",
    "free(): {what}",
    "malloc(): {what}",
    "double free or corruption",
    "corrupted size vs. prev_size",
    "*** stack smashing detected ***",
    role=Role.SYMPTOM,
    fold="crash handlers",
    why="A crash handler's report; the frames beneath say whose code it was.",
)

# What native code says last when it ends itself, before SIGABRT or SIGILL.
_C_ASSERTION = re.compile(r"\S\.(?:c|cc|cpp|cxx|cu|h|hh|hpp|inc|inl|ipp):\d+:? .*Assertion `")
says(
    "native-assertion",
    "Assertion `{assertion}' failed",
    cause="app.rank-exception",
    strength=0.62,
    title="an assertion of native code ended a process: {assertion}",
    page="app.rank-exception.native",
    why="C's assert prints its place and condition, and aborts: whose code it is, the file's path tells.",
    where=lambda groups, line: (
        "thread: [" not in line and "num_file_bytes" not in line and _C_ASSERTION.search(line) is not None
    ),  # of a kernel; of swap-file-short
)
# What the C++ library throws where a program asks it for what cannot be; a std::runtime_error is anybody's, torch's watchdog's too.
_OF_THE_PROGRAM = re.compile(
    r"instance of 'std::(?:out_of_range|logic_error|length_error|domain_error|invalid_argument|range_error|overflow_error|bad_cast|"
    r"bad_any_cast|bad_variant_access|bad_optional_access|bad_function_call|regex_error|ios_base::failure\S*|\S*filesystem_error)'"
)
says(
    "native-exception",
    "terminate called after throwing an instance of 'std::{what}'",
    "Fortran runtime error: {what}",  # gfortran
    "forrtl: severe ({code:int}): {what}",  # Intel's
    "panicked at {what}",  # Rust
    "panic: runtime error: {what}",  # Go
    'Exception in thread "main" {what}',  # Java
    "ERROR: LoadError: {what}",  # Julia
    cause="app.rank-exception",
    strength=0.72,
    title="native code ended a process with an error of its own: {what}",
    page="app.rank-exception.native",
    why="The runtime of the language that this part of the program is written in says what nobody caught; its peers lose the process.",
    where=lambda groups, line: (
        _OF_THE_PROGRAM.search(line) is not None if "terminate called" in line else "process killed" not in line
    ),
)
_FATAL_CHECK = re.compile(r"(?:^|[^\s:]:\d+\] +)Check failed: |\bC \d+ \d+\] .*:\d+: +Check failed: ")
_CHECKS_KNOWN_BETTER = re.compile(r"nccl|cuda|hip|rpc|connect|bind|socket|memory", re.IGNORECASE)
says(
    "native-check",
    "Check failed: {check}",
    cause="app.rank-exception",
    strength=0.55,
    title="a check of native code ended a process: {check}",
    page="app.rank-exception.native",
    why="glog, absl, TensorFlow, XLA and Ray print the condition that does not hold, and abort.",
    where=lambda groups, line: (
        _FATAL_CHECK.search(line) is not None and _CHECKS_KNOWN_BETTER.search(groups["check"]) is None
    ),
)
says(
    "llvm-gave-up",
    "LLVM ERROR: {error}",
    cause="app.rank-exception",
    strength=0.55,
    title="the compiler below Triton, XLA or Numba ended a process: LLVM ERROR: {error}",
    page="app.rank-exception.native",
    why="LLVM aborts on what it cannot compile: code for another GPU or CPU, or a bug of that release.",
    where=lambda groups, line: "out of memory" not in line,
)
says(
    "heap-broken",
    "double free or corruption",
    "corrupted size vs. prev_size",
    "corrupted double-linked list",
    "free(): invalid {what}",
    "malloc(): {what}",
    "malloc_consolidate(): {what}",
    "realloc(): invalid {what}",
    "munmap_chunk(): invalid pointer",
    "*** stack smashing detected ***",
    cause="sw.library-conflict",
    strength=0.48,
    title="the C library found memory overwritten: two builds of one library in a process, or a bug of native code",
    why="It sees the damage later than it was done: often by an extension built against another torch or C++ library, also by a bug, or a device that wrote "
    "where it should not. Import order and LD_PRELOAD matter where two libstdc++, OpenMP or allocators meet.",
)
says(
    "cpu-lacks-instruction",
    "Illegal instruction (core dumped)",
    "Signal: Illegal instruction (4)",
    "on signal 4 (Illegal instruction)",
    "Signal 4 (SIGILL) received by PID",
    "died with <Signals.SIGILL",
    cause="sw.library-conflict",
    strength=0.52,
    title="a process ended at an illegal instruction: a library built for a newer CPU, or native code that traps",
    why="Wheels built with AVX-512 or for another machine's CPU (-march=native); some programs also end on an error of theirs with a trap.",
)

says(
    "rank-tables",
    "Failed to determine intra ranks",
    "Failed to determine intra node ranks",
    "Failed to determine intra proc ranks",
    "Failed to determine local ranks",
    cause="sw.nccl-bug",
    strength=0.55,
    title="NCCL's tables of ranks per host are inconsistent",
    why="Two hosts or containers look alike to NCCL (host name and boot id), NCCL_HOSTID is wrong, or a bug.",
)
