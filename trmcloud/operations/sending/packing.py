"""Pack the sources that a machine runs, with those that they import and no others, as a tar.gz.

The files are found by following the imports; there is no list of them. Comments, docstrings and
annotations are removed. Lines keep their numbers, so that a traceback from a pod can be read beside
a checkout.
"""

from __future__ import annotations

import ast
import gzip
import io
import tarfile
import tokenize
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cache, lru_cache
from pathlib import Path

from trmcloud.core.errors import DataError
from trmcloud.operations.home import bundle_root

PACKAGE = Path(__file__).resolve().parents[2]
_NAME = PACKAGE.name
_SUFFIXES = (".py", ".txt", ".toml")
_UNSEEN = (tokenize.COMMENT, tokenize.NL)
_LAYOUT = (*_UNSEEN, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
_INSTEAD = {
    f"{_NAME}.core.values": """\
from dataclasses import dataclass as dataclass, replace as replace
class Value:
 def __init_subclass__(cls):
  super().__init_subclass__()
  dataclass(frozen=True)(cls)
"""
}
"""The replacement of a module on a machine: a process that starts once and runs for days does not
need classes that are cheap to import, and the agent's room is small."""


POD_ENTRY = "trmcloud.pod.boot"
"""A pod's first process."""
POD_PREFIX = "/opt/trmcloud"
"""The folder on a pod for the agent's sources."""
LATER = ("trmcloud.pod.storage.upload", "trmcloud.pod.notify")
"""The modules that a pod starts only once the trainer's sources are there, and gets with them: see
``trainers_share``."""
JOB = "trmcloud.pod.job.process"
"""The module that a pod starts for a command in place of a trainer: sent with its code, see
``commands_share``."""


def own_sources(
    *entries: str,
    trainer: Path | None = None,
    package: Path = PACKAGE,
    later: Collection[str] = (),
) -> dict[str, bytes]:
    """trmcloud's own modules that a machine needs, stripped, by their names in the archive: those
    of ``python -m <entry>``, of whatever that starts or imports, however late, and of the trainer.
    ``trainer`` is the trainer's package, which travels by another way; so do ``later``, modules
    that are started and not imported.

    Raises:
        DataError: the trainer cannot be read, or imports what trmcloud does not have.
    """
    modules = _modules(package)
    wanted = set(entries)
    for path in sources(trainer, trainer.name).values() if trainer is not None else ():
        if path.suffix == ".py":
            wanted |= _needed_by_trainer(path, modules)
    files: dict[str, bytes] = {}
    while wanted := wanted - set(later):
        name = wanted.pop()
        path = modules[name]
        member = f"{_NAME}/{path.relative_to(package).as_posix()}"
        if member in files:
            continue
        text = _INSTEAD.get(name) or path.read_text(encoding="utf-8")
        files[member] = strip_source(text).encode()
        tree = ast.parse(text)
        wanted |= _imported(tree, modules) | _started(tree, modules) | _packages_of(name)
        for data in _named_beside(tree, path.parent):
            content = data.read_bytes()
            if data.suffix == ".py":  # a script's to import, and no module of ours
                content = strip_source(content.decode()).encode()
            elif data.suffix == ".txt":
                kept = (line for line in content.splitlines(True) if not line.startswith(b"#"))
                content = b"".join(kept)
            files[f"{_NAME}/{data.relative_to(package).as_posix()}"] = content
    return files


def trainers_share(trainer: Path) -> Mapping[str, bytes]:
    """Return the modules of trmcloud that the trainer's package imports, and those that upload its
    checkpoints and send notices: sent with it, not with the agent, whose room is small. Takes most
    of a second, once as long as the trainer's sources stay the same.

    Raises:
        DataError: see ``own_sources``.
    """
    stats = ((name, path.stat()) for name, path in sorted(sources(trainer, trainer.name).items()))
    return _share(trainer, tuple((name, stat.st_size, stat.st_mtime_ns) for name, stat in stats))


@lru_cache(maxsize=4)
def _share(trainer: Path, signature: tuple[tuple[str, int, int], ...]) -> Mapping[str, bytes]:
    return own_sources(*LATER, trainer=trainer)


@lru_cache(maxsize=1)
def commands_share() -> Mapping[str, bytes]:
    """Return the modules sent beside a command's code, and a sweep's: those that start it or its
    trials, upload its checkpoints and send notices."""
    return own_sources(*LATER, JOB)


@cache
def boot_payload(provider: str, self_end: Path | None, trainer: Path | None = None) -> bytes:
    """A tar.gz of what a pod of ``provider`` runs; the same sources give the same bytes. Takes most
    of a second.

    ``self_end`` is the file by which such a pod ends itself, None where it needs none. The trainer
    follows by SSH, with what it imports of trmcloud and what uploads its checkpoints.

    Raises:
        DataError: the ``trainer``'s package (the bundled one's if None) could not run there.
    """
    trainers_share(trainer or bundle_root() / "model")
    own = {} if self_end is None else self_end_sources({provider: self_end})
    return pack(own_sources(POD_ENTRY, later=(*LATER, JOB)) | own)


def start_script(machine: str, archive: str) -> str:
    """The Python program that unpacks ``boot_payload``'s archive on an image: ``archive`` is an
    expression for its bytes, and ``machine`` the word for what the image is to run as."""
    return f"""\
import sys
if sys.version_info < (3, 10):
    sys.exit("trmcloud: this image's python3 is %d.%d; a {machine} needs 3.10"
        % sys.version_info[:2])
try:
    import base64, gzip, io, os, tarfile
    packed = gzip.decompress({archive})
    tar = tarfile.TarFile(fileobj=io.BytesIO(packed))
    tar.extraction_filter = getattr(tarfile, "data_filter", None)
    tar.extractall("{POD_PREFIX}")
    sys.path.insert(0, "{POD_PREFIX}")
    import {POD_ENTRY}
except Exception as e:
    what = "%s: %s" % (type(e).__name__, e)
    sys.exit("trmcloud: the agent cannot be started on this image: " + what)
"""


def self_end_sources(
    files: Mapping[str, Path] | None = None, package: Path = PACKAGE
) -> dict[str, bytes]:
    """Each provider's ``self_end.py``, by the name under which a machine looks for it; those of the
    package where no ``files`` are given."""
    if files is None:
        files = {path.parent.name: path for path in package.glob("providers/*/self_end.py")}
    return {
        f"{_NAME}/providers/{provider}/self_end.py": strip_source(path.read_text("utf-8")).encode()
        for provider, path in files.items()
    }


def sources(folder: Path, name: str) -> dict[str, Path]:
    """The sources below ``folder``, by their names below ``name``."""
    return {
        f"{name}/{path.relative_to(folder).as_posix()}": path
        for path in folder.rglob("*")
        if path.suffix in _SUFFIXES
        and path.is_file()
        and not any(part.startswith((".", "__pycache__")) for part in path.parts[-3:])
    }


def strip_source(text: str) -> str:
    """Python source without comments, docstrings, annotations and most of its indentation, each
    line where it was. The annotations of a class's fields stay, by which records are read.

    Text is cut out between tokens and never made anew, so that it is the same whichever Python
    does it, and means the same to every Python that could read it before.
    """
    lines = text.splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))
    cuts: list[tuple[int, int, str]] = []

    def cut(token: tokenize.TokenInfo, instead: str) -> None:
        begin = starts[token.start[0] - 1] + token.start[1]
        end = begin + len(token.string)  # Python 3.12 counts bytes in the end of a long string
        kept = text[:begin].rstrip(" ")
        lines_within = "\n" * text[begin:end].count("\n")
        cuts.append((begin if instead else len(kept), end, instead + lines_within))

    tokens = list(tokenize.generate_tokens(io.StringIO(text).readline))
    for token in tokens:
        if token.type == tokenize.COMMENT:
            cut(token, "")
    seen = [token for token in tokens if token.type not in _UNSEEN]
    statement = (tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)
    for index, token in enumerate(seen):
        if token.type != tokenize.STRING or seen[index + 1].type != tokenize.NEWLINE:
            continue
        before, after = seen[index - 1] if index else None, seen[index + 2]
        if before is None or before.type in statement:
            alone = before is not None and before.type == tokenize.INDENT
            cut(token, "pass" if alone and after.type == tokenize.DEDENT else "")
    for begin, end, instead in sorted(cuts, reverse=True):
        text = text[:begin] + instead + text[end:]
    return _less_indented(_without_annotations(text))


