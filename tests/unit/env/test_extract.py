"""Extractors: what each format sets, where, and what only looks like setting."""

from __future__ import annotations

import contextlib
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nccl_doctor.env import files, lint
from nccl_doctor.env.assignments import MAX_ARMS, Assignment, How
from nccl_doctor.env.extract import conf, docker, env_file, log, python_source, shell, yaml_file
from nccl_doctor.findings.model import Severity


def pairs(found: list[Assignment]) -> list[tuple[str, str | None, int | None]]:
    return [(item.name, item.value, item.line) for item in found if not item.lost]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("export NCCL_DEBUG=INFO", [("NCCL_DEBUG", "INFO", 1)]),
        ("export NCCL_DEBUG='INFO' NCCL_ALGO=\"Ring\"", [("NCCL_DEBUG", "INFO", 1), ("NCCL_ALGO", "Ring", 1)]),
        ("NCCL_DEBUG=INFO python train.py", [("NCCL_DEBUG", "INFO", 1)]),
        ("FOO=1 NCCL_DEBUG=INFO BAR=2 python train.py", [("NCCL_DEBUG", "INFO", 1)]),
        ("a\nb\nexport \\\n  NCCL_DEBUG=INFO", [("NCCL_DEBUG", "INFO", 4)]),
        ("mpirun -x NCCL_DEBUG=INFO -x PATH ./a", [("NCCL_DEBUG", "INFO", 1)]),
        (
            "mpirun -np 2 \\\n -x NCCL_DEBUG=INFO \\\n -x NCCL_ALGO=Ring ./a",
            [("NCCL_DEBUG", "INFO", 2), ("NCCL_ALGO", "Ring", 3)],
        ),
        ("mpiexec -genv NCCL_DEBUG INFO ./a", [("NCCL_DEBUG", "INFO", 1)]),
        (
            "srun --export=ALL,NCCL_IB_HCA=mlx5_0,mlx5_1,NCCL_DEBUG=WARN ./a",
            [("NCCL_DEBUG", "WARN", 1)],  # srun cuts at every comma: of the list only mlx5_0 arrives
        ),
        ("srun --export=ALL,\"NCCL_IB_HCA='mlx5_0,mlx5_1'\" ./a", [("NCCL_IB_HCA", "mlx5_0,mlx5_1", 1)]),
        ("mpiexec -env NCCL_IB_HCA mlx5_0,mlx5_1 ./a", [("NCCL_IB_HCA", "mlx5_0,mlx5_1", 1)]),
        (
            '#BSUB -env "all, NCCL_DEBUG=TRACE, NCCL_IB_DISABLE=1"',
            [("NCCL_DEBUG", "TRACE", 1), ("NCCL_IB_DISABLE", "1", 1)],
        ),
        ("nohup env NCCL_DEBUG=INFO NCCL_TIMEOUT=7 ./a &", [("NCCL_DEBUG", "INFO", 1), ("NCCL_TIMEOUT", "7", 1)]),
        ("#SBATCH --export=ALL,NCCL_DEBUG=INFO", [("NCCL_DEBUG", "INFO", 1)]),
        (
            "docker run -e NCCL_DEBUG=INFO --env NCCL_ALGO=Ring img",
            [("NCCL_DEBUG", "INFO", 1), ("NCCL_ALGO", "Ring", 1)],
        ),
        (
            "docker run -eNCCL_DEBUG=INFO --env=NCCL_ALGO=Ring img",
            [("NCCL_DEBUG", "INFO", 1), ("NCCL_ALGO", "Ring", 1)],
        ),
        ("sudo -E env NCCL_DEBUG=INFO ./a", [("NCCL_DEBUG", "INFO", 1)]),
        ("setenv NCCL_DEBUG INFO", [("NCCL_DEBUG", "INFO", 1)]),
        ("set -gx NCCL_DEBUG INFO", [("NCCL_DEBUG", "INFO", 1)]),
        ("declare -x NCCL_DEBUG=INFO", [("NCCL_DEBUG", "INFO", 1)]),
        ("export NCCL_DEBUG=${NCCL_DEBUG:-INFO}", [("NCCL_DEBUG", "INFO", 1)]),
        ("export NCCL_SOCKET_IFNAME=$(ip route | awk '{print $5}')", [("NCCL_SOCKET_IFNAME", None, 1)]),
        ("export NCCL_SOCKET_IFNAME=$IF", [("NCCL_SOCKET_IFNAME", None, 1)]),
        ("ssh n1 'export NCCL_DEBUG=INFO; python a.py'", [("NCCL_DEBUG", "INFO", 1)]),
        ('bash -c "NCCL_DEBUG=INFO python a.py"', [("NCCL_DEBUG", "INFO", 1)]),
        ("NCCL_DEBUG=INFO\nexport NCCL_DEBUG\npython a.py", [("NCCL_DEBUG", "INFO", 1)]),
        ("set -a\nNCCL_DEBUG=INFO\npython a.py", [("NCCL_DEBUG", "INFO", 2)]),
        ("NCCL_DEBUG=INFO\nNCCL_ALGO=Ring\n", [("NCCL_DEBUG", "INFO", 1), ("NCCL_ALGO", "Ring", 2)]),
        ("export NCCL_DEBUG=INFO # why not", [("NCCL_DEBUG", "INFO", 1)]),
        ("# export NCCL_DEBUG=INFO", []),
        ("echo NCCL_DEBUG=INFO", []),
        ('echo "export NCCL_DEBUG=INFO"', []),
        ("grep NCCL_DEBUG=INFO file", []),
        ('[ "$NCCL_DEBUG" = INFO ] && true', []),
        ("if [[ $NCCL_DEBUG == INFO ]]; then echo; fi", []),
        ("export NCCL_DEBUG=INFO\nunset NCCL_DEBUG", []),
        ("make NCCL_HOME=/usr NCCL_DEBUG=1", []),
        ("cmake -DNCCL_ROOT=/usr ..", []),
        ("echo NCCL_DEBUG=INFO >> /etc/environment", [("NCCL_DEBUG", "INFO", 1)]),
        ("x=$((1 << 3)); export NCCL_DEBUG=INFO", [("NCCL_DEBUG", "INFO", 1)]),
        ("cat <<< 'x' ; export NCCL_DEBUG=INFO", [("NCCL_DEBUG", "INFO", 1)]),
        ('export A="it\'s" NCCL_DEBUG=INFO', [("NCCL_DEBUG", "INFO", 1)]),
        ("kubectl set env deployment/a NCCL_DEBUG=INFO", [("NCCL_DEBUG", "INFO", 1)]),
        ("export APPTAINERENV_NCCL_DEBUG=INFO", [("NCCL_DEBUG", "INFO", 1)]),
        (
            "apptainer exec --env NCCL_DEBUG=INFO,NCCL_NET=IB i.sif a",
            [("NCCL_DEBUG", "INFO", 1), ("NCCL_NET", "IB", 1)],
        ),
        (
            'ray job submit --runtime-env-json=\'{"env_vars": {"NCCL_DEBUG": "INFO"}}\' -- a',
            [("NCCL_DEBUG", "INFO", 1)],
        ),
        ("docker exec c bash -c \"echo '\nexport NCCL_DEBUG=INFO\n' > /tmp/e.sh\"", [("NCCL_DEBUG", "INFO", 2)]),
        ("for f in *; do NCCL_DEBUG=INFO ./a $f; done", [("NCCL_DEBUG", "INFO", 1)]),
        ("export OMP_NUM_THREADS=1 NCCL_HOME=/usr PATH=/x", []),
    ],
)
def test_shell(text: str, expected: list[tuple[str, str | None, int | None]]) -> None:
    assert pairs(shell.read(text, "a.sh")) == expected


