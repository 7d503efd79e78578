import io
import json

import pytest
from rich.console import Console

from tasks.sweep.progress import SECONDS_BETWEEN_LINES, SweepProgress, format_seconds, show_progress


def make_progress(done=1, **changes):
    values = {"study": "batch", "phase": "search", "running": 2, "total": 8, "pruned": 1}
    values |= {"diverged": 0, "collapsed": 0, "failed": 0, "best": {"a": 0.25, "b[x]": 0.5}}
    return SweepProgress(**{**values, "done": done, "seconds_left": 30.0, **changes})


def test_a_terminal_gets_a_table_with_the_best_arm_first():
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, width=100)
    with show_progress("auto", console=console) as update:
        update(make_progress())
    text = file.getvalue()
    assert "1 of 8 done, 2 running, 1 pruned; about 30 s left" in text
    assert text.index("0.5000") < text.index("0.2500")
    assert "b[x]" in text


def test_elsewhere_there_is_a_line_now_and_then_and_one_at_the_end():
    file, now = io.StringIO(), [0.0]
    with show_progress("auto", console=Console(file=file), clock=lambda: now[0]) as update:
        update(make_progress(1))
        update(make_progress(2))
        now[0] = SECONDS_BETWEEN_LINES
        update(make_progress(3))
        update(make_progress(8))
    lines = file.getvalue().splitlines()
    assert [line.split(": ")[1].split(" ")[0] for line in lines] == ["1", "3", "8"]
    assert lines[0].endswith("best b[x] 0.5000")


@pytest.mark.parametrize(
    ("nodes", "requested", "said"),
    [
        (2, 0, "1 pruned, 2 nodes; about"),
        (1, 3, "1 pruned, 1 node, 3 requested; about"),
        (0, 3, "1 pruned, 0 nodes, 3 requested; about"),
        # On this machine alone nodes are not counted.
        (0, 0, "1 pruned; about"),
    ],
)
def test_a_joined_cluster_is_described_by_its_nodes(nodes, requested, said):
    file = io.StringIO()
    with show_progress("auto", console=Console(file=file)) as update:
        update(make_progress(nodes=nodes, nodes_requested=requested))
    assert said in file.getvalue()


def test_machines_get_one_line_of_json_for_each_change():
    file = io.StringIO()
    with show_progress("json", console=Console(file=file)) as update:
        update(make_progress(1))
        update(make_progress(2))
    assert [json.loads(line)["done"] for line in file.getvalue().splitlines()] == [1, 2]


def test_none_shows_nothing(capsys):
    with show_progress("none") as update:
        update(make_progress())
    assert capsys.readouterr() == ("", "")


def test_another_word_is_refused():
    with pytest.raises(ValueError, match="Got 'loud'"), show_progress("loud"):
        pass


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "time left unknown"),
        (0.0, "done"),
        (0.2, "about 1 s left"),
        (89.0, "about 89 s left"),
        (600.0, "about 10 min left"),
        (7500.0, "about 2 h 5 min left"),
    ],
)
def test_time_is_written_as_people_say_it(seconds, text):
    assert format_seconds(seconds) == text
