"""The watchdog of a process: kills it when it has said nothing for too long.

Run as a program of its own with the number of the process and the seconds. It reads a pipe, in
which `p` is a pause and `g` a sign of life; the system closes it with the process.
"""

import os
import select
import signal
import sys
from pathlib import Path


def main(pid: int, seconds: float, note: Path, reason: str) -> None:
    """Watches until the pipe is closed or the time is over.

    Args:
        pid: the process, which has started this one.
        seconds: longest time between two signs.
        note: file that gets the reason before the process ends.
        reason: what to write there.
    """
    is_paused = False
    while select.select([0], [], [], None if is_paused else seconds)[0]:
        signs = os.read(0, 4096)
        if not signs:
            return
        is_paused = signs.endswith(b"p")
    # An orphan's parent is another one, and the number may be somebody else's by now.
    if os.getppid() == pid:
        note.write_text(reason, encoding="utf-8")
        os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]), Path(sys.argv[3]), sys.argv[4])
