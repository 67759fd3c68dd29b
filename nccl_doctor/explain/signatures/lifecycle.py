"""Signs that work goes on or ended well: what a healthy verdict rests on."""

from __future__ import annotations

from nccl_doctor.explain import lazy_re as re
from nccl_doctor.explain.model import Role
from nccl_doctor.explain.readers import bystanders
from nccl_doctor.explain.signatures import says

# "done" says it only alone on its line or in front: "done", "rank 3: done", "done: best batch size 12".
_DONE = re.compile(r"\bdone\b", re.IGNORECASE)
_ALL_DONE = re.compile(r"(?:^|: |\] ?)(?:all |job |test |training )?done\b(?: in |[ .!:]|$)", re.IGNORECASE)
# each rank's own exit status, which no pipe behind the job hides
_RANKS_EXITED = re.compile(
    r"\b(?:ranks|workers|processes|tasks|nodes) (?:all )?exited with (?:code |status )?0(?:(?:, | and )0)*\W*$"
)
# what succeeds at the end of a job, and what does before its work: a job that hangs in its first collective has said that too
_WORK = re.compile(
    r"finish|complet|\bend(?:s|ed)?\b|exit|\bran\b|\brun|job|train|test|bench|eval|export|\bsav|sync|upload|\bwr[io]t|"
    r"execut|verif|pass|generat|shut|terminat|destroy|stopp|clos",
    re.IGNORECASE,
)
_PREPARATION = re.compile(
    r"(?:load|open|creat|initiali[sz]|connect|regist|install|start|launch|import|compil|configur|pars|join|assign|pull|"
    r"match|resolv|prepar|preprocess|mount|allocat|detect|restor|resum|authenticat|submit|fetch|enabl|schedul)",
    re.IGNORECASE,
)
_NUMBER_NEAR = re.compile(r"\d")
_ERROR = re.compile(r"(?<!\w_e)rror(?!\w*(?: rate)?\s*[=:]?\s*-?\d)")  # not the metric: "ctc_error=0.3"


# "finished with failures", "did not exit 0", "Finished: FAILURE"
_BADLY = re.compile(
    r"with (?:[1-9]\d* )?(?:fail|error)|FAILURE|\bFAILED(?:_[A-Z]+)?\b(?!\W{0,3}0)|[Tt]ime-?out|[Tt]imed out|\bfailed\b(?!\W{0,3}0)|\bnot (?:finish|complet|succe|exit)|un[Ss]uccessful|"
    r"[Ee]rror(?!s?\W{1,3}(?:0|None|null)\b|_| rate)\b",
)


_OF_ANSIBLE = "rc=0 >>"  # what somebody looked with on a host ended well, and no job
# An exit status of the job, or with nothing else on its line: not one of many workers, nor a helper's.
_OF_THE_JOB = re.compile(
    r"^(?!.*\b(?:rank|worker|process|pid(?!=)|task|child|container|agent|node|pre\w*|post\w*|epilog\w*|clean\w*|copy|rsync)\b)(?:.*"
    r"\b(?:job|JobState|train\w*|run|script|srun|mpirun|torchrun|deepspeed|accelerate|launch\w*|python3?|program|main|pytest)\b|"
    r"(?:.*(?:[\]:|>F]|\d\d:\d\d\S{0,40}) )?\W{0,8}(?:(?:finished|done|exited)\W{1,8})?(?:with )?(?:rc|exit(?: (?:code|status))?)\W{0,2}0\b\W*$)",
    re.IGNORECASE,
)


_A_SCHEDULERS = re.compile(r" (?:Succeeded|COMPLETED) ")
# A job's row, not that of one of its steps: Slurm's own step (.extern) is completed whatever the others did.
_OF_A_WHOLE_JOB = re.compile(r" Succeeded +(?:\d+[dhms])+\s*$|^\s*\d+(?:_\d+)?\s[^.]* COMPLETED +0:0\b")
_PREPARED = re.compile(r"\bgraph|capture|compil|warm-?up", re.IGNORECASE)  # complete is what comes before the training