def test_arms_of_if_and_case_do_not_meet() -> None:
    found = shell.read(
        "if a; then\n export NCCL_IB_DISABLE=1\nelif b; then\n export NCCL_NET=IB\nelse\n export NCCL_DEBUG=INFO\nfi\n"
        "export NCCL_ALGO=Ring\ncase $X in\n a) export NCCL_PROTO=LL;;\n b) export NCCL_NTHREADS=64;;\nesac\n"
    )
    by = {item.name: item for item in found}
    assert not by["NCCL_IB_DISABLE"].meets(by["NCCL_NET"])
    assert not by["NCCL_NET"].meets(by["NCCL_DEBUG"])
    assert by["NCCL_DEBUG"].meets(by["NCCL_ALGO"])
    assert not by["NCCL_PROTO"].meets(by["NCCL_NTHREADS"])
    assert by["NCCL_NTHREADS"].meets(by["NCCL_IB_DISABLE"])


def test_what_one_command_is_given_meets_exports_but_no_other_command() -> None:
    found = shell.read(
        "#SBATCH --export=ALL,NCCL_NET=IB\nNCCL_IB_DISABLE=1 ./a\nmpirun -x NCCL_IB_HCA=m ./b\nexport NCCL_DEBUG=INFO\n"
    )
    by = {item.name: item for item in found}
    assert not by["NCCL_IB_DISABLE"].meets(by["NCCL_IB_HCA"])
    assert by["NCCL_IB_DISABLE"].meets(by["NCCL_DEBUG"]) and by["NCCL_DEBUG"].meets(by["NCCL_IB_HCA"])
    assert by["NCCL_NET"].meets(by["NCCL_IB_DISABLE"])


