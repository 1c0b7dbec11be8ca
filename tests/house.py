"""The house rules that no linter knows, counted: sizes, names, import cycles, dispatches and unexplained numbers.

    python tests/house.py           # the table; exit code 1 when a count is above its limit
    python tests/house.py --list    # and every place that was counted

Needs the standard library only. What is counted, and what is not, is said by the function of each rule.
"""

import argparse
import ast
import collections
import dataclasses
import io
import re
import statistics
import sys
import tokenize
from collections.abc import Callable, Iterator
from pathlib import Path

SRC = Path(__file__).parents[1] / "src"
MOST_LINES_OF_A_FILE = 350
MOST_LINES_OF_A_FUNCTION = 60
# How many dispatches on covariance structures, and numbers without a reason, there may be.
DISPATCHES_LIMIT = 0
NUMBERS_LIMIT = 0

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
# The one package that may know which covariance structure it has, and the abstract class of all of them. Whether an
# argument is a structure at all may be asked everywhere, so that the abstract class itself is not counted.
OWNER = "gaussian"
STRUCTURE = "Structure"
# Arrays whose number of axes tells a matrix from a diagonal.
PACKED = re.compile(r"(^|_)(precision|hessian|covariance|root|packed|curvature|product|half|part)s?$")
# Questions of that kind which are none about a structure, by file and expression, and why.
ALLOWED = {
    "epvi/hub/samples/exponential_family.py: np.ndim(self.prior_covariance) == 2": "an argument: variances or a matrix",
}
# Numbers that need no reason.
PLAIN = {-1, 0, 1, 2}
CONSTANT = re.compile(r"_*[A-Z][A-Z0-9_]*")
# Comments for tools, which are no reasons.
FOR_TOOLS = re.compile(r"#\s*(noqa|type:|pyright:|fmt:|pragma)")


@dataclasses.dataclass(frozen=True)
class Module:
    """A source file: its dotted name, its path below src, its text and what Python reads in it."""

    name: str
    path: str
    text: str
    tree: ast.Module

    def place(self, node: ast.AST) -> str:
        """Where a node is, with the first line of it."""
        line = getattr(node, "lineno", 1)
        return f"{self.path}:{line}: {self.text.splitlines()[line - 1].strip()}"


@dataclasses.dataclass(frozen=True)
class Rule:
    """What is counted, where it was found, and how often it may be."""

    name: str
    places: list[str]
    limit: int = 0


def read(src: Path) -> list[Module]:
    """All modules below a folder, by their names."""
    modules = []
    for path in sorted(src.rglob("*.py")):
        parts = path.relative_to(src).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        text = path.read_text("utf-8")
        modules.append(Module(name, path.relative_to(src).as_posix(), text, ast.parse(text)))
    return modules


def functions(module: Module) -> Iterator[tuple[str, int]]:
    """Every function and method, also inside others: where it is, and its lines without decorators and docstring."""
    for node in ast.walk(module.tree):
        if isinstance(node, FUNCTIONS):
            first = node.body[0]
            documented = ast.get_docstring(node, clean=False) is not None
            docstring = _end(first) - first.lineno + 1 if documented else 0
            yield module.place(node), _end(node) - node.lineno + 1 - docstring


def _end(node: ast.stmt) -> int:
    assert node.end_lineno is not None
    return node.end_lineno


def same_class_names(modules: list[Module]) -> list[str]:
    """Classes whose name another class has too, also in another file: every one after the first."""
    found = collections.defaultdict(list)
    for module in modules:
        for node in ast.walk(module.tree):
            if isinstance(node, ast.ClassDef):
                found[node.name].append(module.place(node))
    return [place for places in found.values() for place in places[1:]]


def imports(module: Module, known: set[str]) -> set[str]:
    """The modules of src that a module imports by name, anywhere in its text: in functions and for type checkers too.

    What Python imports besides, the packages around a module, is left out.
    """
    package = module.name if module.path.endswith("__init__.py") else module.name.rpartition(".")[0]
    found: set[str] = set()
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) + 1 - node.level] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            whole = {f"{base}.{alias.name}" for alias in node.names}
            found |= {name if name in known else base for name in whole}
    return found & known