# A step that an earlier run made, or a setting: "resume_from_step: 200"
_BEFORE_WORK = re.compile(
    r"[Rr]es(?<!\w...)(?:um|tor)(?:ed|ing)\b.* (?:from|at) |"
    r"^\W*(?:max|num|total|log|save|eval|warm|resume|start|per|n)\w*(?:step|epoch|iteration)s?['\"]?\s*[:=]\s*\S+\s*$"
)


def _most_trials_ended_well(line: str) -> bool:
    """Whether none of a search's trials is still to run, and fewer failed than came to their end."""
    states = {state: int(count) for count, state in re.findall(r"(\d+) ([A-Z]+)\b", line)}
    return not states.keys() & {"RUNNING", "PENDING", "PAUSED"} and states.get("ERROR", 0) < states.get("TERMINATED", 0)


def _minutes(groups: dict[str, str], line: str) -> bool:
    """Five minutes or more, and seconds: not "after 704 steps"."""
    unit = re.search(re.escape(groups["seconds"]) + r"(?:\s?s(?:ec\w*)?\b|(?!\s?[A-Za-z\d]))", line)
    return unit is not None and float(groups["seconds"]) >= 300 and "imeout" not in line


_NO_STEP = re.compile(r"\bno (?:\w+ )?(?:step|epoch|iteration)s?\b|\b[Jj]ob step\b", re.ASCII)  # a job step is Slurm's
_FRAME = re.compile(r"\.py:\d+\)$")  # of a stack: "step (train.py:88)" is no progress

# A line of a program, as a stack or somebody's paste quotes it: "self.global_step += 1", "for step in range(100):"
# (what stands before is asked behind the first letters: so the engine skips to these, on every line of progress)
_CODE = re.compile(
    r"^\W*(?:if|elif|for|while|with|def|return|assert)\s.*[:(]\s*(?:#.*)?$|"
    r"[+*/-]=(?:(?<=\w..)|(?<=\w\s..))\s?\w|[=!<>]=(?<=\w\s..)\s\w|self\.(?<!\wself\.)\w|in (?<!\win )(?:range|enumerate)\("
)

# Python's warning, whatever it speaks of, unless a bar stands on its line in front of it.
_WARNING = re.compile(r"(?:(?!it/s|s/it|loss|tep\b|poch|\|).){0,400}?\.py:\d+: \w*Warning: ")

# The first epoch's heading, and a bar that has not moved: a job that hangs in its first step has printed both
_AT_ITS_START = re.compile(
    r"^\W*(?:start\w* )?epoch:? ?\[?[01](?:/\d+)?\W*$|, {1,4}\?\s?\w{1,12}/s(?!.*\d\s?(?:\w{1,12}/s|s/\w))",
    re.IGNORECASE,
)


def _with_number(groups: dict[str, str], line: str) -> bool:
    trouble = "raceback" in line or ("rror" in line and _ERROR.search(line))
    if "StopIteration" in line or _NO_STEP.search(line):  # an exception; no step of the work
        return False
    if "Warning: " in line and _WARNING.match(line):
        return False
    probe = '"GET /' in line  # health, metrics, list of models: answered by the front, whatever the engine does
    told = _FRAME.search(line) or _BEFORE_WORK.search(line) or _CODE.search(line) or _AT_ITS_START.search(line)
    bare = not _NUMBER_NEAR.search(line)
    return not (trouble or probe or told or bare or bystanders.is_preparation(line))


