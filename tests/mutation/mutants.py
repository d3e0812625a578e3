"""Small wrong versions of a module: one change each, as a slip of the hand would make it.

Every change is made on the syntax tree of the module's own text; messages and annotations are left
alone, since nothing is decided by them.
"""

from __future__ import annotations

import ast
import copy
import functools
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

_BOUNDARY = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt}
_OPPOSITE = {
    **{ast.Lt: ast.GtE, ast.LtE: ast.Gt, ast.Gt: ast.LtE, ast.GtE: ast.Lt},
    **{ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is},
    **{ast.In: ast.NotIn, ast.NotIn: ast.In},
}
_ARITHMETIC = {
    **{ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult},
    **{ast.FloorDiv: ast.Mult, ast.Mod: ast.Mult, ast.Pow: ast.Mult},
}
_NAMES = {"min": "max", "max": "min", "any": "all", "all": "any"}
_MOST_SHOWN, _CONTEXT = 120, 40
_UNREAD = frozenset({"annotation", "returns", "decorator_list", "format_spec"})

Signatures = Callable[[ast.expr], "list[tuple[str, str]] | None"]
"""What a call's callee takes: (name, annotation) in order; None where that is not known."""


@dataclass(frozen=True)
class Mutant:
    """One change: where it is, what stood there, what stands there now."""

    module: str
    line: int
    within: str
    """The function or class that holds it; empty at the module's own level."""
    before: str
    after: str
    build: Callable[[], ast.Module] = field(compare=False, repr=False)

    @property
    def key(self) -> str:
        """Names it whatever its line: moving code about changes no key."""
        return f"{self.module}:{self.within or 'module'}: {self.before} → {self.after}"


@dataclass(frozen=True)
class _Slot:
    """Where a node hangs in its parent."""

    parent: ast.AST
    field: str
    index: int | None
    node: ast.AST
    within: str
    statement: ast.stmt

    def put(self, node: ast.AST) -> None:
        if self.index is None:
            setattr(self.parent, self.field, node)
        else:
            getattr(self.parent, self.field)[self.index] = node

    def shown(self) -> str:
        """The least text around the slot that says something."""
        if isinstance(self.parent, ast.comprehension):
            return f"if {ast.unparse(self.node_now())}"
        if isinstance(self.parent, ast.expr | ast.keyword):
            return ast.unparse(self.parent)
        if isinstance(self.node_now(), ast.stmt):
            return _one_line(self.node_now())
        return _one_line(self.statement)

    def node_now(self) -> ast.AST:
        found = getattr(self.parent, self.field)
        node: ast.AST = found if self.index is None else found[self.index]
        return node


def mutants_of(module: str, path: Path, package: Path) -> list[Mutant]:
    """Every mutant of the module at ``path``; ``package`` is where its imports are looked up."""
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    signatures = _signatures_of(tree, package)
    made: list[Mutant] = []
    seen: dict[str, int] = {}
    for number, slot in enumerate(list(_slots(tree))):
        for variant, changed in enumerate(_variants(slot, signatures)):
            before = slot.shown()
            slot.put(changed)
            before, after = _shortened(before, slot.shown())
            slot.put(slot.node)
            line = getattr(slot.node, "lineno", slot.statement.lineno)
            key = f"{slot.within} {before} {after}"
            seen[key] = seen.get(key, 0) + 1
            again = f" #{seen[key]}" if seen[key] > 1 else ""
            build = functools.partial(_build, text, signatures, number, variant)
            made.append(Mutant(module, line, slot.within, before, after + again, build))
    return made


def _build(text: str, signatures: Signatures, number: int, variant: int) -> ast.Module:
    tree = ast.parse(text)
    slot = next(itertools.islice(_slots(tree), number, None))
    slot.put(_variants(slot, signatures)[variant])
    return ast.fix_missing_locations(tree)