def cycles(modules: list[Module]) -> list[str]:
    """Modules that import each other, directly or by others: a line for every such group (Tarjan's algorithm)."""
    known = {module.name for module in modules}
    graph = {module.name: sorted(imports(module, known)) for module in modules}
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    groups: list[list[str]] = []

    def visit(name: str) -> None:
        index[name] = low[name] = len(index)
        stack.append(name)
        for other in graph[name]:
            if other not in index:
                visit(other)
            if other in stack:
                low[name] = min(low[name], low[other])
        if low[name] == index[name]:
            at = stack.index(name)
            groups.append(stack[at:])
            del stack[at:]

    for name in graph:
        if name not in index:
            visit(name)
    return [" -> ".join([*group, group[0]]) for group in groups if len(group) > 1 or group[0] in graph[group[0]]]


def structures(modules: list[Module]) -> set[str]:
    """The names of the covariance structures: all classes below the abstract one."""
    classes = [node for module in modules for node in ast.walk(module.tree) if isinstance(node, ast.ClassDef)]
    found, before = {STRUCTURE}, 0
    while len(found) > before:
        before = len(found)
        found |= {node.name for node in classes if found & {_last(base) for base in node.bases}}
    return found - {STRUCTURE}


def dispatches(modules: list[Module]) -> list[str]:
    """Questions outside `gaussian/` about which covariance structure something has.

    That is: isinstance, issubclass, ==, is or a match against one of the structures; `.rank`; and a comparison of the
    number of axes of an array that is named like a precision, a Hessian or what else may be packed.
    """
    kinds = structures(modules)
    asked = [
        (module, node)
        for module in modules
        if OWNER not in module.name.split(".")
        for node in sorted(_expressions(module.tree), key=lambda node: node.lineno)
        if _asks(node, kinds)
    ]
    return [module.place(node) for module, node in asked if f"{module.path}: {ast.unparse(node)}" not in ALLOWED]


def _expressions(tree: ast.Module) -> Iterator[ast.expr | ast.pattern]:
    yield from (node for node in ast.walk(tree) if isinstance(node, (ast.expr, ast.pattern)))


def _asks(node: ast.expr | ast.pattern, kinds: set[str]) -> bool:
    match node:
        case ast.Call(func=ast.Name(id="isinstance" | "issubclass"), args=[_, classes]):
            return any(_last(one) in kinds for one in ast.walk(classes))
        case ast.Compare():
            sides = [node.left, *node.comparators]
            called = [side.func if isinstance(side, ast.Call) else side for side in sides]
            return any(_last(one) in kinds for one in called) or any(PACKED.search(_axes_of(side)) for side in sides)
        case ast.MatchClass(cls=kind):
            return _last(kind) in kinds
        case ast.Attribute(attr="rank", ctx=ast.Load()):
            return True
    return False