def test_a_shell_variable_that_is_handed_on_by_its_own_name_reaches_the_job() -> None:
    text = 'NCCL_ALGO="${NCCL_ALGO:-Ring}"\nNCCL_PROTO=LL\nmpirun -x NCCL_ALGO="$NCCL_ALGO" -x NCCL_NET=IB ./a\n'
    found = {(item.name, item.value): bool(item.lost) for item in shell.read(text)}
    assert found == {
        ("NCCL_ALGO", "Ring"): False,
        ("NCCL_PROTO", "LL"): True,
        ("NCCL_ALGO", None): False,
        ("NCCL_NET", "IB"): False,
    }


def test_commands_whose_output_is_kept_are_commands_of_their_own() -> None:
    found = shell.read("a=$(NCCL_P2P_LEVEL=NVL ./a)\nif x; then\n  b=$(NCCL_P2P_DISABLE=1 ./a)\nfi\n")
    assert pairs(found) == [("NCCL_P2P_LEVEL", "NVL", 1), ("NCCL_P2P_DISABLE", "1", 3)]
    assert not found[0].meets(found[1])
    inner = shell.read("if x; then\nbash -c 'export NCCL_NET=IB; ./a'\nelse\nexport NCCL_IB_DISABLE=1\nfi\n")
    assert not inner[0].meets(inner[1])


def test_here_documents() -> None:
    text = (
        "cat <<EOF > /etc/nccl.conf\nNCCL_DEBUG=WARN # c\nEOF\n"
        "cat > x.sh <<-'END'\n\texport NCCL_ALGO=Ring\n\tEND\n"
        "python3 - <<PY\nimport os\nos.environ['NCCL_PROTO'] = 'LL'\nPY\nexport NCCL_NET=IB\n"
    )
    found = shell.read(text, "a.sh")
    assert pairs(found) == [
        ("NCCL_DEBUG", "WARN # c", 2),
        ("NCCL_ALGO", "Ring", 5),
        ("NCCL_PROTO", "LL", 9),
        ("NCCL_NET", "IB", 11),
    ]
    assert [item.how for item in found] == [How.CONF, How.EXPORT, How.PYTHON, How.EXPORT]


def test_what_a_shell_variable_holds_for_later_is_read() -> None:
    text = (
        'OPTIONS="timeout 9 -x NCCL_ALGO=Ring -mca a b"\nOPTIONS+=" -x NCCL_DEBUG=WARN"\n'
        'ENV_JSON=\'{"env_vars": {"NCCL_PROTO": "LL"}}\'\n'
        'MORE="{\n  \\"env_vars\\": {\n    \\"NCCL_NET\\": \\"${NET}\\",\n  }\n}"\n'
        'LAST=$(cat <<EOF\n{\n  "NCCL_CROSS_NIC": "1",\n  "A": "$X"\n}\nEOF\n)\n'
        "PYTHON=$(python3 - <<'PY'\nenv['NCCL_BUFFSIZE'] = '1'\nPY\n)\n"
        "BROKEN=$(python3 - <<PY\n$lines NCCL_\nPY\n)\n"
        'NAME="a-b NCCL_DEBUG=INFO"\nFILTER="grep -E NCCL_NET=IB"\nexport NCCL_NTHREADS=64\n'
    )
    assert pairs(shell.read(text)) == [
        ("NCCL_ALGO", "Ring", 1),
        ("NCCL_DEBUG", "WARN", 2),
        ("NCCL_PROTO", "LL", 3),
        ("NCCL_NET", None, 6),
        ("NCCL_CROSS_NIC", "1", 11),
        ("NCCL_BUFFSIZE", "1", 17),
        ("NCCL_NTHREADS", "64", 26),
    ]


