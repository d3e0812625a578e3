"""SSH keys of this home and of its pods."""

from __future__ import annotations

import contextlib
import hmac
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from trmcloud.adapters.ssh.session import INSTALL_SSH
from trmcloud.core.contract.pod_contract import parse_pod_name
from trmcloud.core.errors import LinkError
from trmcloud.io.files import sync_folder
from trmcloud.ports.compute import PodKeys

# One key of the user's home may log in; each pod has a host key of its own, made before the pod
# is, so that the very first connection already knows whom to expect. Nothing here is the user's
# own key, and no key outside ``<home>/keys`` is read or changed.

_KEYS_DIR = "keys"
_USER_DIR = "user"
_KEYGEN_TIMEOUT_S = 30.0


class KeyStore:
    """Keys below ``<home>/keys``, readable by their owner alone. Safe to use from many processes
    at once: the first process to make a key wins."""

    def __init__(self, home: Path) -> None:
        self._folder = home / _KEYS_DIR

    def for_pod(self, pod_name: str) -> PodKeys:
        """The pod's keys, made where there are none yet.

        Raises:
            LinkError: ssh-keygen is missing, or the keys cannot be written.
        """
        host = self._pair(self._pod_folder(pod_name), "host", alias=pod_name)
        user = self._pair(self._folder / _USER_DIR, "id")
        return PodKeys(
            host_private=host.read_text(encoding="ascii"),
            host_public=_public(host),
            user_public=_public(user),
        )

    def shared(self, pod_name: str) -> str:
        """A key by which the machines of one pod know each other: always the same one, of which no
        other key can be computed."""
        own = self.for_pod(pod_name).host_private
        return hmac.new(own.encode(), b"machines of one pod", "sha256").hexdigest()

    def identity(self) -> Path:
        """The private key that logs in."""
        return self._pair(self._folder / _USER_DIR, "id")

    def known_hosts(self, pod_name: str) -> Path:
        """A file that knows this pod, by its name as ``HostKeyAlias``, and no other host."""
        folder = self._pod_folder(pod_name)
        self._pair(folder, "host", alias=pod_name)
        return folder / "known_hosts"

    def forget(self, pod_name: str) -> None:
        """Drop the keys of a pod that has ended."""
        shutil.rmtree(self._pod_folder(pod_name), ignore_errors=True)

    def _pod_folder(self, pod_name: str) -> Path:
        if parse_pod_name(pod_name) is None:
            raise LinkError(f"{pod_name!r} is not a pod of trmcloud")
        return self._folder / pod_name

    def _pair(self, folder: Path, name: str, alias: str = "") -> Path:
        if not folder.is_dir():
            try:
                self._make(folder, name, alias)
            except OSError as error:
                raise LinkError(
                    f"no SSH key could be made: {error.strerror or error}",
                    where=str(folder),
                    next_step="free some disk space, or set TRMCLOUD_HOME to a folder you "
                    "can write to",
                ) from error
        return folder / name

    def _make(self, folder: Path, name: str, alias: str) -> None:
        """The whole folder appears in one rename, or not at all."""
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._folder.chmod(0o700)
        with tempfile.TemporaryDirectory(dir=self._folder, prefix=".new-") as made:
            path = Path(made) / name
            comment = alias or "trmcloud"
            _keygen("-t", "ed25519", "-N", "", "-C", comment, "-f", str(path))
            if alias:
                line = f"{alias} {_public(path)}\n"
                path.with_name("known_hosts").write_text(line, encoding="ascii")
            for entry in Path(made).iterdir():
                entry.chmod(0o600)
            with contextlib.suppress(FileExistsError):
                try:
                    os.rename(made, folder)
                except OSError:
                    if not folder.is_dir():
                        raise
                else:
                    os.mkdir(made)  # for the temporary folder's own clearing away
        sync_folder(self._folder)


def _public(private: Path) -> str:
    return private.with_name(private.name + ".pub").read_text(encoding="ascii").strip()


def _keygen(*arguments: str) -> None:
    try:
        done = subprocess.run(
            ["ssh-keygen", "-q", *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_KEYGEN_TIMEOUT_S,
        )
    except FileNotFoundError:
        raise LinkError("there is no ssh-keygen on this machine", next_step=INSTALL_SSH) from None
    except subprocess.TimeoutExpired:
        raise LinkError("ssh-keygen did not end") from None
    if done.returncode != 0:
        raise LinkError(f"ssh-keygen failed: {done.stderr.decode('utf-8', 'replace')[:200]!r}")