def _shortened(before: str, after: str) -> tuple[str, str]:
    """Both texts without most of what they share, where they are long."""
    if max(len(before), len(after)) <= _MOST_SHOWN:
        return before, after
    head = _shared(before, after)
    tail = _shared(before[head:][::-1], after[head:][::-1])
    start = max(0, head - _CONTEXT)
    return tuple(  # type: ignore[return-value]
        ("…" if start else "")
        + text[start : len(text) - max(0, tail - _CONTEXT)]
        + ("…" if tail > _CONTEXT else "")
        for text in (before, after)
    )


def _shared(one: str, two: str) -> int:
    """How many characters both begin with."""
    pairs = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(one, two, strict=False))
    return sum(1 for _ in pairs)


def _slots(tree: ast.Module) -> Iterator[_Slot]:
    yield from _below(tree, "", tree.body[0])


def _below(parent: ast.AST, within: str, statement: ast.stmt) -> Iterator[_Slot]:
    for name, value in ast.iter_fields(parent):
        if name in _UNREAD:
            continue
        entries = enumerate(value) if isinstance(value, list) else [(None, value)]
        for index, node in entries:
            if not isinstance(node, ast.AST):
                continue
            held = node if isinstance(node, ast.stmt) else statement
            inner = within
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                inner = f"{within}.{node.name}" if within else node.name
            yield _Slot(parent, name, index, node, inner, held)
            yield from _below(node, inner, held)


def _variants(slot: _Slot, signatures: Signatures) -> list[ast.AST]:
    """What may stand in the slot instead, each but once."""
    node = slot.node
    made: list[ast.AST] = []
    if isinstance(node, ast.Compare):
        made += _comparisons(node)
    elif isinstance(node, ast.BoolOp):
        other = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        made.append(ast.BoolOp(other, copy.deepcopy(node.values)))
        for left_out in range(len(node.values)):
            kept = [copy.deepcopy(v) for n, v in enumerate(node.values) if n != left_out]
            made.append(kept[0] if len(kept) == 1 else ast.BoolOp(copy.deepcopy(node.op), kept))
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.USub):
        made.append(copy.deepcopy(node.operand))
    elif isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
        changed = copy.deepcopy(node)
        changed.op = _ARITHMETIC[type(node.op)]()
        made.append(changed)
    elif isinstance(node, ast.AugAssign) and type(node.op) in _ARITHMETIC:
        other_way = copy.deepcopy(node)
        other_way.op = _ARITHMETIC[type(node.op)]()
        made += [other_way, ast.Pass()]
    elif isinstance(node, ast.Call):
        made += _calls(node, signatures)
    elif isinstance(node, ast.Constant) and not isinstance(slot.parent, ast.FormattedValue):
        made += _constants(node)
    elif _may_be_dropped(slot):
        made.append(ast.Pass())
    if _is_test(slot) and not isinstance(node, ast.Compare | ast.UnaryOp):
        made.append(ast.UnaryOp(ast.Not(), cast(ast.expr, copy.deepcopy(node))))
    return made


def _is_test(slot: _Slot) -> bool:
    holders = ast.If | ast.While | ast.IfExp
    return (isinstance(slot.parent, holders) and slot.field == "test") or (
        isinstance(slot.parent, ast.comprehension) and slot.field == "ifs"
    )


def _comparisons(node: ast.Compare) -> list[ast.AST]:
    made: list[ast.AST] = []
    for place, op in enumerate(node.ops):
        for table in (_BOUNDARY, _OPPOSITE):
            if type(op) in table:
                changed = copy.deepcopy(node)
                changed.ops[place] = table[type(op)]()
                made.append(changed)
    return made


def _constants(node: ast.Constant) -> list[ast.AST]:
    value = node.value
    if isinstance(value, bool):
        return [ast.Constant(not value)]
    if isinstance(value, int | float):
        return [ast.Constant(v) for v in dict.fromkeys((value + 1, value - 1, 0)) if v != value]
    return []