@given(st.text(alphabet="NCL_=DEBUG$'\"`\\(){}<>;&|# \n\tabEOF-x", max_size=120))
def test_any_text_is_read_without_an_error(text: str) -> None:
    for item in shell.read("export NCCL_DEBUG=INFO\n" + text, "f"):
        assert item.line is not None and 1 <= item.line <= text.count("\n") + 2


def test_nccl_conf_is_read_as_nccl_reads_it() -> None:
    found = conf.read(
        '# c\nNCCL_DEBUG=WARN\nNCCL_SOCKET_IFNAME="eth0"\n NCCL_ALGO=x\nNCCL_NET =IB\nexport NCCL_PROTO=LL\n', "f"
    )
    assert [(item.name, item.value, item.written) for item in found] == [
        ("NCCL_DEBUG", "WARN", ""),
        ("NCCL_SOCKET_IFNAME", '"eth0"', ""),
        ("NCCL_ALGO", "x", " NCCL_ALGO"),
        ("NCCL_NET", "IB", "NCCL_NET "),
        ("NCCL_PROTO", "LL", "export NCCL_PROTO"),
    ]


@pytest.mark.parametrize(
    ("line", "release", "title"),
    [
        ("NCCL_SOCKET_IFNAME=eth0\r", "2.30.3", ""),
        ("NCCL_SOCKET_IFNAME=eth0\r", "2.29.7", "the Windows line end becomes part of the value ('eth0\\r')"),
        ('NCCL_SOCKET_IFNAME="eth0"\r', "2.30.3", "the quotes become part of the value"),
        ("NCCL_IB_TIMEOUT=21\r", "2.29.7", ""),  # what follows a number is passed over
        ("NCCL_DEBUG_FILE=/tmp/${USER}.log", "2.30.3", "no $ is filled in"),
        ("NCCL_DEBUG_FILE=/tmp/%h.log", "2.30.3", ""),
    ],
)
def test_what_becomes_part_of_a_value_in_nccl_conf(line: str, release: str, title: str) -> None:
    found = [item for item in lint.lint(conf.read(line, "f"), release) if item.id.endswith("conf-syntax")]
    assert (title in found[0].title and "\r" not in found[0].evidence[0].text) if title else not found


@pytest.mark.parametrize(
    ("script", "taken"),
    [
        ("export NCCL_NET=IB\r\n", ["IB\\r"]),
        ("export A=1 NCCL_IB_HCA=\"mlx5_0\"\r\nexport NCCL_NET='IB'\r\n", ["mlx5_0\\r", "IB\\r"]),
        ("export TORCH_NCCL_BLOCKING_WAIT=1\r\n", ["1\\r"]),  # PyTorch raises
        ("export NCCL_IB_TIMEOUT=22\r\n", []),  # what follows a number is passed over
        ("export NCCL_DEBUG=INFO\r\n", []),  # NCCL takes blanks away
        ("NCCL_NET=IB torchrun train.py\r\n", []),
        ("export NCCL_NET=IB \r\n", []),  # a word of its own, which the shell refuses
        ("export NCCL_NET=IB\n", []),
    ],
)
def test_a_shell_takes_a_windows_line_end_into_the_value(script: str, taken: list[str]) -> None:
    found = [item for item in lint.lint(shell.read(script, "f.sh"), "2.30.7") if item.id.endswith("windows-line-end")]
    assert [item.title.partition("(")[2] for item in found] == [f"'{value}')" for value in taken]
    for item in found:
        assert item.severity is Severity.FAIL and "\r" not in item.evidence[0].text
        assert item.fixes[0].command == r"sed -i 's/\r$//' f.sh"
    before = lint.lint(shell.read("export NCCL_DEBUG=INFO\r\n", "f.sh"), "2.29.7")
    assert [item.title for item in before] == [
        "NCCL_DEBUG: a shell takes the Windows line end into the value ('INFO\\r')"
    ]


