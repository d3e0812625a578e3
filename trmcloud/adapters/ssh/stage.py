"""What a machine is sent before it can train: whole folders, each put in place at once, and a small
file last that says so."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence

from trmcloud.adapters.ssh.connection import SshConnection
from trmcloud.adapters.ssh.push import Parcel, push, verify
from trmcloud.core.contract import pod_contract as contract
from trmcloud.core.errors import LinkError

STAGED_MARK = ".staged"
CODE_DIR = "code"
_WRITE_TIMEOUT_S = 15.0

Progress = Callable[[int, int], None]


def stage(
    connection: SshConnection,
    parcels: Mapping[str, Parcel],
    root: str,
    pod_folder: str,
    progress: Progress,
) -> None:
    """Bring each parcel to its folder, ``root``'s below it; the agent of ``pod_folder`` is told
    once the one below ``<root>/code`` is among them.

    Raises:
        LinkError: something did not arrive as it was sent.
    """
    staged, rsync = _already_staged(connection, list(parcels))
    sizes = {remote: parcel.size_bytes() for remote, parcel in parcels.items()}
    whole = sum(sizes.values())
    before = 0
    for remote, parcel in parcels.items():
        base = before
        if remote not in staged:
            _bring(connection, parcel, remote, shifted(progress, base, whole), rsync=rsync)
        before += sizes[remote]
        progress(before, whole)
    code = [remote for remote in parcels if remote.startswith(f"{root}/{CODE_DIR}/")]
    if code:
        data = tuple(remote for remote in parcels if remote not in code)
        path = f"{pod_folder}/{contract.STAGED_NAME}"
        write_text(connection, path, contract.dump(contract.Staged(code[0], data)))


def write_text(connection: SshConnection, path: str, text: str, *, umask: str = "022") -> None:
    """Replace a small file there so that its reader sees the old or the new."""
    folder, _, name = path.rpartition("/")
    new = f".{name}.new.$$"
    script = (
        f"mkdir -p {shlex.quote(folder)} && cd {shlex.quote(folder)} && umask {umask}\n"
        f"cat > {new} && mv -f {new} {shlex.quote(name)} || {{ rm -f {new}; exit 1; }}"
    )
    answer = connection.run(script, content=text.encode(), timeout_s=_WRITE_TIMEOUT_S)
    if answer.code != 0:
        raise LinkError(
            f"{name} could not be written there: {answer.said[-200:]}", where=connection.where
        )


def shifted(progress: Progress, base: int, whole: int) -> Progress:
    """``progress`` of a part that begins at ``base`` of ``whole``."""
    return lambda done, _: progress(base + done, whole)


def _already_staged(connection: SshConnection, remotes: Sequence[str]) -> tuple[set[str], bool]:
    """Which of the folders are complete there, and whether the pod has rsync."""
    script = (
        "command -v rsync >/dev/null && echo rsync || echo plain\n"
        f'while read -r folder; do [ -f "$folder/{STAGED_MARK}" ] && echo "$folder"; done\n'
        "exit 0"
    )
    content = "".join(f"{remote}\n" for remote in remotes).encode()
    said = connection.run(script, content=content).out.decode("utf-8", "replace")
    first, *staged = said.splitlines() or [""]
    return set(staged) & set(remotes), first == "rsync"


def _bring(
    connection: SshConnection, parcel: Parcel, remote: str, tell: Progress, *, rsync: bool
) -> None:
    part = remote + ".part"
    push(connection, parcel, part, tell, rsync=rsync)
    wrong = verify(connection, parcel, part)
    if wrong:
        # Sizes alone made an earlier attempt's remains look right: once more, without them.
        connection.run(
            f"cd {shlex.quote(part)} && rm -f -- {shlex.join(wrong)}"
            if set(wrong) <= set(parcel.sha256)
            else f"rm -rf {shlex.quote(part)}"
        )
        push(connection, parcel, part, tell, rsync=rsync)
        wrong = verify(connection, parcel, part)
    if wrong:
        raise LinkError(
            f"{wrong[0]:.80} is not what was sent, or changed here while it was sent",
            where=connection.where,
        )
    quoted, quoted_part = shlex.quote(remote), shlex.quote(part)
    answer = connection.run(
        f"[ -f {quoted}/{STAGED_MARK} ] && exit 0\n"
        f"rm -rf {quoted} && : > {quoted_part}/{STAGED_MARK} && mv {quoted_part} {quoted}"
    )
    if answer.code != 0:
        raise LinkError(
            f"what arrived could not be put in place: {answer.said[-200:]}",
            where=connection.where,
        )