def _calls(node: ast.Call, signatures: Signatures) -> list[ast.AST]:
    made: list[ast.AST] = []
    if isinstance(node.func, ast.Name) and node.func.id in _NAMES:
        changed = copy.deepcopy(node)
        assert isinstance(changed.func, ast.Name)
        changed.func.id = _NAMES[node.func.id]
        made.append(changed)
    takes = signatures(node.func)
    if takes is None or any(isinstance(a, ast.Starred) for a in node.args):
        return made
    types = dict(takes)
    for first in range(min(len(node.args), len(takes)) - 1):
        if takes[first][1] and takes[first][1] == takes[first + 1][1]:
            changed = copy.deepcopy(node)
            args = changed.args
            args[first], args[first + 1] = args[first + 1], args[first]
            made.append(changed)
    for first in range(len(node.keywords) - 1):
        names = node.keywords[first].arg or "", node.keywords[first + 1].arg or ""
        if types.get(names[0]) and types.get(names[0]) == types.get(names[1]):
            changed = copy.deepcopy(node)
            one, two = changed.keywords[first : first + 2]
            one.value, two.value = two.value, one.value
            made.append(changed)
    return [m for m in made if ast.unparse(m) != ast.unparse(node)]


def _may_be_dropped(slot: _Slot) -> bool:
    """Returns, raises, jumps, calls made for their effect, and writes into something."""
    node = slot.node
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Call)
    if isinstance(node, ast.Assign):
        return any(isinstance(t, ast.Subscript | ast.Attribute) for t in node.targets)
    if isinstance(node, ast.Return):
        # Without it a function ends all the same, and its value is None.
        last = isinstance(slot.parent, ast.FunctionDef) and slot.node is slot.parent.body[-1]
        says_none = node.value is None or (
            isinstance(node.value, ast.Constant) and node.value.value is None
        )
        return not (last and says_none)
    return isinstance(node, ast.Raise | ast.Continue | ast.Break)


def _one_line(node: ast.AST) -> str:
    text = ast.unparse(node)
    return text.splitlines()[0] if text else "(nothing)"


def _signatures_of(tree: ast.Module, package: Path) -> Signatures:
    """Looks up callees in the module itself and in what it imports from the package."""
    here = _definitions(tree)
    modules: dict[str, str] = {}
    for node in tree.body:
        if not isinstance(node, ast.ImportFrom) or not (node.module or "").startswith("trmcloud"):
            continue
        for alias in node.names:
            name = alias.asname or alias.name
            below = f"{node.module}.{alias.name}"
            if _path_of(below, package).is_file():
                modules[name] = below
            elif _path_of(node.module or "", package).is_file():
                there = _definitions_at(_path_of(node.module or "", package))
                if alias.name in there:
                    here.setdefault(name, there[alias.name])

    def look_up(callee: ast.expr) -> list[tuple[str, str]] | None:
        if isinstance(callee, ast.Name):
            return here.get(callee.id)
        if isinstance(callee, ast.Attribute) and isinstance(callee.value, ast.Name):
            module = modules.get(callee.value.id)
            if module is not None:
                return _definitions_at(_path_of(module, package)).get(callee.attr)
        return None

    return look_up


def _path_of(module: str, package: Path) -> Path:
    return package.joinpath(*module.split(".")[1:]).with_suffix(".py")


@functools.cache
def _definitions_at(path: Path) -> dict[str, list[tuple[str, str]]]:
    return _definitions(ast.parse(path.read_text(encoding="utf-8")))


def _definitions(tree: ast.Module) -> dict[str, list[tuple[str, str]]]:
    found: dict[str, list[tuple[str, str]]] = {}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
            found[node.name] = [(a.arg, _text(a.annotation)) for a in arguments]
        elif isinstance(node, ast.ClassDef):
            found[node.name] = [
                (f.target.id, _text(f.annotation))
                for f in node.body
                if isinstance(f, ast.AnnAssign) and isinstance(f.target, ast.Name)
            ]
    return found


def _text(annotation: ast.expr | None) -> str:
    return ast.unparse(annotation) if annotation is not None else ""