def test_a_windows_line_end_of_an_env_file_harms_where_a_shell_reads_it() -> None:
    def told(text: str, file: str) -> list[tuple[Severity, str]]:
        found = lint.lint(env_file.read(text, file), "2.30.7")
        assert not any("\r" in item.evidence[0].text for item in found)
        return [(item.severity, item.title) for item in found if item.id.endswith("windows-line-end")]

    ((severity, title),) = told('NCCL_NET="IB"\r\nNCCL_IB_TIMEOUT=22\r\n', "job.env")
    assert severity is Severity.WARN and title == (
        "NCCL_NET: a shell that reads this file (. FILE, export $(cat FILE)) takes the Windows line end into the value "
        "('IB\\r')"
    )
    assert not told("NCCL_NET=IB\n", "job.env") and not told("NCCL_NET=IB\r\n", "/root/.deepspeed_env")
    assert not told("Environment=NCCL_NET=IB\r\n", "job.service")


@pytest.mark.parametrize(
    ("name", "text", "lost"),
    [
        ("a.sh", "export NCCL_NET=IB\nexport NCCL_PROTO=LL\n", "NCCL_NET"),
        ("a", "#!/bin/sh\nexport NCCL_NET=IB\n", ""),  # the mark spoils the first line only
        ("a.env", "NCCL_NET=IB\n", ""),  # Docker takes it away
        ("a.py", 'import os\nos.environ["NCCL_NET"] = "IB"\n', ""),
        ("a.yaml", "env:\n  NCCL_NET: IB\n", ""),
    ],
)
def test_a_byte_order_mark_hides_no_line(name: str, text: str, lost: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(f"\ufeff{text}", encoding="utf-8")
    reading = files.read([str(tmp_path / name)])
    assert "NCCL_NET" in [item.name for item in reading.assignments] and not reading.problems
    found = [item for item in lint.lint(reading.assignments, "2.30.7") if "byte order mark" in item.title]
    assert [item.title.partition(" ")[0] for item in found] == [lost] * bool(lost)
    for item in found:
        assert item.fixes[0].command.startswith(r"sed -i '1s/^\xEF\xBB\xBF//' ")


def test_lines_of_a_shell_in_a_yaml_file_are_not_called_good() -> None:
    for text in ("NCCL_TIMEOUT=5\nNCCL_DEBUG=ERROR\n", "export NCCL_DEBUG=ERROR\n"):
        with pytest.raises(yaml_file.BadYaml, match="no mapping"):
            yaml_file.read(text)
    assert not yaml_file.read("a text about NCCL_DEBUG=ERROR\n")


def test_env_files() -> None:
    text = (
        'NCCL_DEBUG="INFO"\nexport NCCL_ALGO=Ring  # why\n#NCCL_PROTO=LL\nEnvironment="NCCL_NET=IB"\nNCCL_IB_HCA=$X\n'
    )
    assert pairs(env_file.read(text)) == [
        ("NCCL_DEBUG", "INFO", 1),
        ("NCCL_ALGO", "Ring", 2),
        ("NCCL_NET", "IB", 4),
        ("NCCL_IB_HCA", None, 5),
    ]
    several = "Environment=NCCL_DEBUG=INFO \"NCCL_ALGO=a b\" X=1 'NCCL_NET=IB'\n#Environment=NCCL_PROTO=LL\n"
    assert pairs(env_file.read(several)) == [("NCCL_DEBUG", "INFO", 1), ("NCCL_ALGO", "a b", 1), ("NCCL_NET", "IB", 1)]


@pytest.mark.parametrize("line", ["CMD 5", 'CMD "NCCL_DEBUG=INFO"', "CMD [NCCL_DEBUG=INFO"])
def test_a_command_of_a_dockerfile_that_is_no_list_is_a_command_line(line: str) -> None:
    assert pairs(docker.read(f"FROM x\n{line}\n")) == []


def test_dockerfile() -> None:
    text = (
        'FROM x\nENV NCCL_DEBUG=INFO \\\n  # comment\n  NCCL_ALGO="Ring"\nENV NCCL_NET IB\nARG NCCL_PROTO=LL\n'
        "RUN export NCCL_NTHREADS=64 && make\nRUN echo NCCL_IB_TIMEOUT=22 >> /etc/nccl.conf\n"
        'CMD ["bash", "-c", "NCCL_CROSS_NIC=1 python a.py"]\n'
    )
    found = docker.read(text)
    assert pairs(found) == [
        ("NCCL_DEBUG", "INFO", 2),
        ("NCCL_ALGO", "Ring", 4),
        ("NCCL_NET", "IB", 5),
        ("NCCL_IB_TIMEOUT", "22", 8),
        ("NCCL_CROSS_NIC", "1", 9),
    ]
    assert {item.name for item in found if item.lost} == {"NCCL_PROTO", "NCCL_NTHREADS"}


def test_yaml() -> None:
    text = (
        "env:\n  - name: NCCL_DEBUG\n    value: INFO\n  - {name: NCCL_ALGO, value: 1}\nmap:\n  NCCL_PROTO: LL\n"
        "list: [NCCL_NET=IB, '-x', NCCL_IB_HCA=mlx5_0]\nrun: |\n  set -e\n  export NCCL_CROSS_NIC=1\n"
        "nccl.conf: |\n  NCCL_NTHREADS = 64\nother: {NCCL_SHM_DISABLE: no}\n"
    )
    found = yaml_file.read(text)
    assert pairs(found) == [
        ("NCCL_DEBUG", "INFO", 3),
        ("NCCL_ALGO", "1", 4),
        ("NCCL_PROTO", "LL", 6),
        ("NCCL_NET", "IB", 7),
        ("NCCL_IB_HCA", "mlx5_0", 7),
        ("NCCL_CROSS_NIC", "1", 10),
        ("NCCL_SHM_DISABLE", "no", 13),
    ]
    kinds = {item.name: item.not_text for item in found}
    assert kinds["NCCL_ALGO"] == "integer" and kinds["NCCL_SHM_DISABLE"] == "boolean" and not kinds["NCCL_DEBUG"]


def test_yaml_templates_are_read_with_placeholders_and_their_conditions_as_arms() -> None:
    text = (
        "{{ if .x }}\nenv:\n  - name: NCCL_DEBUG\n    value: {{ .y }}\n"
        "  - name: NCCL_ALGO\n    value: Ring\n{{ else }}\nenv:\n  - name: NCCL_ALGO\n    value: Tree\n{{ end }}\n"
        "args:\n  - |\n    {{- range .hosts }}\n    export NCCL_CROSS_NIC=1\n    {{- end }}\n"
        "    NCCL_SOCKET_IFNAME=eth0 python3 serve.py --model {{ .model }} \\\n      --port 1\n"
        "{{/* a comment\nof two lines */}}\nlast: {NCCL_PROTO: {{ .p }}}\n"
    )
    found = yaml_file.read(text)
    assert pairs(found) == [
        ("NCCL_DEBUG", None, 4),
        ("NCCL_ALGO", "Ring", 6),
        ("NCCL_ALGO", "Tree", 10),
        ("NCCL_CROSS_NIC", "1", 15),
        ("NCCL_SOCKET_IFNAME", "eth0", 17),
        ("NCCL_PROTO", None, 21),
    ]
    one, other = (item for item in found if item.name == "NCCL_ALGO")
    assert not one.meets(msgspec.structs.replace(other, scope=one.scope))


def test_conditions_of_a_template_end_where_they_are_closed() -> None:
    text = "{% if a %}\n{% with b %}\none: {NCCL_DEBUG: INFO}\n{% endwith %}\n{% endif %}\ntwo: {NCCL_ALGO: Ring}\n"
    assert [len(item.branch) for item in yaml_file.read(text)] == [2, 0]


def test_blocks_that_are_never_closed_cost_no_more_than_the_text() -> None:
    deep = shell.read("if a; then\nexport NCCL_DEBUG=INFO\n" * 10_000)
    assert len(deep) == 10_000 and len(deep[-1].branch) == MAX_ARMS
    opened, closed = "{% if a %}\n" * 30, "{% endif %}\n" * 30
    items = yaml_file.read(f"{opened}one: {{NCCL_DEBUG: INFO}}\n{closed}two: {{NCCL_ALGO: Ring}}\n")
    assert [len(item.branch) for item in items] == [MAX_ARMS, 0]


def test_braces_of_envsubst_within_braces_of_yaml() -> None:
    text = "env:\n- {name: NCCL_DEBUG, value: ${LEVEL}}\n- {name: NCCL_ALGO, value: Ring}\n"
    assert pairs(yaml_file.read(text)) == [("NCCL_DEBUG", None, 2), ("NCCL_ALGO", "Ring", 3)]
    nameless = "env:\n- value: NCCL_DEBUG\n- {name: [NCCL_DEBUG], value: INFO}\n- {name: NCCL_ALGO, value: Ring}\n"
    assert pairs(yaml_file.read(nameless)) == [("NCCL_ALGO", "Ring", 4)]


def test_every_document_of_a_yaml_file_is_read() -> None:
    """The nodes of a document are freed when the next one is made: their ids tell nothing any more."""
    one = "kind: {kind}\nspec:\n  env:\n  - name: NCCL_DEBUG\n    value: WARN\n  - name: A\n    value: b\n"
    assert len(yaml_file.read("---\n".join(one.format(kind=number) for number in range(60)))) == 60


def test_a_file_inside_a_yaml_file_keeps_its_lines_and_stands_for_itself() -> None:
    """A ConfigMap: the lines of its files were counted from their own beginnings, and ``--fix`` would have hit others."""
    text = "data:\n  a.env: |\n    # of one job\n    NCCL_DEBUG=INFO\n  b.env: |\n    NCCL_DEBUG=WARN\n"
    first, second = yaml_file.read(text, "map.yaml")
    assert [(item.value, item.line) for item in (first, second)] == [("INFO", 4), ("WARN", 6)]
    assert not first.meets(second)


def test_null_in_yaml_sets_nothing() -> None:
    assert yaml_file.read("env_vars:\n  NCCL_DEBUG: null\n  NCCL_PROTO: ~\n  NCCL_ALGO:\n") == []
    found = yaml_file.read("env:\n- name: NCCL_DEBUG\n  value:\n")
    assert pairs(found) == [("NCCL_DEBUG", "", 3)] and not found[0].not_text


def test_a_command_over_several_lines_of_yaml_is_quoted_line_by_line() -> None:
    text = "args:\n- mpirun -np 8\n  -x NCCL_ALGO=Tree\n  -x NCCL_DEBUG=WARN\n  all_reduce_perf\nb: >\n  export\n  NCCL_PROTO=LL\n"
    found = yaml_file.read(text)
    assert [(item.line, item.text) for item in found] == [
        (3, "-x NCCL_ALGO=Tree"),
        (4, "-x NCCL_DEBUG=WARN"),
        (8, "NCCL_PROTO=LL"),
    ]


def test_yaml_within_yaml() -> None:
    text = "data:\n  run: |\n    x\n  job.yaml: |\n    env:\n    - name: NCCL_DEBUG\n      value: WARN\n  broken.yml: |\n    NCCL_A: [\n"
    assert pairs(yaml_file.read(text)) == [("NCCL_DEBUG", "WARN", 7)]


def test_yaml_bombs_cost_no_more_than_their_size() -> None:
    lines = ["a0: &a0 {NCCL_DEBUG: INFO}"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 20)}]" for n in range(1, 12)]
    assert len(yaml_file.read("\n".join(lines))) == 1


