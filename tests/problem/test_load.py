"""A problem folder loads, or fails with one line that names file, place and remedy."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from grader.judge.correctness.check import tolerance_of
from grader.problem import Problem, ProblemError
from grader.problem.load import FILE_BYTES
from tests.problem.conftest import YAML, MakeFolder


def test_a_valid_folder(make_folder: MakeFolder) -> None:
    problem = Problem.load(make_folder())
    assert problem.name == "scale"
    assert problem.statement == "# Scale\n"
    assert [case.name for case in problem.cases("test", "cpu")] == ["tiny", "wide"]
    assert problem.cases("benchmark", "cpu") == []
    (large,) = problem.cases("benchmark", "cuda")
    x = problem.spec.args[0]
    assert problem.shape(x, large) == (4096, 4096)
    assert problem.dtype(x, large) == "fp32"
    assert problem.bytes(large) == 2 * 4096 * 4096 * 4
    assert problem.flops(large) == 4096 * 4096
    assert problem.spec.tolerances["fp32"].atol == 1e-6  # written without a dot


@pytest.mark.parametrize(
    ("number", "flops"), [("5", 5), ("0", 0), ("2.5", 2.5), ("1e12", 1e12), ('"7"', 7)]
)
def test_a_plain_number_is_a_formula(make_folder: MakeFolder, number: str, flops: float) -> None:
    problem = Problem.load(make_folder("flops: rows * cols", f"flops: {number}"))
    assert problem.flops(problem.spec.benchmarks[0]) == flops


def test_a_problem_may_name_a_gpu_type(make_folder: MakeFolder) -> None:
    folder = make_folder("entry: scale", "gpu: A100 80GB\nentry: scale")
    assert Problem.load(folder).spec.gpu == "A100 80GB"
    with pytest.raises(ProblemError, match=r"problem.yaml: gpu: string should match pattern"):
        (folder / "problem.yaml").write_text(
            (folder / "problem.yaml").read_text().replace("A100 80GB", "<b>A100")
        )
        Problem.load(folder)


ROW = "{name: tiny, params: {rows: 1, cols: 3, dtype: fp32}}"
X = "{name: x, role: in, dtype: dtype, shape: [rows, cols]}"
OUT = "{name: out, role: out, dtype: dtype, shape: [rows, cols]}"
ARGS = f"  - {X}\n  - {OUT}\n"


def with_key(argument: str, key: str) -> str:
    return f"{argument[:-1]}, {key}}}"


ARGS_WITH_WEIGHT = (
    f"  - {with_key(X, 'weight: true')}\n"
    "  - {name: y, dtype: dtype, shape: [rows, cols]}\n"
    f"  - {OUT}\n"
)

BAD = [
    # keys and types
    (ROW, "{name: tiny, parms: {}}", "tests[0].parms: unknown key; did you mean 'params'?"),
    ("atol:", "atoll:", "tolerances.fp32.atoll: unknown key; did you mean 'atol'?"),
    ("entry:", "enty:", "enty: unknown key; did you mean 'entry'?"),
    ("bytes:", "weight:", "cost.weight: unknown key; known keys: bytes, flops, unit"),
    ("entry: scale\n", "", "entry: missing"),
    ("format: 1", "format: 2", "format: input should be 1, got 2"),
    ("format: 1", 'format: "1"', "format: input should be 1, got '1'"),
    ("role: in,", "role: inn,", "args[0].role: input should be 'in', 'out' or 'inout', got 'inn'"),
    (
        "title: Scale",
        "title: [Scale]",
        "title: input should be a valid string, got ['Scale']",
    ),
    (
        ROW,
        '{name: tiny, calls: "3", params: {rows: 1, cols: 3, dtype: fp32}}',
        "tests[0].calls: input should be a valid integer, got '3'",
    ),
    (
        "name: tiny",
        "name: Tiny-1",
        "tests[0].name: string should match pattern '^[a-z][a-z0-9_]{0,63}$', got 'Tiny-1'",
    ),
    ("flops: rows * cols", "flops: yes", "cost.flops: input should be a valid string, got True"),
    ("flops: rows * cols", "flops: -5", "cost.flops: "),
    (
        "2 * rows * cols * itemsize",
        "0 * rows",
        "cost.bytes: 0 in case 'tiny'; every call writes its outputs",
    ),
    # YAML
    ("title: Scale", "title: Scale\ntitle: Other", "title: given twice"),
    ("rows: 1,", "rows: 1, rows: 2,", "tests[0].params.rows: given twice"),
    ("atol: 1e-6", "atol: .nan", "tolerances.fp32.atol: nan is not a finite number"),
    ("atol: 1e-6", "atol: -.inf", "tolerances.fp32.atol: -inf is not a finite number"),
    ("atol: 1e-6", "atol: 1e999", "tolerances.fp32.atol: inf is not a finite number"),
    ("rows: 1,", f"rows: {2**63},", f"tests[0].params.rows: {2**63} does not fit in 64 bits"),
    ("rows: 1,", "rows: 0x10,", "tests[0].params.rows: 0x10 is not a plain decimal number"),
    ("rows: 1,", "rows: 010,", "tests[0].params.rows: 010 is not a plain decimal number"),
    ("rows: 1,", "rows: 1_000,", "tests[0].params.rows: 1_000 is not a plain decimal number"),
    ("rows: 1,", "rows: 1:30,", "tests[0].params.rows: 1:30 is not a plain decimal number"),
    ("rows: 1,", "rows: 0b11,", "tests[0].params.rows: 0b11 is not a plain decimal number"),
    ("atol: 1e-6", "atol: 1_0.5", "tolerances.fp32.atol: 1_0.5 is not a plain decimal number"),
    ("rows: 1,", "1: 1,", "tests[0].params: key 1 is not text; put it in quotes"),
    (
        "title: Scale",
        "title: 2026-01-01",
        "title: a YAML date is not supported; put it in quotes",
    ),
    ("title: Scale", "title: &a Scale\nx: *a", "alias *a is not supported; write it out"),
    ("title: Scale", "title: " + "[" * 13 + "]" * 13, "nested more than 12 deep"),
    ("title: Scale", "title: [", None),
    (
        "title: Scale",
        "title: !!python/object:os.system x",
        "line 2: tag !!python/object:os.system is not supported; leave it out",
    ),
    # PyYAML raises built-in exceptions for these.
    (
        "title: Scale",
        "title: !!timestamp xx",
        "line 2: tag !!timestamp is not supported; leave it out",
    ),
    ("title: Scale", "title: !!bool xx", "line 2: tag !!bool is not supported; leave it out"),
    ("title: Scale", "title: !!int ''", "line 2: tag !!int is not supported; leave it out"),
    # arguments
    ("name: out", "name: x", "args[1].name: 'x' is used twice"),
    ("name: x", "name: float", "args[0].name: 'float' is a word of C++ or Python"),
    ("name: x", "name: lambda", "args[0].name: 'lambda' is a word of C++ or Python"),
    ("entry: scale", "entry: return", "entry: 'return' is a word of C++ or Python"),
    (
        "role: out",
        "role: in",
        "args: no argument is out or inout; a call must have an output",
    ),
    # names in C
    *(
        (
            "entry: scale",
            f"entry: {name}",
            f"entry: '{name}' is a function of C, POSIX or CUDA, which a .cu file cannot define; ",
        )
        for name in ("main", "malloc", "exp", "expf", "sqrt", "printf", "rsqrt", "gammal", "write")
    ),
    ("entry: scale", "entry: int", "entry: 'int' is a word of C++ or Python"),
    ("entry: scale", "entry: nullptr", "entry: 'nullptr' is a word of C++ or Python"),
    ("entry: scale", "entry: size_t", "entry: 'size_t' has a meaning in C++ or CUDA; choose"),
    ("name: x", "name: int64_t", "args[0].name: 'int64_t' has a meaning in C++ or CUDA; choose"),
    (
        "name: x",
        "name: stream",
        "args[0].name: the C prototype has 'stream' twice, for 'stream' and for the stream; choose",
    ),
    (
        f"  - {X}\n",
        "  - {name: x, dtype: fp32, shape: [rows], contiguous: false}\n"
        "  - {name: x_strides, dtype: fp32, shape: [rows]}\n",
        "args[1].name: the C prototype has 'x_strides' twice, for 'x_strides' and for 'x'; choose",
    ),
    (
        f"  - {X}\n",
        "  - {name: x_count, kind: scalar, dtype: int64}\n"
        "  - {name: x, kind: tensors, dtype: fp32}\n",
        "args[1].name: the C prototype has 'x_count' twice, for 'x' and for 'x_count'; choose",
    ),
    (
        f"  - {X}\n",
        "  - {name: x_lengths, kind: scalar, dtype: int64}\n"
        "  - {name: x, kind: tensors, dtype: fp32}\n",
        "args[1].name: the C prototype has 'x_lengths' twice, for 'x' and for 'x_lengths'; choose",
    ),
    # texts
    (
        "title: Scale",
        r'title: "Sc\eale"',
        "title: the character U+001B is invisible; remove it",
    ),
    ("title: Scale", r'title: "Sc\u202eale"', "title: the character U+202E is invisible"),
    ("title: Scale", r'title: "Scale\nTwice"', "title: string should match pattern"),
    ("title: Scale", r'title: " \n "', "title: string should match pattern"),
    ("summary: Every", r'"summ\ary": Every', "top level: the character U+0007 is invisible"),
    (
        "cols: 3, dtype",
        r'cols: 3, word: "\x7f", dtype',
        "tests[0].params.word: the character U+007F",
    ),
    # limits
    *(
        (
            "tests:",
            f"limits: {{{key}: {value}}}\ntests:",
            f"limits.{key}: input should be greater than or equal to {least}, got {value}",
        )
        for key, value, least in [
            ("call_s", "1e-09", "0.1"),
            ("load_s", "0.01", "0.1"),
            ("total_s", "1", "10"),
            ("memory_bytes", "1", 1 << 29),
            ("device_memory_bytes", "1000", 1 << 26),
            ("scratch_bytes", "4096", 1 << 24),
            ("output_bytes", "1", 1 << 12),
            ("pids", "1", 64),
            ("source_bytes", "1", 1 << 10),
        ]
    ),
    (
        X,
        "{name: x, dtype: fp32}",
        "args[0].shape: missing; a tensor has a formula for each dimension",
    ),
    (
        X,
        "{name: x, kind: scalar, dtype: fp64, shape: [rows]}",
        "args[0].shape: a scalar has no shape; remove it",
    ),
    (
        X,
        "{name: x, kind: tensors, dtype: fp32, shape: [rows]}",
        "args[0].shape: a list of tensors has no shape; remove it",
    ),
    (
        X,
        "{name: x, kind: scalar, dtype: fp32}",
        "args[0].dtype: a scalar is one of int64, fp64, bool, not 'fp32'",
    ),
    (
        OUT,
        "{name: out, role: out, kind: scalar, dtype: fp64}",
        "args[1].role: a scalar is always in",
    ),
    (
        OUT,
        "{name: out, role: out, kind: tensors, dtype: fp32}",
        "args[1].role: a list of tensors is in or inout; out is not supported",
    ),
    (
        OUT,
        "{name: out, role: out, dtype: dtype, shape: [rows, cols], contiguous: false}",
        "args[1].contiguous: only an in tensor may have other strides",
    ),
    (
        OUT,
        "{name: out, role: out, dtype: dtype, shape: [rows, cols], structured: true}",
        "args[1].structured: only an in tensor, or a list of them, may be",
    ),
    (
        X,
        "{name: x, kind: scalar, dtype: fp64, structured: true}",
        "args[0].structured: only an in tensor, or a list of them, may be",
    ),
    # strides of an output
    (OUT, with_key(OUT, "strides: [1]"), "args[1].strides: 1 for 2 dimensions"),
    (
        OUT,
        with_key(OUT, "strides: [1, 1]"),
        "args[1].strides: strides [1, 1] of shape [2, 99] in case 'wide' make elements of an "
        "output share memory",
    ),
    (
        OUT,
        with_key(OUT, "strides: [cols, rows - 1]"),
        "args[1].strides: 'rows - 1' is 0 in case 'tiny'; a stride is a whole number of at least 1",
    ),
    (OUT, with_key(OUT, "strides: [cols, +]"), "args[1].strides[1]: formula '+' does"),
    (
        X,
        with_key(X, "strides: [1, rows]"),
        "args[0].strides: only an out tensor has some; see 'contiguous'",
    ),
    (
        OUT,
        "{name: out, role: inout, dtype: dtype, shape: [rows, cols], strides: [1, rows]}",
        "args[1].strides: only an out tensor has some; see 'contiguous'",
    ),
    # weights, and outputs of several right values
    (
        OUT,
        with_key(OUT, "weight: true"),
        "args[1].weight: only an in tensor, or a list of them, is a weight",
    ),
    (
        X,
        "{name: x, kind: scalar, dtype: fp64, weight: true}",
        "args[0].weight: only an in tensor, or a list of them, is a weight",
    ),
    (OUT, with_key(OUT, "scratch: true"), "args[1].scratch: only an in tensor that is no weight"),
    (
        X,
        with_key(X, "optional: true"),
        "args[0].optional: only an out tensor with one right value may be",
    ),
    (
        OUT,
        with_key(OUT, "optional: true"),
        "args: every output is optional; then a call need not do anything",
    ),
    (
        OUT,
        f"{OUT}\n  - {{name: count, role: out, dtype: int32, shape: [rows], optional: true}}",
        "args: 'count' is optional, and of int32 in case 'tiny', where nothing shows that it was",
    ),
    (
        X,
        with_key(X, "weight: true"),
        "args: every input is a weight; then every call would be the same",
    ),
    (
        ARGS,
        ARGS_WITH_WEIGHT.replace("name: y", "name: prepared"),
        "args: 'prepared' is what a setup has made of the weights; choose another name",
    ),
    (
        ARGS,
        f"{ARGS_WITH_WEIGHT}nested: {{prepared: [y]}}\n",
        "args: 'prepared' is what a setup has made of the weights; choose another name",
    ),
    (
        X,
        with_key(X, "unique: false"),
        "args[0].unique: only an out tensor may have several right values",
    ),
    (
        OUT,
        "{name: out, role: inout, dtype: dtype, shape: [rows, cols], unique: false}",
        "args[1].unique: only an out tensor may have several right values",
    ),
    # nested parameters
    *(
        ("cuda_dtypes:", f"nested: {{{nested}}}\ncuda_dtypes:", f"nested.{message}")
        for nested, message in [
            ("p: x", "p: must be a list or a mapping of names of arguments"),
            ("p: []", "p: must be a list or a mapping of names of arguments"),
            ("p: [{a: []}]", "p: must be a list or a mapping of names of arguments"),
            ("p: [x, outs]", "p: 'outs' is no argument; did you mean 'out'?"),
            ("p: [x, 3]", "p: 3 is no argument"),
            ("p: [x], q: {a: x}", "q: 'x' is in nested.p already"),
            ("p: [x, {a: x}]", "p: 'x' is in nested.p already"),
            ("class: [x]", "class: 'class' is a word of C++ or Python"),
            ("out: [x]", "out: an argument has this name; choose another"),
        ]
    ),
    (
        ARGS,
        f"{ARGS_WITH_WEIGHT}nested: {{p: [x, y]}}\n",
        "nested.p: has weights and other arguments; part them",
    ),
    # dtypes
    (
        "dtype: dtype",
        "dtype: fp33",
        "args[0].dtype: 'fp33' is neither a dtype nor a parameter of case 'tiny'; "
        "did you mean 'fp32'?",
    ),
    (
        "cols: 3, dtype: fp32",
        "cols: 3, dtype: float32",
        "args[0].dtype: parameter 'dtype' of case 'tiny' is 'float32', which is no dtype",
    ),
    (
        "cols: 3, dtype: fp32",
        "cols: 3, dtype: fp16",
        "tolerances: none for fp16, the dtype of 'out' in case 'tiny'",
    ),
    ("  fp32: {atol", "  fp23: {atol", "tolerances.fp23: no such dtype; did you mean 'fp32'?"),
    ("  fp32: {atol", "  int32: {atol", "tolerances.int32: outputs of this dtype must be exact"),
    (
        "name: x, role: in,",
        "name: x, role: in, tolerances: {fp32: {atol: 0, rtol: 0, rel_l2: 1}},",
        "args[0].tolerances: only an output has some",
    ),
    (
        "name: tiny,",
        "name: tiny, tolerances: {x: {atol: 0, rtol: 0, rel_l2: 1}},",
        "tests[0].tolerances.x: no such dtype",
    ),
    (
        "cuda_dtypes: [fp32]\n",
        "",
        "cuda_dtypes: missing; the dtype of arguments is the parameter 'dtype', "
        "so say which dtypes a .cu file needs a symbol for",
    ),
    ("[fp32]", "[fp32, fp32]", "cuda_dtypes[1]: 'fp32' is given twice"),
    ("[fp32]", "[f32]", "cuda_dtypes[0]: no such dtype; did you mean 'fp32'?"),
    # formulas
    ("shape: [rows, cols]", "shape: [rows +, cols]", "args[0].shape[0]: formula 'rows +' does"),
    (
        "shape: [rows, cols]",
        "shape: [row, cols]",
        "args[0].shape: 'row' needs 'row', which case 'tiny' does not have; did you mean 'rows'?",
    ),
    (
        "shape: [rows, cols]",
        "shape: [rows / 2, cols]",
        "args[0].shape: 'rows / 2' is 0.5 in case 'tiny'; "
        "a size is a whole number of at least 1 (divide with //)",
    ),
    (
        "shape: [rows, cols]",
        "shape: [rows - 1, cols]",
        "args[0].shape: 'rows - 1' is 0 in case 'tiny'; "
        "a size is a whole number of at least 1 (divide with //)",
    ),
    (
        "shape: [rows, cols]",
        "shape: [rows * 2 ** 41, cols]",
        f"args[0].shape: ({2**41}, 3) in case 'tiny' is too large",
    ),
    (
        "flops: rows * cols",
        "flops: rows * cola",
        "cost.flops: 'rows * cola' needs 'cola', which case 'tiny' does not have; "
        "did you mean 'cols'?",
    ),
    ("flops: rows * cols", "flops: 2 ** 999", "cost.flops: exponents are whole numbers from 0"),
    (
        "flops: rows * cols",
        "flops: 0 - rows",
        "cost.flops: '0 - rows' is -1 in case 'tiny'; a cost is never < 0",
    ),
    ("flops: rows * cols", "flops: dtype", "cost.flops: 'dtype' is 'fp32', not a number"),
    # cases
    ("name: wide", "name: tiny", "tests[1].name: 'tiny' is already tests[0].name"),
    ("name: large", "name: tiny", "benchmarks[0].name: 'tiny' is already tests[0].name"),
    ("rows: 1,", "rows: [1],", "tests[0].params.rows: must be a number, true or false, or a word"),
    ("rows: 1,", "rows: 1, call: 2,", "tests[0].params.call: the name 'call' is reserved;"),
    (
        "rows: 1,",
        "rows: 1, a-b: 2,",
        "tests[0].params.a-b: a parameter is named in letters, digits and underscores",
    ),
    (
        "name: wide,",
        "name: wide, calls: 3,",
        "tests[1].calls: 3 calls need an inout argument",
    ),
]


@pytest.mark.parametrize(("old", "new", "message"), BAD, ids=range(len(BAD)))
def test_a_bad_spec_is_refused(
    make_folder: MakeFolder, old: str, new: str, message: str | None
) -> None:
    folder = make_folder(old, new)
    with pytest.raises(ProblemError) as caught:
        Problem.load(folder)
    text = str(caught.value)
    assert "\n" not in text
    assert text.startswith(f"{folder / 'problem.yaml'}: {message or ''}")


@pytest.mark.parametrize("content", [b"", b"# nothing\n", b"- a list\n", b"\xff\xfe\x00", b"\x00"])
def test_a_file_that_is_no_spec(make_folder: MakeFolder, content: bytes) -> None:
    folder = make_folder()
    (folder / "problem.yaml").write_bytes(content)
    with pytest.raises(ProblemError, match=r"problem\.yaml: "):
        Problem.load(folder)


@pytest.mark.parametrize("name", ["stream", "blockIdx", "INT_MAX", "double", "x", "int64_t"])
def test_a_dimension_needs_a_name_that_is_valid_in_c(make_folder: MakeFolder, name: str) -> None:
    folder = make_folder()
    path = folder / "problem.yaml"
    path.write_text(path.read_text().replace("rows", name))
    with pytest.raises(ProblemError, match=rf"params\.{name}: a dimension cannot have this name"):
        Problem.load(folder)


def test_a_parameter_that_is_no_dimension_may_have_any_name(make_folder: MakeFolder) -> None:
    Problem.load(make_folder("cols: 3, dtype", "cols: 3, stream: 1, dtype"))


def test_an_argument_may_be_named_like_a_function(make_folder: MakeFolder) -> None:
    """`gamma` is a function of C, and a usual name of a weight."""
    assert Problem.load(make_folder("name: x", "name: gamma")).spec.args[0].name == "gamma"


def test_a_folded_text_is_one_line(make_folder: MakeFolder) -> None:
    problem = Problem.load(make_folder("title: Scale", "title: >\n  Scale\n  twice\n"))
    assert problem.spec.title == "Scale twice"


def test_a_statement_has_no_control_characters(make_folder: MakeFolder) -> None:
    folder = make_folder()
    (folder / "statement.md").write_text("# Scale\r\n\tx\n")
    assert Problem.load(folder).statement
    (folder / "statement.md").write_text("# Scale\n\n\x1b[2J\n")
    with pytest.raises(
        ProblemError, match=r"statement\.md: line 3: the character U\+001B is invisible; remove it"
    ):
        Problem.load(folder)


def test_paths_that_are_no_problem_folder(tmp_path: Path, make_folder: MakeFolder) -> None:
    file = tmp_path / "file"
    file.write_text("")
    for folder, message in [
        (tmp_path / "nowhere", "no such problem folder"),
        (file, "is not a folder"),
    ]:
        with pytest.raises(ProblemError, match=message):
            Problem.load(folder)
    odd = make_folder().rename(tmp_path / "My Problem")
    with pytest.raises(ProblemError, match="named in lower case"):
        Problem.load(odd)


@pytest.mark.parametrize("file", ["problem.yaml", "reference.py", "inputs.py", "statement.md"])
def test_each_file_must_be_a_small_regular_file(make_folder: MakeFolder, file: str) -> None:
    folder = make_folder()
    path = folder / file
    content = path.read_bytes()

    path.write_bytes(b"#" * (FILE_BYTES + 1))
    with pytest.raises(ProblemError, match=f"{file}: larger than the limit"):
        Problem.load(folder)

    path.unlink()
    with pytest.raises(ProblemError, match=f"{file}: missing; a problem consists of"):
        Problem.load(folder)

    elsewhere = folder.parent / "elsewhere"
    elsewhere.write_bytes(content)
    path.symlink_to(elsewhere)
    with pytest.raises(ProblemError, match="symbolic links are not followed"):
        Problem.load(folder)

    path.unlink()
    os.mkfifo(path)
    with pytest.raises(ProblemError, match=f"{file}: is not a regular file"):
        Problem.load(folder)

    path.unlink()
    path.mkdir()
    with pytest.raises(ProblemError, match=f"{file}: "):
        Problem.load(folder)


def test_loading_imports_no_torch(make_folder: MakeFolder) -> None:
    script = (
        "import sys; from pathlib import Path; from grader.problem import Problem;"
        "import grader.submission; Problem.load(Path(sys.argv[1]));"
        "sys.exit(bool({'torch', 'numpy', 'triton'} & set(sys.modules)))"
    )
    run = subprocess.run([sys.executable, "-c", script, str(make_folder())], check=False)
    assert run.returncode == 0


def test_an_output_of_integers_needs_no_tolerance(make_folder: MakeFolder) -> None:
    """It must be exact."""
    problem = Problem.load(make_folder("cols: 3, dtype: fp32", "cols: 3, dtype: int32"))
    assert "int32" not in problem.spec.tolerances


def with_variants(make_folder: MakeFolder, text: str) -> Problem:
    folder = make_folder()
    yaml = YAML.replace("dtype: fp32}", "dtype: fp32, values: normal}") + f"variants:\n  {text}\n"
    (folder / "problem.yaml").write_text(yaml)
    return Problem.load(folder)


def test_variants_are_the_benchmarks_with_other_values(make_folder: MakeFolder) -> None:
    problem = with_variants(make_folder, "values: [large, normal, masked]")
    (case,) = problem.spec.benchmarks
    assert [other.params["values"] for other in problem.variants(case)] == ["large", "masked"]
    assert all(other.params["rows"] == case.params["rows"] for other in problem.variants(case))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("vales: [large]", "variants.vales: no parameter of case 'large'; did you mean 'values'?"),
        ("rows: [1]", "variants: must not change 'x' of case 'large', its shape or its dtype"),
        ("dtype: [bf16]", "variants: must not change 'x' of case 'large', its shape or its dtype"),
        ("values: [[large]]", "variants.values: must be a number, true or false, or a word"),
    ],
)
def test_invalid_variants(make_folder: MakeFolder, text: str, message: str) -> None:
    with pytest.raises(ProblemError) as caught:
        with_variants(make_folder, text)
    assert message in str(caught.value)


def test_the_times_digest_covers_what_times_depend_on(make_folder: MakeFolder) -> None:
    folder = make_folder()

    def after(file: str, old: str, new: str) -> tuple[bool, bool]:
        """Whether a change alters the digest and the times digest."""
        before, text = Problem.load(folder), (folder / file).read_text()
        assert old in text
        (folder / file).write_text(text.replace(old, new))
        changed = Problem.load(folder)
        return changed.digest != before.digest, changed.times_digest != before.times_digest

    assert after("statement.md", "Scale", "Twice") == (False, False)
    assert after("problem.yaml", "title: Scale", "title: Twice") == (False, False)
    assert after("problem.yaml", "rows: 2, cols: 99", "rows: 3, cols: 99") == (True, False)
    assert after("problem.yaml", "atol: 1e-6", "atol: 2e-6") == (True, False)
    own = "role: out, tolerances: {fp32: {atol: 0, rtol: 1e-3, rel_l2: 1e-3}},"
    assert after("problem.yaml", "role: out,", own) == (True, False)
    own = "name: tiny, tolerances: {out: {atol: 0, rtol: 1e-3, rel_l2: 1e-3}},"
    assert after("problem.yaml", "name: tiny,", own) == (True, False)
    assert after("problem.yaml", "rows: 4096", "rows: 2048") == (True, True)
    assert after("reference.py", "x * 2", "2 * x") == (True, True)
    assert after("inputs.py", "...", "pass") == (True, True)


def test_a_case_bounds_an_output_by_its_name_or_dtype(make_folder: MakeFolder) -> None:
    folder = make_folder()
    spec = folder / "problem.yaml"
    plain = spec.read_text()

    def bound(own: str) -> float:
        spec.write_text(plain.replace("name: tiny,", f"name: tiny, tolerances: {{{own}}},"))
        problem = Problem.load(folder)
        case, out = problem.spec.tests[0], problem.spec.args[-1]
        assert (case.name, out.name) == ("tiny", "out")
        return tolerance_of(problem, out, case).rel_l2

    by_dtype, by_name = (
        f"{key}: {{atol: 0, rtol: 0, rel_l2: 0.{n}}}" for key, n in (("fp32", 1), ("out", 2))
    )
    assert (bound(by_dtype), bound(by_name)) == (0.1, 0.2)
    assert bound(f"{by_dtype}, {by_name}") == 0.2


def test_a_changed_spec_is_read_again(make_folder: MakeFolder) -> None:
    """Specs are kept by content."""
    folder = make_folder()
    first = Problem.load(folder)
    spec = folder / "problem.yaml"
    text = spec.read_text()
    spec.write_text(text.replace("title: Scale", "title: Scaled"))
    assert (first.spec.title, Problem.load(folder).spec.title) == ("Scale", "Scaled")
    spec.write_text(text)
    assert Problem.load(folder) == first
