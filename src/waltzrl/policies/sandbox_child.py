"""Runs a program of the sandbox; started by `sandbox.py` as a script, with the standard library.

    namespaces -> read-only root -> fork -> limits, no capabilities -> audit hook -> the program

It imports nothing of waltzrl, because it must run where nothing of it can be read. Each layer that
the machine does not give is reported before the program is asked for; the parent then decides.
"""

import ctypes
import json
import os
import platform
import resource
import signal
import sys
from collections.abc import Callable
from pathlib import Path

CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC = 0x20000, 0x4000000, 0x8000000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000
MS_BIND, MS_REC, MS_PRIVATE, MNT_DETACH = 0x1000, 0x4000, 0x40000, 2
MOUNT_ATTR_RDONLY_NOSUID_NODEV, AT_RECURSIVE, AT_FDCWD = 0x7, 0x8000, -100
SYS_MOUNT_SETATTR = 442
SYS_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_NO_NEW_PRIVS = 1, 4, 38
CAPABILITY_VERSION_3 = 0x20080522
NOBODY = 65534
NEW_ROOT = "/proc"
"""A folder that exists everywhere and that nothing else is needed from by then."""

FORBIDDEN = {
    "processes": ("os.fork", "os.exec", "os.posix_spawn", "os.system", "subprocess.", "_thread."),
    "network": ("socket.",),
    "signals": ("os.kill", "signal.pthread_kill"),
    "limits": ("resource.",),
    "native code": ("ctypes.",),
    "files": (
        *("os.chmod", "os.chown", "os.link", "os.mkdir", "os.remove", "os.rename", "os.rmdir"),
        *("os.symlink", "os.truncate", "os.utime", "shutil.", "tempfile."),
    ),
}
"""The things that a program must not do, and the beginnings of CPython's audit events for each."""
LOOKED_AT = ("open", "os.listdir", "os.scandir")
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND

libc = ctypes.CDLL(None, use_errno=True)


def main(config: dict[str, object]) -> None:
    """Set the layers up, report, and serve replies until the requests end.

    Args:
        config: `folders` that the program may read, and the limits.
    """
    replies = os.dup(1)
    os.dup2(2, 1)  # what the program prints is no reply
    missing: dict[str, str] = {}
    folders = [str(folder) for folder in list(config["folders"])]  # type: ignore[call-overload]
    isolated = _isolate_process(missing, folders)
    if isolated:
        _fork_into_namespace(replies)
    # The process that waits for this one is counted too.
    _try_layer(missing, "limits", lambda: _limit_resources(config, processes=2 if isolated else 1))
    _try_layer(missing, "capabilities", _drop_capabilities)
    send = _make_sender(replies)
    send({"missing": missing})
    _serve_replies(send, folders)


def _try_layer(missing: dict[str, str], name: str, enter: Callable[[], None]) -> bool:
    try:
        enter()
    except OSError as error:
        missing[name] = str(error)
        return False
    return True


def _isolate_process(missing: dict[str, str], folders: list[str]) -> bool:
    """Enter namespaces of one's own; return whether there is one for users.

    Root makes the root folder before it becomes nobody, who may be unable to read Python's own
    folders. It becomes nobody because the number of root's processes has no limit.
    """
    proc = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY)
    flags = CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS
    rooted = False
    if os.getuid() == 0:
        rooted = _try_layer({}, "", lambda: _change_root(folders, apart=True))
        _try_layer(missing, "limits", _become_nobody)
    if not _try_layer(
        missing, "user namespace", lambda: _unshare_namespaces(flags, proc, mounts=not rooted)
    ):
        missing |= dict.fromkeys(("network", "nested namespaces"), "no namespace")
        if not rooted:
            missing["read-only files"] = "no namespace"
        return False
    if not rooted:
        _try_layer(missing, "read-only files", lambda: _change_root(folders, apart=False))
    # In a user namespace of its own a program would have capabilities again.
    _try_layer(
        missing, "nested namespaces", lambda: _write_proc(proc, "sys/user/max_user_namespaces", "0")
    )
    os.close(proc)
    return True


def _become_nobody() -> None:
    # In this order, because the user nobody may not change its groups.
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)
    libc.prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)  # else the files below belong to root


def _unshare_namespaces(flags: int, proc: int, *, mounts: bool) -> None:
    uid, gid = os.getuid(), os.getgid()
    _require_success(libc.unshare(flags | CLONE_NEWNS if mounts else flags))
    # Without it, a process that is not root may write no gid_map.
    _write_proc(proc, "self/setgroups", "deny")
    _write_proc(proc, "self/uid_map", f"{uid} {uid} 1")
    _write_proc(proc, "self/gid_map", f"{gid} {gid} 1")


def _write_proc(proc: int, name: str, text: str) -> None:
    """Write to a file of /proc, which may no longer be mounted."""
    file = os.open(name, os.O_WRONLY, dir_fd=proc)
    try:
        os.write(file, text.encode())
    finally:
        os.close(file)