says(
    "progress",
    " loss ",
    "loss: ",
    "loss=",
    "'loss':",
    "iteration ",
    "step ",
    "Step ",
    "epoch ",
    "Epoch ",
    "Epoch: ",
    "Loss: ",
    "EPOCH ",
    "it/s",
    "s/it",
    "tok/s",
    "samples/s",
    "throughput",
    "img/s",
    "images/s",
    "imgs/s",
    "steps/s",
    "Iteration",
    "step:",
    "finished with value",
    "-logloss:",
    " completed after ",
    " 200 OK",
    "eval_accuracy",
    "INTERVAL_END{}epoch_stop",  # MLPerf's log; no quotes, which a JSON logger escapes
    "INTERVAL_END{}block_stop",
    "tracked_stats",
    "tokens/s",
    "token/s",
    "tokens_per_sec",
    "requests/s",
    "amples per second",
    "Generated {tokens:int} tokens",
    "time costs: {ms:num} ms",
    "Avg latency: ",
    "Output [Text {text:int} Beam {beam:int}]: ",
    "Generated text: ",
    '"step":{step:int}',
    '"step": {step:int}',
    '"loss": ',
    '"num_updates": ',  # fairseq
    "[batch={step:int}/",  # Composer
    " step={step:int}, skipped=",  # DeepSpeed
    "RunningAvgSamplesPerSec=",
    "Processed prompts: ",  # vLLM
    "Train Steps/Sec: ",
    role=Role.PROGRESS,
    sampled=True,
    where=lambda groups, line: "Generated text: " in line or _with_number(groups, line),
    why="A training loop reports a step, a server has answered a request, a program prints what a model wrote.",
)
_HEADING = re.compile(r"[A-Z][A-Z()%-]+(?: +[A-Z][A-Z()%-]+){2,}")  # of a table, as kubectl and sacct print it
says(
    "ended-well",
    "raining complete",
    "inished training",
    "raining time",
    "Training ended",
    "train_runtime",
    "`Trainer.fit` stopped",
    "successfully",
    "Successfully",
    "exit 0",
    "exit code 0",
    "COMPLETED",
    "rc=0",
    "rc 0",
    "exit status 0",
    "Done.",
    "训练完成",
    "Finished",
    "exit=0",
    "exit: 0",
    "Succeeded",
    "succeeded",
    "returned 0",
    "test passed",
    "... passed",
    "PASSED",
    "All tests passed",
    "max_steps reached",
    "eached max_steps",
    "eached max steps",
    "`max_epochs=",
    "Benchmark complete",
    " finished",
    "Saved final",
    "Successful requests:",
    "Benchmark duration",
    "best acc",
    "done",
    "DONE",
    " completed after ",
    "All tests completed",
    "Reporting training SUCCESS",  # SageMaker's training toolkit
    " 0 failures",
    "Application startup complete",
    "Started GRPCInferenceService at ",  # Triton
    "Uvicorn running on",
    role=Role.END,
    sampled=True,
    why="The program says that it came to its end.",
    where=lambda groups, line: (
        re.search(r"Deactivated|be able to |Cleaning up|eset succe|\wrc[= ]0", line) is None  # broadcast(t, src=0)
        and _HEADING.fullmatch(line.strip()) is None
        and _OF_ANSIBLE not in line
        and not _BADLY.search(line)
        and (not _DONE.search(line) or bool(_ALL_DONE.search(line)))
        and ("uccessfully" not in line or (bool(_WORK.search(line)) and not _PREPARATION.search(line)))
    ),
)
says(
    "run-ended",
    "raining complete",
    "raining finished",
    "raining done",
    "inished training",
    "Finished {} training on training data",  # Ray's XGBoost and LightGBM
    "inished distributed training with {processes:int} ",  # Spark's TorchDistributor
    "done training in {seconds:num} seconds",  # fairseq
    "otal training time",
    "Training ended",
    "train_runtime",
    "`Trainer.fit` stopped",
    "worker group successfully finished",
    "End time of running main: ",  # ms-swift
    "checkpoint={}, error=None, path=",  # Ray Train's Result
    "un finished",
    "un completed",
    "rain finished",
    "rain completed",
    "rain done",
    "Ran {tests:int} tests in ",
    "Ran 1 test in ",
    "after training is done",  # Megatron
    "ob finished",
    "ob completed",
    "jobset completed successfully",
    "job done",
    "steps completed",
    "epochs completed",
    "ll done",
    "s exited with 0",
    " passed in ",
    " passed, {others} in ",
    "run_stop{}status{}success",  # MLPerf's log
    "ENDING TIMING RUN AT ",  # of its scripts, where the program ended well
    "Number of trials: {done}TERMINATED)",  # Ray Tune: every trial has ended
    "PASSED  ] {tests:int} test",  # googletest; of failed ones the next line tells
    "ob {id:word} SUCCEEDED",
    "ob {id:word} succeeded",
    "] {state:word} -> FINISHED.",  # Ray Train's controller
    " COMPLETED {}0:0",  # sacct
    " Succeeded {}",  # kubectl get of a job
    role=Role.END,
    why="The whole run says that it came to its end: what went wrong before did not stop it.",
    where=lambda groups, line: (
        not _BADLY.search(line)
        and not _PREPARED.search(line)
        and ("s exited with 0" not in line or _RANKS_EXITED.search(line) is not None)
        and ("trials: " not in line or _most_trials_ended_well(line))
        and (_A_SCHEDULERS.search(line) is None or _OF_A_WHOLE_JOB.search(line) is not None)
    ),
)
says(
    "own-result",
    "esult: tensor(",
    "Done with {what}",
    "omplete time: {seconds:num}",
    "otal time: {seconds:num}",
    role=Role.PROGRESS,
    sampled=True,
    where=lambda groups, line: not _BADLY.search(line),
    why="A small program tells what it reckoned, or how long it took: the collectives before it worked.",
)
says(
    "exit-zero",
    "rc=0",
    "rc 0",
    "exit=0",
    "xit code 0",
    "xit code: 0",
    "xit status 0",
    "xit status: 0",
    "xited with 0",
    "xited with code 0",
    "xited with status 0",
    "JobState=COMPLETED",
    role=Role.END,
    sampled=True,
    why="The shell or the scheduler says that the job ended with status 0: what was said while it shut down is nothing.",
    where=lambda groups, line: (
        not _BADLY.search(line) and _OF_THE_JOB.search(line) is not None and _OF_ANSIBLE not in line
    ),
)
says(
    "resumed",
    "esumed from ",
    "rying to restart training from last checkpoint",
    "esuming from ",
    "estored from ",
    "estoring ",
    "esuming training from ",
    why="The program goes on from a checkpoint: what stopped it before this line was overcome, if steps follow.",
)
says(
    "status-good",
    "Recovery Action {}: None",
    "Remapping Failure Occurred {}: No",
    "Overall Health {}| Healthy",
    "Physical state: LinkUp",
    "RUNNING      OK",
    "checks passed",
    "tests passed",
    ": PASS",
    " 0 errors",
    "WEXITSTATUS 0",
    "| Pass ",
    "phys state:{}5: LinkUp",
    "PORT_ACTIVE (4)",
    "HW Thermal Slowdown {}: 0 us",  # nvidia-smi's counters since the driver was loaded
    "HW Power Braking {}: 0 us",
    "configured all the available GPUs and NVSwitches",
    role=Role.END,
    why="A tool's listing of a device's state says that it is well. It proves something only where nothing else is said.",
)
says("nccl-tests-ok", "Out of bounds values : 0 OK", role=Role.END, why="nccl-tests found every value right.")
says(
    "ray-worker-rank",
    "pid={pid:int}) world_rank={rank:int},",
    role=Role.FACT,
    why="Ray Train's list of its workers: which process is which rank.",
)
says(
    "ray-actor",
    "class_name: {name:word}",
    role=Role.FACT,
    why="Ray describes an actor that died: the lines below tell its process.",
    rows=2,
)
says("destroyed", "Destroy COMPLETE", role=Role.END, why="A communicator was destroyed in order.")

says(
    "long-duration",
    " after {seconds:num}s",
    "took {seconds:num}s",
    " in {seconds:num}s",
    "elapsed {seconds:num}",
    "after {seconds:num} s",
    sampled=True,
    why="Something took minutes.",
    where=_minutes,
)
says(
    "timed-collective",
    " bytes {between}ms",
    "bytes: {between}ms",
    " MB in {seconds:num}",
    " MiB in {seconds:num}",
    " GB in {seconds:num}",
    " GiB in {seconds:num}",
    sampled=True,
    why="A collective of some size and how long it took.",
    pattern=re.compile("reduce|gather|broadcast|all_?to_?all|collective|send", re.IGNORECASE),
)