def _less_indented(text: str) -> str:
    """``text`` with one space for each level, and none within brackets; texts of many lines stay as
    they are."""
    lines = text.splitlines(keepends=True)
    level = brackets = formatted = last = 0
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        level += (token.type == tokenize.INDENT) - (token.type == tokenize.DEDENT)
        if token.type in _LAYOUT:
            continue
        line, column = token.start
        if line > last and not formatted:
            lines[line - 1] = " " * (0 if brackets else level) + lines[line - 1][column:]
        last = token.end[0]
        # From Python 3.12 on, an f-string is many tokens.
        kind = tokenize.tok_name[token.type]
        formatted += kind.endswith("STRING_START") - kind.endswith("STRING_END")
        if token.type == tokenize.OP and not formatted:
            brackets += (token.string in "([{") - (token.string in ")]}")
    return "".join(lines)


def _without_annotations(text: str) -> str:
    """``text`` without the annotations that nothing reads at run time."""
    source, starts = text.encode(), [0]  # ast counts bytes
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))

    def end_of(node: ast.expr | ast.arg) -> int:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return starts[node.end_lineno - 1] + node.end_col_offset

    tree = ast.parse(source)
    fields = {id(each) for kind in ast.walk(tree) if isinstance(kind, ast.ClassDef)
              for each in kind.body}  # fmt: skip
    cuts: list[tuple[int, int, bytes]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.arg) and node.annotation is not None:
            begin = starts[node.lineno - 1] + node.col_offset + len(node.arg.encode())
            cuts.append((begin, end_of(node), b""))
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.returns is not None:
            before = starts[node.returns.lineno - 1] + node.returns.col_offset
            arrow = source.rindex(b"->", 0, before)
            colon = source.index(b":", end_of(node.returns))
            cuts.append((len(source[:arrow].rstrip(b" ")), colon + 1, b":"))
        elif isinstance(node, ast.AnnAssign) and node.value is not None and id(node) not in fields:
            begin, end = end_of(node.target), end_of(node.annotation)
            if b"\n" not in source[begin:end]:  # a line's end would end the statement
                cuts.append((begin, end, b""))
    for begin, end, instead in sorted(cuts, reverse=True):
        lines = b"\n" * source[begin:end].count(b"\n")
        source = source[:begin] + instead + lines + source[end:]
    return source.decode()


