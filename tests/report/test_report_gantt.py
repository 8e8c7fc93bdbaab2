"""The picture of one step: rows, colours, what is exposed, and the file it becomes."""

from __future__ import annotations

import pytest
from matplotlib.colors import to_hex
from report_data import prediction

from collbench.errors import InputError
from collbench.model.link import LinkModel
from collbench.predict.step import predict_step
from collbench.predict.workload import Workload
from collbench.report.canvas import svg_of
from collbench.report.gantt import timeline_figure, write_gantt

BARS = [
    {"stream": "compute", "phase": "forward", "name": "forward a", "start_ms": 0.0, "end_ms": 4.0},
    {"stream": "comm", "phase": "parameters", "name": "all_gather b", "start_ms": 1.0, "end_ms": 6.0},
    {"stream": "compute", "phase": "backward", "name": "backward a", "start_ms": 6.0, "end_ms": 9.0},
    {"stream": "comm", "channel": "comm:2", "phase": "gradients", "name": "bucket 0", "start_ms": 7.0, "end_ms": 8.0},
]


def _spans(axes, gid):
    """(row, from, to) of every bar of that kind."""
    boxes = [path.get_extents() for each in axes.collections if each.get_gid() == gid for path in each.get_paths()]
    return [(round((box.y0 + box.y1) / 2), box.x0, box.x1) for box in boxes]


def test_only_what_no_computation_hides_is_in_full_colour():
    axes = timeline_figure(prediction(timeline=BARS, exposed_tail_ms=0.0)).axes[0]
    assert _spans(axes, "parameters") == [(1, 1.0, 6.0)]
    assert _spans(axes, "exposed") == [(1, 4.0, 6.0)], "the reduction is hidden altogether"
    assert _spans(axes, "gradients") == [(2, 7.0, 8.0)]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["compute", "comm", "comm 2"]


def test_the_legend_has_a_colour_for_every_phase_and_two_for_communication():
    axes = timeline_figure(prediction(timeline=BARS, exposed_tail_ms=0.0)).axes[0]
    legend = axes.get_legend()
    texts = [text.get_text() for text in legend.get_texts()]
    assert texts == ["forward", "backward", "gather, exposed", "gather, hidden", "reduce, exposed", "reduce, hidden"]
    assert len({to_hex(patch.get_facecolor()) for patch in legend.get_patches()}) == len(texts)
    assert "(ms)" in axes.get_xlabel()


def test_the_timeline_shades_the_exposed_tail():
    axes = timeline_figure(prediction()).axes[0]
    (tail,) = [patch for patch in axes.patches if patch.get_gid() == "tail"]
    assert (tail.get_x(), tail.get_x() + tail.get_width()) == pytest.approx((10.0, 14.0))
    assert any("exposed tail 4.000 ms" in text.get_text() for text in axes.texts)
    assert [label.get_text() for label in axes.get_yticklabels()] == ["compute", "comm"]


def test_the_tail_ends_with_the_gradients_not_with_what_comes_after_the_optimizer():
    bars = [
        {"stream": "compute", "phase": "backward", "name": "backward a", "start_ms": 0.0, "end_ms": 6.0},
        {"stream": "comm", "phase": "gradients", "name": "bucket 0", "start_ms": 6.0, "end_ms": 8.0},
        {"stream": "comm", "phase": "parameters", "name": "all_gather", "start_ms": 9.0, "end_ms": 12.0},
    ]
    axes = timeline_figure(prediction(timeline=bars, exposed_tail_ms=2.0)).axes[0]
    (tail,) = [patch for patch in axes.patches if patch.get_gid() == "tail"]
    assert (tail.get_x(), tail.get_x() + tail.get_width()) == pytest.approx((6.0, 8.0))


@pytest.mark.parametrize("bars", [[], [{"stream": "compute", "name": "forward", "start_ms": 0.0, "end_ms": 0.0}]])
def test_a_step_in_which_nothing_happens_can_be_drawn(bars):
    svg_of(timeline_figure(prediction(timeline=bars, exposed_tail_ms=0.0)))


@pytest.mark.parametrize("layers", [1, 125])
def test_a_picture_of_few_and_of_many_tasks_is_one_page_wide(layers, tmp_path):
    layer = {"tensors": [[64, 64]], "forward_ms": 1.0, "backward_ms": 2.0, "repeat": layers}
    link = LinkModel(bandwidth_GBps=1)
    predicted = predict_step(Workload.from_dict({"layers": [layer]}), link, "fsdp", nodes=1, ranks_per_node=4).to_dict()
    assert len(predicted["timeline"]) >= 5 * layers
    figure = timeline_figure(predicted)
    assert tuple(figure.get_size_inches()) == (10.0, 2.7)
    named = [text.get_text() for text in figure.axes[0].texts if text.get_text().startswith("layer")]
    assert bool(named) is (layers == 1), "names stand where they fit"
    for name in ("step.png", "step.svg"):
        write_gantt(predicted, tmp_path / name)
    assert (tmp_path / "step.png").read_bytes().startswith(b"\x89PNG")
    assert b"<svg" in (tmp_path / "step.svg").read_bytes()[:600]


def test_what_is_no_picture_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"step\.pdf: the picture is PNG or SVG"):
        write_gantt(prediction(), tmp_path / "step.pdf")
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=r"cannot be written .*--gantt"):
        write_gantt(prediction(), tmp_path / "file" / "step.svg")