@pytest.mark.parametrize(
    "text", ["NCCL_DEBUG: " + "[" * 5000, "NCCL_DEBUG: [1", "NCCL_DEBUG: *nothing", "a: b: NCCL_DEBUG"]
)
def test_bad_yaml_is_said(text: str) -> None:
    with pytest.raises(yaml_file.BadYaml):
        yaml_file.read(text)


def test_python() -> None:
    text = (
        "import os\nos.environ['NCCL_DEBUG'] = 'INFO'\nos.environ['NCCL_IB_TIMEOUT'] = 22\n"
        "os.environ.setdefault('NCCL_ALGO', 'Ring')\nos.environ.update({'NCCL_PROTO': 'LL'}, NCCL_NET='IB')\n"
        "os.putenv('NCCL_CROSS_NIC', str(1))\nenv = dict(os.environ, NCCL_NTHREADS=f'{x}')\n"
        "x = os.environ.get('NCCL_BUFFSIZE', '1')\n"
        "if a:\n    os.environ['NCCL_SHM_DISABLE'] = '1'\nelse:\n    os.environ['NCCL_P2P_DISABLE'] = '1'\n"
    )
    found = python_source.read(text)
    assert pairs(found) == [
        ("NCCL_DEBUG", "INFO", 2),
        ("NCCL_IB_TIMEOUT", "22", 3),
        ("NCCL_ALGO", "Ring", 4),
        ("NCCL_PROTO", "LL", 5),
        ("NCCL_NET", "IB", 5),
        ("NCCL_CROSS_NIC", "1", 6),
        ("NCCL_NTHREADS", None, 7),
        ("NCCL_SHM_DISABLE", "1", 10),
        ("NCCL_P2P_DISABLE", "1", 12),
    ]
    by = {item.name: item for item in found}
    assert by["NCCL_IB_TIMEOUT"].not_text == "int"
    assert not by["NCCL_SHM_DISABLE"].meets(by["NCCL_P2P_DISABLE"])