def _change_root(folders: list[str], *, apart: bool) -> None:
    """Make a root that holds these folders alone, all of it read-only.

    Args:
        folders: to be seen.
        apart: enter a mount namespace first.
    """
    if apart:
        _require_success(libc.unshare(CLONE_NEWNS))
    # pivot_root refuses mounts that are shared with other namespaces.
    _mount_folder(None, "/", None, MS_REC | MS_PRIVATE)
    _mount_folder("tmpfs", NEW_ROOT, "tmpfs", 0, "size=64k,mode=755")
    for folder in folders:
        place = f"{NEW_ROOT}{folder}"
        Path(place).mkdir(parents=True, exist_ok=True)
        _mount_folder(folder, place, None, MS_BIND | MS_REC)
    os.chdir(NEW_ROOT)
    # The old root is put on top of the new one, and taken away by the next line.
    _require_success(libc.syscall(SYS_PIVOT_ROOT[platform.machine()], b".", b"."))
    _require_success(libc.umount2(b".", MNT_DETACH))
    os.chdir("/")
    attributes = (ctypes.c_uint64 * 4)(MOUNT_ATTR_RDONLY_NOSUID_NODEV, 0, 0, 0)
    size = ctypes.sizeof(attributes)
    _require_success(
        libc.syscall(SYS_MOUNT_SETATTR, AT_FDCWD, b"/", AT_RECURSIVE, attributes, size)
    )


def _fork_into_namespace(replies: int) -> None:
    """Go on as the first process of the namespace; all others end with it."""
    child = os.fork()
    if child:
        # The pipes must close when the child ends, so only the child keeps them.
        for descriptor in (0, 1, 2, replies):
            os.close(descriptor)
        _, status = os.waitpid(child, 0)
        code = os.waitstatus_to_exitcode(status)
        os._exit(code if code >= 0 else 128 - code)
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _limit_resources(config: dict[str, object], processes: int) -> None:
    for kind, amount in (
        (resource.RLIMIT_CPU, config["cpu_seconds"]),
        (resource.RLIMIT_AS, config["memory_bytes"]),
        (resource.RLIMIT_NPROC, processes),
        (resource.RLIMIT_NOFILE, 16),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_MEMLOCK, 0),
        (resource.RLIMIT_MSGQUEUE, 0),
    ):
        number = int(str(amount))
        resource.setrlimit(kind, (number, number))


def _drop_capabilities() -> None:
    # All sets of capabilities are zero, and nothing that is executed brings any back.
    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION_3, 0)
    _require_success(libc.capset(header, (ctypes.c_uint32 * 6)()))
    _require_success(libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))


def _serve_replies(send: Callable[[dict[str, object]], None], folders: list[str]) -> None:
    """Read the program, and then one conversation a line; answer each with a line."""
    requests = iter(sys.stdin.buffer)
    program = json.loads(next(requests))
    names: dict[str, object] = {"__name__": "agent", "__builtins__": __builtins__}
    try:
        compiled = compile(program["code"], program["name"], "exec")
        sys.addaudithook(_make_reporter(send, folders))
        exec(compiled, names)
        reply = names["reply"]
    except BaseException as error:  # noqa: BLE001 - whatever it raises, the parent is told
        send(_describe_raised(error))
        return
    send({"ready": True})
    for line in requests:
        send(_call_program(reply, json.loads(line)))


def _call_program(reply: object, messages: object) -> dict[str, object]:
    """Call the program once; what it raises fails this reply alone."""
    try:
        text = reply(messages)  # type: ignore[operator]
    except BaseException as error:  # noqa: BLE001 - whatever it raises, the parent is told
        return _describe_raised(error)
    if isinstance(text, str):
        return {"text": text}
    return {"error": f"reply() returned {type(text).__name__}, not a str"}


def _describe_raised(error: BaseException) -> dict[str, object]:
    return {"error": f"{type(error).__name__}: {error}"[:500]}


def _make_reporter(
    send: Callable[[dict[str, object]], None], folders: list[str]
) -> Callable[[str, tuple[object, ...]], None]:
    """Return an audit hook that names what a program tries; the kernel is what stops it."""

    def report(event: str, arguments: tuple[object, ...]) -> None:
        for name, beginnings in FORBIDDEN.items():
            if event.startswith(beginnings):
                send({"attempt": name, "event": event})
        # A descriptor, which is an int, was looked at when it was opened.
        if event in LOOKED_AT and arguments and not isinstance(arguments[0], int):
            path = os.fsdecode(arguments[0]) if arguments[0] else "/"  # type: ignore[arg-type]
            flags = arguments[2] if event == "open" and len(arguments) > 2 else 0
            readable = any(path.startswith(f"{folder}/") or path == folder for folder in folders)
            if not readable or (isinstance(flags, int) and flags & WRITES):
                send({"attempt": "files", "event": f"{event} {path}"[:200]})

    return report


def _make_sender(descriptor: int) -> Callable[[dict[str, object]], None]:
    # Bound now, so that a program that replaces them still cannot hide what it tries.
    encode, write = json.JSONEncoder().encode, os.write

    def send(message: dict[str, object]) -> None:
        rest = (encode(message) + "\n").encode()
        while rest:
            rest = rest[write(descriptor, rest) :]

    return send


def _mount_folder(
    source: str | None, target: str, kind: str | None, flags: int, data: str = ""
) -> None:
    texts = [None if text is None else text.encode() for text in (source, target, kind)]
    _require_success(libc.mount(*texts, ctypes.c_ulong(flags), data.encode()))


def _require_success(result: int) -> None:
    if result:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