def pack(files: Mapping[str, bytes]) -> bytes:
    """A tar.gz; the same files give the same bytes."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        # The empty ones together: a request that carries this has little room.
        for name, content in sorted(files.items(), key=lambda each: (each[1] != b"", each[0])):
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(content), 0o644
            tar.addfile(info, io.BytesIO(content))
    packed = io.BytesIO()
    with gzip.GzipFile(filename="", fileobj=packed, mode="wb", compresslevel=9, mtime=0) as out:
        out.write(raw.getvalue())
    return packed.getvalue()


def _modules(package: Path) -> dict[str, Path]:
    """All of trmcloud's modules and packages, by name."""
    found = {}
    for path in package.rglob("*.py"):
        parts = (_NAME, *path.relative_to(package).with_suffix("").parts)
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def _packages_of(name: str) -> set[str]:
    parts = name.split(".")
    return {".".join(parts[:count]) for count in range(1, len(parts))}


def _needed_by_trainer(path: Path, modules: Mapping[str, Path]) -> set[str]:
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, SyntaxError) as error:
        raise DataError(f"the trainer cannot be read: {error}", where=str(path)) from None
    return _imported(tree, modules, where=str(path))


def _imported(tree: ast.Module, modules: Mapping[str, Path], where: str = "") -> set[str]:
    """trmcloud's modules that these sources import anywhere, in a function too."""
    found = set()
    for node in _run(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [node.module]
            below = (f"{node.module}.{alias.name}" for alias in node.names)
            names += [name for name in below if name in modules]
        else:
            continue
        for name in names:
            if name.partition(".")[0] != _NAME:
                continue
            if name not in modules:
                raise DataError(f"the imported module {name} does not exist", where=where)
            found.add(name)
    return found


def _started(tree: ast.Module, modules: Mapping[str, Path]) -> set[str]:
    """Modules named in a text of its own: what is run as ``python -m <name>``."""
    return {text for text in _texts(tree) if text in modules}


def _named_beside(tree: ast.Module, folder: Path) -> Iterable[Path]:
    """Data files of the same folder that these sources name."""
    names = {text for text in _texts(tree) if text.endswith(_SUFFIXES) and "/" not in text}
    return sorted(folder / name for name in names if (folder / name).is_file())


def _texts(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def _run(tree: ast.AST) -> Iterator[ast.AST]:
    """Every node but those that only a type checker sees."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            continue
        yield node
        yield from _run(node)