def test_python_command_lines_and_calls_that_set() -> None:
    text = (
        'run = ["mpirun", "-x", "NCCL_ALGO=Ring", "-x", f"NCCL_IB_HCA={hcas}", "-v", "NCCL_DEBUG=WARN"]\n'
        'command = f"mpirun -np {n} -x NCCL_PROTO=LL -x NCCL_NET={net} ./a"\n'
        'note = "set NCCL_NTHREADS=64 if you like"\n'
        'V1EnvVar(name="NCCL_BUFFSIZE", value=str(4))\nset_env_var("NCCL_CROSS_NIC", "1")\n'
        'env = [{"name": "NCCL_NSOCKS_PERTHREAD", "value": "2"}]\n'
        'os.getenv("NCCL_SHM_DISABLE", "1")\n'
    )
    assert pairs(python_source.read(text)) == [
        ("NCCL_ALGO", "Ring", 1),
        ("NCCL_IB_HCA", None, 1),
        ("NCCL_PROTO", "LL", 2),
        ("NCCL_NET", None, 2),
        ("NCCL_BUFFSIZE", "4", 4),
        ("NCCL_CROSS_NIC", "1", 5),
        ("NCCL_NSOCKS_PERTHREAD", "2", 6),
    ]


@pytest.mark.parametrize("text", ["NCCL_DEBUG = (", "NCCL = " + "(" * 3000 + "1" + ")" * 3000, "NCCL_DEBUG\0"])
def test_bad_python_is_said(text: str) -> None:
    with pytest.raises(SyntaxError):
        python_source.read(text)


