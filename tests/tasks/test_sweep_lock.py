import os

import pytest

from tasks.sweep_lock import SweepIsRunning, hold_folder


def test_a_second_sweep_is_told_who_holds_the_folder(tmp_path):
    with hold_folder(tmp_path):
        for _ in range(2):
            with (
                pytest.raises(SweepIsRunning, match=f"process {os.getpid()} on "),
                hold_folder(tmp_path),
            ):
                pass


def test_the_folder_is_free_again_afterwards(tmp_path):
    with hold_folder(tmp_path):
        pass
    with hold_folder(tmp_path):
        pass