def _last(node: ast.AST) -> str:
    """The last name of `a.b.c`, of a call of it the name of what is called; "" of anything else."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case ast.Call(func=function):
            return _last(function)
        case ast.Subscript(value=value):
            return _last(value)
    return ""


def _axes_of(node: ast.expr) -> str:
    """The name of the array whose number of axes this is; "" of anything else."""
    match node:
        case ast.Attribute(value=array, attr="ndim"):
            return _last(array)
        case ast.Call(func=ast.Attribute(attr="ndim"), args=[array]):
            return _last(array)
        case ast.Call(func=ast.Name(id="len"), args=[ast.Attribute(value=array, attr="shape")]):
            return _last(array)
    return ""


def unexplained(modules: list[Module]) -> list[str]:
    """Numbers that are choices and have no comment directly above or beside them.

    That is: constants of a module in capitals, and defaults of fields and of parameters, with a number other than
    -1, 0, 1 and 2 anywhere in them. Defaults of a function's parameters may be explained above it, or in its docstring.
    """
    found = []
    for module in modules:
        above, beside = _comments(module.text)
        for node, value, owner in _choices(module.tree):
            own = {*range(node.lineno, (value.end_lineno or value.lineno) + 1)}
            told = node.lineno - 1 in above or bool(own & (above | beside))
            if _has_number(value) and not told and not _explains_defaults(owner, above):
                found.append(module.place(node))
    return found


def _explains_defaults(owner: ast.AST | None, above: set[int]) -> bool:
    if not isinstance(owner, FUNCTIONS):
        return False
    first = min(one.lineno for one in (owner, *owner.decorator_list))
    return first - 1 in above or bool(re.search(r"default|judgement", ast.get_docstring(owner) or "", re.IGNORECASE))


def _choices(tree: ast.Module) -> Iterator[tuple[ast.stmt | ast.arg, ast.expr, ast.AST | None]]:
    """What is chosen, its value, and the function whose parameter it is: constants, fields and parameters."""
    for node in tree.body:
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if any(CONSTANT.fullmatch(_last(one)) for target in targets for one in ast.walk(target)):
                yield node, node.value, None
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            yield from ((one, one.value, None) for one in node.body if isinstance(one, ast.AnnAssign) and one.value)
        elif isinstance(node, FUNCTIONS):
            given = [*node.args.posonlyargs, *node.args.args]
            defaults = node.args.defaults
            pairs = [*zip(given[len(given) - len(defaults) :], defaults, strict=True)]
            pairs += [(a, b) for a, b in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True) if b]
            yield from ((a, b, node) for a, b in pairs)


def _has_number(value: ast.expr) -> bool:
    numbers = (one.value for one in ast.walk(value) if isinstance(one, ast.Constant))
    return any(isinstance(one, (int, float, complex)) and one not in PLAIN for one in numbers)


def _comments(text: str) -> tuple[set[int], set[int]]:
    """The lines with a comment for readers: those with nothing else, and those with code before it."""
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    found = [one for one in tokens if one.type == tokenize.COMMENT and not FOR_TOOLS.match(one.string)]
    alone = {one.start[0] for one in found if one.line.lstrip().startswith("#")}
    return alone, {one.start[0] for one in found} - alone


def rules(modules: list[Module]) -> list[Rule]:
    """All of them, counted."""
    long_files = [f"{one.path}: {_lines(one)} lines" for one in modules if _lines(one) > MOST_LINES_OF_A_FILE]
    long_functions = [
        f"{place} ({lines} lines)"
        for module in modules
        for place, lines in functions(module)
        if lines > MOST_LINES_OF_A_FUNCTION
    ]
    return [
        Rule(f"files of more than {MOST_LINES_OF_A_FILE} lines", long_files),
        Rule(f"functions of more than {MOST_LINES_OF_A_FUNCTION} lines", long_functions),
        Rule("classes with the name of another", same_class_names(modules)),
        Rule("import cycles", cycles(modules)),
        Rule("dispatches on covariance structures", dispatches(modules), DISPATCHES_LIMIT),
        Rule("numbers without a reason", unexplained(modules), NUMBERS_LIMIT),
    ]


def _lines(module: Module) -> int:
    return len(module.text.splitlines())


def sizes(modules: list[Module]) -> list[str]:
    """How many files and functions there are, and how long."""
    files = [(_lines(module), module.path) for module in modules]
    long = [(lines, place) for module in modules for place, lines in functions(module)]
    return [
        f"{name:39}{len(found):6,}; lines: median {statistics.median(n for n, _ in found):g}, most"
        f" {max(found)[0]} ({max(found)[1].partition(': ')[0]})"
        for name, found in (("files", files), ("functions", long))
        if found
    ]


def main(arguments: list[str] | None = None, write: Callable[[str], object] = sys.stdout.write) -> int:
    """Print the table; 1 when a count is above its limit."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--list", action="store_true", help="print every place that was counted")
    parser.add_argument("src", nargs="?", type=Path, default=SRC, help="the folder with the sources")
    options = parser.parse_args(arguments)
    modules = read(options.src)
    counted = rules(modules)
    lines = [*sizes(modules), f"{'':39}{'count':>6}{'limit':>7}"]
    for rule in counted:
        count = len(rule.places)
        broken = count > rule.limit
        note = "  too many" if broken else f"  the limit can be {count}" if count < rule.limit else ""
        lines.append(f"{rule.name:39}{count:6,}{rule.limit:7,}{note}")
        lines += [f"    {place}" for place in rule.places if options.list or broken]
    write("\n".join(lines) + "\n")
    return int(any(len(rule.places) > rule.limit for rule in counted))


if __name__ == "__main__":
    sys.exit(main())