def test_log() -> None:
    lines = [
        "gpu01:77:77 [0] NCCL INFO NCCL version 2.21.5+cuda12.4",
        "gpu01:77:90 [0] NCCL INFO NCCL_IB_DISABLE set by environment to 1.",
        "[1,0]<stdout>:gpu02:12:13 [3] NCCL INFO NCCL_SOCKET_IFNAME set by environment to ^docker0",
        "gpu01:77:90 [0] NCCL INFO NCCL_IB_DISABLE set by environment to 1.",
        "gpu01:77:90 [0] NCCL INFO Invalid value 99999999999999999999 for NCCL_BUFFSIZE, using default -2.",
        "x" * 100_000 + " NCCL INFO NCCL_ALGO set by environment to Ring",
    ]
    reading = log.read(lines, "job.log")
    assert reading.nccl_version == "2.21.5"
    assert [(item.host, item.name, item.value, item.line) for item in reading.assignments] == [
        ("gpu01", "NCCL_IB_DISABLE", "1", 2),
        ("gpu02", "NCCL_SOCKET_IFNAME", "^docker0", 3),
    ]
    assert [(item.name, item.value) for item in reading.refused] == [("NCCL_BUFFSIZE", "99999999999999999999")]


@pytest.mark.parametrize(
    "text",
    [
        '"' + "$(a)" * 5000,
        "'" * 4001,
        "$(" * 50_000,
        "$(a $(b $(c $(d " * 20_000,
        "`" * 50_001,
        '"' + "${a}" * 20_000,
        " " * 500_000 + "x",
        "=" * 200_000,
        "a\\\n" * 50_000,
        "<<E\n" * 3000,
        "[\n" + "{{ } } " * 100_000,
        "[\n" + "{% } {{ % } }" * 100_000,
        "{{ if a }}\n" * 50_000,
        "${" * 100_000,
        "a" * 500_000,
    ],
    ids=range(15),
)
def test_no_text_takes_more_than_one_pass(text: str) -> None:
    """Exponential or cubic reading would not end: this is no timing test."""
    full = f"export NCCL_DEBUG=INFO\nNCCL_ALGO={text}\n"
    for reader in (shell.read, env_file.read, docker.read):
        reader(full, "f")
    docker.read(f"FROM a\nENV NCCL_DEBUG=INFO {text}\n", "f")
    conf.read(full, "f")
    log.read(["NCCL INFO NCCL_ALGO set by environment to " + text, "a" * 4000 + ":1:1 [0] " + text], "f")
    with contextlib.suppress(yaml_file.BadYaml):
        yaml_file.read(f"NCCL_ALGO: {text}", "f")
