"""A plan as a picture or a page: curves over several totals, a sentence for one."""

from dataclasses import replace

from tests.unit.simulation.test_plan import _drawn

from privmarket.reports._plan_figure import write_plan


def test_one_total_is_a_sentence(tmp_path):
    plan = _drawn()
    one = replace(plan, points=plan.points[:1])
    said = one.sentence()
    assert said.startswith("For ")
    assert "your own 40 records alone give 70%" in said
    figure = one.plot()
    assert figure.axes == []
    assert " ".join(figure.texts[0].get_text().split()) == said
    page = write_plan(one, tmp_path / "plan.html").read_text(encoding="utf-8")
    assert said in page
    assert "<svg" not in page


def test_several_totals_are_curves(tmp_path):
    assert len(_drawn().plot().axes) == 3
    assert write_plan(_drawn(), tmp_path / "plan.html").read_text(encoding="utf-8").count("<svg") >= 6
