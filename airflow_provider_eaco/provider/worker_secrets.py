"""A node's credential on its machine: taken once, kept in one process's memory, out of every task's reach.

Tasks are arbitrary code. As the same user they could read a file of that user, an environment (which the
kernel shows as it was when the process began, whatever was taken out of it since) and memory. So the worker
replaces itself by one that never had the variable, hands none of Airflow's secrets on, closes its memory to
its own user, and can give up root after it has read a file that only root can read.
"""

from __future__ import annotations

import ctypes
import os
import pwd
import sys
from collections.abc import MutableMapping
from pathlib import Path

from airflow_provider_eaco.core.model.errors import EacoError

CREDENTIAL_VARIABLE = "EACO_NODE_CREDENTIAL"
_HANDLE_VARIABLE = "EACO_NODE_CREDENTIAL_HANDLE"
_PR_SET_DUMPABLE = 4
_MAX_BYTES = 4096

# What a machine with GPUs needs for none of its tasks, also as NAME_CMD and NAME_SECRET. The broker's address
# would let a task put messages into queues.
_SECRETS = (
    "AIRFLOW__CELERY__BROKER_URL",
    "AIRFLOW__CELERY__RESULT_BACKEND",
    "AIRFLOW__CELERY_BROKER_TRANSPORT_OPTIONS__SENTINEL_KWARGS",
    "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN",
    "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN_ASYNC",
    "AIRFLOW__API_AUTH__JWT_SECRET",
    "AIRFLOW__API__SECRET_KEY",
    "AIRFLOW__CORE__FERNET_KEY",
)


class CredentialError(EacoError):
    """There is no credential that the worker could use."""


def take_credential(file: str | None) -> str:
    """Return the node's credential from the file, else from the environment, and leave no trace of it there.

    With the variable set this process is replaced by a fresh one without it.

    :raises CredentialError: naming what is missing.
    """
    if file is not None:
        try:
            with Path(file).open(encoding="ascii") as lines:
                return _checked(lines.read(_MAX_BYTES), file)
        except (OSError, ValueError) as error:
            raise CredentialError(f"--credential-file: {file} cannot be read: {error}") from error
    handle = os.environ.pop(_HANDLE_VARIABLE, None)
    if handle is not None:
        with open(int(handle), encoding="ascii") as lines:  # noqa: PTH123 - an open handle, no path
            return _checked(lines.read(_MAX_BYTES), CREDENTIAL_VARIABLE)
    credential = os.environ.pop(CREDENTIAL_VARIABLE, None)
    if credential is None:
        raise CredentialError(
            f"name a file with --credential-file, or set {CREDENTIAL_VARIABLE}; "
            "`airflow eaco nodes add NAME` makes a credential"
        )
    _begin_anew(_checked(credential, CREDENTIAL_VARIABLE))
    raise AssertionError("this process was replaced")


def give_up_root(user: str | None) -> None:
    """Become this user for good, if one is named.

    :raises CredentialError: if there is no such user, or this process may not.
    """
    if user is None:
        return
    try:
        entry = pwd.getpwnam(user)
        os.initgroups(entry.pw_name, entry.pw_gid)
        os.setgid(entry.pw_gid)
        os.setuid(entry.pw_uid)
    except KeyError:
        raise CredentialError(f"--run-as: there is no user {user!r}") from None
    except OSError as error:
        raise CredentialError(f"--run-as: this process cannot become {user!r}: {error}") from error
    os.environ.update({"HOME": entry.pw_dir, "USER": user, "LOGNAME": user})


def close_memory() -> None:
    """Keep other processes of this user out of this one's memory, environment and handles.

    What is started from here with a program of its own, as the forkserver of tasks is, is open again.

    :raises OSError: if the kernel refuses.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl(PR_SET_DUMPABLE): {os.strerror(number)}")


def drop_secrets(environment: MutableMapping[str, str]) -> list[str]:
    """Take Airflow's secrets out of what tasks will inherit and return the names of those that were there."""
    names = {f"{name}{suffix}" for name in _SECRETS for suffix in ("", "_CMD", "_SECRET")}
    found = sorted(names & environment.keys())
    for name in found:
        del environment[name]
    return found


def _checked(text: str, origin: str) -> str:
    credential = text.strip()
    if not credential or not credential.isprintable() or " " in credential:
        raise CredentialError(f"{origin}: holds no credential; `airflow eaco nodes add NAME` makes one")
    return credential


def _begin_anew(credential: str) -> None:
    reader, writer = os.pipe()
    os.write(writer, credential.encode("ascii", "replace"))
    os.close(writer)
    os.set_inheritable(reader, True)
    environment = {**os.environ, _HANDLE_VARIABLE: str(reader)}
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment)  # noqa: S606 - this very program
