"""Score Group's work: whose picture is whose, what fails, advantages, tables, verdicts, best and worst."""

from __future__ import annotations

import json
import math
import threading
import time

import numpy as np
import pytest
import torch

from tests.comfy_api import pack
from trainer.objective import combine_advantages

choices, pictures, report = pack("nodes.choices"), pack("nodes.score_pictures"), pack("nodes.score_report")
options, watched = pack("nodes.reward_options"), pack("nodes.watched")
Prompt = pack("trainer.prompts").Prompt
Reward = pack("trainer.rewards").Reward
NAN = math.nan
CIRCLES = {"objects": [{"color": "red", "shape": "circle", "count": 2}]}


class Broken(Reward):
    """Fails at the picture whose first pixel is black, by exception or by NaN."""

    def __init__(self, how):
        super().__init__()
        self.how = how

    def score(self, images, prompts, metadata):
        black = images[:, 0, 0, 0] == 0
        if self.how == "raises" and bool(black.any()):
            raise RuntimeError("out of\nmemory")
        return torch.where(black, torch.tensor(NAN), images.float().mean((1, 2, 3)))


class Unloadable(Reward):
    def load(self, device="cpu", dtype=None):
        raise FileNotFoundError("no weights")

    def score(self, images, prompts, metadata):
        raise AssertionError("it was never loaded")


def grey(*levels):
    """float[B, 8, 8, 3], one level (0 to 255) a picture."""
    return torch.stack([torch.full((8, 8, 3), level / 255) for level in levels])


def group(*levels, owners):
    prompts = tuple(Prompt(f"prompt {i}") for i in owners)
    return choices.Group(grey(*levels), prompts, tuple(owners), tuple(range(100, 100 + len(levels))))


def judges(**rewards):
    return pictures.Judges(rewards, dict.fromkeys(rewards, 1.0))


def score(levels, owners, choice):
    return pictures.score_all(pictures.subject_of(group(*levels, owners=owners), None, ""), choice)


def appointed(rewards, monitors=None):
    return pictures.appoint(choices.RewardChoice(rewards, monitors or {}))


# Whose picture is whose


def test_a_group_brings_everything_along():
    subject = pictures.subject_of(group(0, 255, owners=[0, 1]), None, "")
    assert subject.images.dtype == torch.uint8 and subject.images[1].unique().tolist() == [255]
    assert (subject.group_ids, subject.seeds) == ((0, 1), (100, 101))


def test_images_take_the_place_of_a_groups_pictures():
    subject = pictures.subject_of(group(0, 0, owners=[0, 0]), grey(7, 8), "")
    assert subject.images[:, 0, 0, 0].tolist() == [7, 8] and subject.seeds == (100, 101)
    with pytest.raises(Exception, match="3 images for a group of 2"):
        pictures.subject_of(group(0, 0, owners=[0, 0]), grey(1, 2, 3), "")


@pytest.mark.parametrize(
    ("text", "expected", "groups"),
    [
        ("", ["", "", "", ""], [0, 0, 0, 0]),
        ("a cat", ["a cat"] * 4, [0, 0, 0, 0]),
        ("a cat\n\n# not this\n a dog ", ["a cat", "a cat", "a dog", "a dog"], [0, 0, 1, 1]),
        ("a\nb\na\nb", ["a", "b", "a", "b"], [0, 1, 0, 1]),
    ],
)
def test_lines_are_for_equally_many_images_in_a_row(text, expected, groups):
    subject = pictures.subject_of(None, grey(1, 2, 3, 4), text)
    assert [p.text for p in subject.prompts] == expected and list(subject.group_ids) == groups and subject.seeds is None


def test_a_line_may_carry_metadata():
    line = json.dumps({"prompt": "two red circles", "metadata": CIRCLES})
    subject = pictures.subject_of(None, grey(1, 2), f"{line}\ntwo red circles")
    assert subject.prompts[0].metadata == CIRCLES and list(subject.group_ids) == [0, 1]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((None, None, "a cat"), "nothing to score"),
        ((group(1, owners=[0]), None, "a cat"), "the group has its prompts already"),
        ((None, grey(1, 2, 3), "a\nb"), "3 images and 2 prompts"),
        ((None, grey(1), "a\nb"), "1 images and 2 prompts"),
        ((None, grey(1), "fine\n{broken"), "prompts, line 2: not JSON"),
    ],
)
def test_what_cannot_be_meant_is_one_clear_line(arguments, said):
    with pytest.raises(Exception, match=said) as error:
        pictures.subject_of(*arguments)
    assert "\n" not in str(error.value) and str(error.value).startswith("Score Group: ")


# Scoring


def test_real_rewards_score_what_the_trainer_would():
    scored = score([0, 51, 102, 255] * 3, [0, 0, 1, 1] * 3, appointed({"brightness": {"weight": 2.0}}, {"jpeg_size": {}}))
    assert torch.allclose(scored.scores["brightness"], torch.tensor([0, 0.2, 0.4, 1.0] * 3, dtype=torch.float64))
    assert set(scored.scores) == {"brightness", "jpeg_size"} and scored.weights == {"brightness": 2.0}
    expected = combine_advantages({"b": scored.scores["brightness"]}, {"b": 2.0}, list(scored.group_ids))
    assert torch.equal(scored.advantages, expected) and not scored.messages


def test_two_rewards_are_normalised_then_summed():
    scored = score([10, 200, 30, 40], [0, 0, 1, 1], appointed({"brightness": {"weight": 1.0}, "jpeg_size": {"weight": -0.5}}))
    weights = {"brightness": 1.0, "jpeg_size": -0.5}
    assert torch.equal(scored.advantages, combine_advantages(scored.scores, weights, [0, 0, 1, 1]))


def test_prompts_that_a_reward_cannot_judge_are_named():
    subject = pictures.subject_of(None, grey(1, 2), "two red circles")
    scored = pictures.score_all(subject, appointed({"scene": {}}, {"brightness": {}}))
    assert scored.scores["scene"].isnan().all()
    [(name, text)] = scored.messages
    assert name == "scene" and "made without it" in text
    assert text.startswith("2 of 2 pictures not scored: the prompt's metadata")


@pytest.mark.parametrize("how", ["raises", "nan"])
def test_a_failed_scorer_is_nan_and_a_line_never_a_crash(how):
    scored = score([0, 0, 0, 9], [0, 0, 1, 1], two(how))
    assert scored.scores["broken"].isnan().any() and scored.scores["brightness"].isfinite().all()
    assert [name for name, _ in scored.messages] == ["broken"]
    assert all("\n" not in text for _, text in scored.messages)
    if how == "raises":  # it gave no score at all, so the other reward alone decides
        expected = combine_advantages({"b": scored.scores["brightness"]}, {"b": 1.0}, [0, 0, 1, 1])
        assert torch.equal(scored.advantages, expected)


def two(how):
    both = appointed({"brightness": {"weight": 1.0}})
    both.rewards["broken"], both.weights["broken"] = Broken(how), 1.0
    return both


def test_a_reward_that_cannot_be_loaded_is_a_line():
    both = two("nan")
    both.rewards["broken"] = Unloadable()
    both.broken["broken"] = "can't be loaded: FileNotFoundError: no weights"
    scored = score([1, 2], [0, 0], both)
    assert scored.messages[0][1].startswith("2 of 2 pictures not scored: can't be loaded: FileNotFoundError")
    assert scored.advantages.tolist() == [-1.0, 1.0]


def test_only_if_all_rewards_fail_the_node_fails():
    with pytest.raises(Exception, match=r"no reward could score any picture: a: .*memory.*; b: ") as error:
        score([0, 0], [0, 0], judges(a=Broken("raises"), b=Broken("nan")))
    assert "\n" not in str(error.value)


def test_an_unknown_reward_or_option_is_named():
    with pytest.raises(Exception, match="did you mean 'brightness'"):
        appointed({"brightnes": {}})
    with pytest.raises(Exception, match="no reward is connected"):
        appointed({})


def test_monitors_alone_can_be_explored():
    scored = score([1, 9], [0, 0], appointed({}, {"brightness": {}, "jpeg_size": {}}))
    assert scored.advantages.tolist() == [-1.0, 1.0] and "only monitors" in scored.messages[0][1]


def test_shaped_scores_are_compared_and_plain_ones_are_shown():
    """As in the training: pictures that tie after the bounds have advantage 0, and the verdict is about what is compared."""
    shaped = appointed({"brightness": {"weight": 1.0, "clip": [0.5, None]}})
    scored = score([10, 90, 10, 200], [0, 0, 1, 1], shaped)
    assert scored.scores["brightness"].tolist() == pytest.approx([level / 255 for level in (10, 90, 10, 200)])
    assert scored.compared["brightness"].tolist() == pytest.approx([0.5, 0.5, 0.5, 200 / 255])
    assert scored.advantages.tolist() == pytest.approx([0, 0, -1, 1])
    tied = score([10, 90], [0, 0], shaped)
    assert report.verdict(report.spread(tied.compared["brightness"], tied.group_ids))[0] == report.NOTHING
    assert "teaches nothing here" in report.summary(tied)


def test_two_of_a_kind_are_scored_apart():
    both = {"small": {"kind": "jpeg_size"}, "large": {"kind": "jpeg_size", "prefer": "large"}}
    scored = score([1, 9], [0, 0], appointed(both))
    assert torch.equal(scored.scores["small"], -scored.scores["large"])


# What is kept for the next execution


def test_a_loaded_reward_is_taken_again():
    choice = choices.RewardChoice({"brightness": {"weight": 1.0}}, {"jpeg_size": {"prefer": "large"}})
    first, second = pictures.appoint(choice), pictures.appoint(choice)
    assert all(first.rewards[name] is second.rewards[name] for name in ("brightness", "jpeg_size"))


def test_a_chain_keeps_what_its_other_nodes_loaded():
    """A node of the chain that changes makes a new choice from that before it; the weight is no matter of loading."""
    before = options.add_reward("brightness", 1.0, False, {}, None)
    one = pictures.appoint(options.add_reward("jpeg_size", 1.0, False, {"prefer": "small"}, before))
    two = pictures.appoint(options.add_reward("jpeg_size", 0.5, False, {"prefer": "small"}, before))
    three = pictures.appoint(options.add_reward("jpeg_size", 0.5, False, {"prefer": "large"}, before))
    assert one.rewards == two.rewards
    assert three.rewards["brightness"] is two.rewards["brightness"]
    assert three.rewards["jpeg_size"] is not two.rewards["jpeg_size"]
    assert list(before.loaded.values()) == list(three.rewards.values()), "what no chain uses any more is let go"


def test_a_reward_that_could_not_be_loaded_is_tried_anew(monkeypatch):
    made = iter([Unloadable(), Broken("nan")])
    monkeypatch.setattr(pictures, "create_entry", lambda *_: next(made))
    choice = choices.RewardChoice({"some": {}})
    assert "some" in pictures.appoint(choice).broken and not choice.loaded
    assert not pictures.appoint(choice).broken


def test_what_is_kept_makes_no_choice_another_one():
    choice = choices.RewardChoice({"brightness": {}})
    pictures.appoint(choice)
    assert choice == choices.RewardChoice({"brightness": {}}) and "loaded" not in repr(choice)


def test_cancel_is_looked_at_between_few_pictures():
    class Cancel(Exception):
        pass

    seen = []

    def between(done):
        seen.append(done)
        if done >= 2 * pictures.CHUNK:
            raise Cancel

    levels = [1] * 10 * pictures.CHUNK
    subject = pictures.subject_of(group(*levels, owners=[0] * len(levels)), None, "")
    with pytest.raises(Cancel):
        pictures.score_all(subject, appointed({"brightness": {}}), between)
    assert list(dict.fromkeys(seen)) == [0, pictures.CHUNK, 2 * pictures.CHUNK]


class Hanging(Reward):
    """Works until somebody interrupts it, on its weights or on pictures."""

    def __init__(self, where):
        super().__init__()
        self.where, self.told, self.began = where, threading.Event(), threading.Event()

    def load(self, device="cpu", dtype=None):
        self._work("load")

    def score(self, images, prompts, metadata):
        self._work("score")
        return images.float().mean((1, 2, 3))

    def interrupt(self):
        self.told.set()

    def _work(self, where):
        if self.where == where:
            self.began.set()
            self.told.wait(60)


@pytest.mark.parametrize("where", ["load", "score"])
def test_cancel_is_looked_at_while_a_reward_works(monkeypatch, where):
    class Cancel(Exception):
        pass

    def cancelled(done=0):
        if reward.began.is_set():
            raise Cancel

    reward = Hanging(where)
    monkeypatch.setattr(pictures, "create_entry", lambda *_: reward)
    choice = choices.RewardChoice({"hanging": {}})
    subject = pictures.subject_of(group(1, 2, owners=[0, 0]), None, "")
    began = time.monotonic()
    with pytest.raises(Cancel):
        pictures.score_all(subject, pictures.appoint(choice, check=cancelled), cancelled)
    assert time.monotonic() - began < 5  # of the 60 seconds that it would work
    assert reward not in choice.loaded.values(), "its thread may still use it"
    assert reward.told.is_set()


def test_what_a_reward_raises_in_its_thread_is_raised_here():
    with pytest.raises(KeyError, match="gone"):
        watched.watched(lambda: {}["gone"], lambda: None)
    assert watched.watched(lambda: 3, lambda: None) == 3


def test_pictures_that_are_no_numbers_have_no_score():
    """As a VAE makes them that overflows: they would be scored as black pictures, and the verdict would blame the reward."""
    made = group(10, 20, 30, 40, owners=[0, 0, 1, 1])
    made.images[1, 2, 2, 0], made.images[3, 0, 0, 1] = NAN, math.inf
    scored = pictures.score_all(pictures.subject_of(made, None, ""), appointed({"brightness": {}}))
    assert scored.scores["brightness"].isnan().tolist() == [False, True, False, True]
    assert "! pictures: 2 of 4 hold values that are no numbers" in report.summary(scored)
    with pytest.raises(Exception, match="no reward could score any picture: pictures: 1 of 1 hold values that are no numbers"):
        pictures.score_all(pictures.subject_of(None, grey(math.nan), "a"), appointed({"brightness": {}}))


# What is said


def scored(values, owners, advantages=None, monitors=()):
    """One tensor of scores a reward; advantages by the node's own rule unless given."""
    scores = {name: torch.tensor(v, dtype=torch.float64) for name, v in values.items()}
    weights = {name: 1.0 for name in scores if name not in monitors}
    total = report.advantages_of(scores, weights, owners) if advantages is None else torch.tensor(advantages).double()
    prompts = tuple(Prompt(f"prompt {i}") for i in owners)
    return report.Scored(prompts, tuple(owners), tuple(owners), scores, scores, weights, total)


def test_the_spread_is_what_numpy_says():
    values = np.array([0.0, 1.0, 2.0, 5.0, 5.0, 5.0, NAN, 3.0])
    owners = [0, 0, 0, 1, 1, 1, 2, 2]
    s = report.spread(torch.tensor(values), owners)
    good = values[~np.isnan(values)]
    assert (s.scored, s.pictures, s.groups, s.flat, s.smallest) == (7, 8, 2, 1, 3)
    assert s.mean == pytest.approx(good.mean()) and (s.low, s.high) == (0, 5)
    assert s.within_std == pytest.approx(np.std([0, 1, 2]) / 2)
    assert s.within_share == pytest.approx(2 / (7 * good.var()))


def test_nothing_scored_and_nothing_to_compare():
    s = report.spread(torch.full((4,), NAN), [0, 0, 1, 1])
    assert report.verdict(s)[0] == "failed" and math.isnan(s.mean)
    word, text = report.verdict(report.spread(torch.tensor([1.0, 2.0, NAN]), [0, 1, 1]))
    assert word == "cannot be judged" and "raise group_size" in text


@pytest.mark.parametrize(
    ("values", "word", "said"),
    [
        ([0.1, 0.5, 0.3, 0.9, 0.2, 0.8, 0.6, 0.4], "teaches", "In 2 of 2 groups"),
        ([1.0] * 8, "teaches nothing here", "Every picture scores 1, so every advantage is 0"),
        ([1.0] * 4 + [0.0] * 4, "teaches nothing here", "All pictures of one prompt score alike"),
        # Equal up to what float32 leaves behind: the training treats it as equal, and so must the verdict.
        ([0.7, 0.7 + 3e-8] * 4, "teaches nothing here", "so every advantage is 0"),
        ([1.0, 1.1, 1.0, 1.1, 90.0, 90.1, 90.0, 90.1], "teaches", "Only 0% of the differences"),
        ([0.1, 0.5, 0.3, NAN, 0.2, 0.8, 0.6, NAN], "teaches", "2 of 8 pictures could not be scored"),
    ],
)
def test_verdicts_in_plain_words(values, word, said):
    s = report.spread(torch.tensor(values, dtype=torch.float64), [0] * 4 + [1] * 4)
    assert report.verdict(s)[0] == word and said in report.verdict(s)[1]


def test_few_groups_that_differ_teach_little():
    values = torch.tensor([1.0, 2.0] + [5.0, 5.0] * 3, dtype=torch.float64)
    word, text = report.verdict(report.spread(values, [0, 0, 1, 1, 2, 2, 3, 3]))
    assert word == "teaches little" and "In 1 of 4 groups" in text and "the other 3 would be skipped" in text
    assert "Groups of 2 give a rough guess" in text


def test_best_and_worst_of_each_group():
    assert report.best_and_worst(scored({"a": [3.0, 1.0, 2.0, 5.0, 9.0, 7.0]}, [0, 0, 0, 1, 1, 1])) == ([0, 4], [1, 3])
    # All alike: two different pictures all the same. Unscored ones are neither, unless there is no other.
    assert report.best_and_worst(scored({"a": [1.0, 1.0, 1.0]}, [0, 0, 0])) == ([0], [2])
    assert report.best_and_worst(scored({"a": [NAN, 1.0, 2.0, NAN, NAN]}, [0, 0, 0, 1, 1])) == ([2, 3], [1, 4])


def test_only_pictures_that_differ_are_marked():
    s = scored({"a": [3.0, 1.0, 2.0, 1.0, 1.0, NAN, NAN]}, [0, 0, 0, 1, 1, 2, 2])
    assert report.marks(s) == ["best", "worst", None, None, None, None, None]


def test_groups_may_be_interleaved():
    s = scored({"a": [3.0, 5.0, 1.0, 9.0]}, [0, 1, 0, 1])
    assert s.members() == [[0, 2], [1, 3]] and report.best_and_worst(s) == ([0, 3], [2, 1])


def test_the_table_has_every_score():
    text = report.table(scored({"a": [0.25, NAN], "watched": [1.0, 123456.0]}, [0, 0], monitors=["watched"]))
    head, rule, first, second = text.splitlines()[:4]
    assert [cell.strip() for cell in head.split("|")][1:-1] == ["prompt", "member", "a", "watched*", "advantage", ""]
    assert [cell.strip() for cell in first.split("|")][1:6] == ["1", "1", "0.25", "1", "+0.00"]
    assert [cell.strip() for cell in second.split("|")][3:5] == ["not scored", "1.235e+05"]
    assert len({len(line) for line in (head, rule, first, second)}) == 1
    assert "prompt 1: prompt 0" in text and "not trained on" in text


def test_the_summary_has_a_verdict_for_each_reward_and_every_message():
    s = scored({"a": [1.0, 2.0], "watched": [3.0, 3.0]}, [0, 0], monitors=["watched"])
    s.messages.append(("a", "something happened"))
    text = report.summary(s)
    assert "\na: teaches. " in text and "\nwatched (monitor, not trained on): teaches nothing here. " in text
    assert "! a: something happened" in text


def test_the_data_is_strict_json_and_complete():
    s = scored({"a": [0.5, NAN, 2.0, 3.0]}, [0, 0, 1, 1])
    data = json.loads(json.dumps(report.data(s), allow_nan=False))
    assert data["groups"][0]["pictures"][1]["scores"] == {"a": None}
    assert data["groups"][1]["pictures"][0] == {
        "image": 2, "member": 0, "seed": "1", "scores": {"a": 2.0}, "advantages": {"a": -1.0}, "advantage": -1.0
    }  # fmt: skip
    assert data["groups"][1]["best"] == 3 and data["groups"][1]["worst"] == 2
    assert data["rewards"]["a"]["groups"] == 1 and data["rewards"]["a"]["verdict"] == "teaches"


def test_captions_have_equally_many_lines():
    lines = report.captions(scored({"a": [0.5, NAN], "b": [1.0, 2.0]}, [0, 0], monitors=["b"]))
    assert lines[1] == ["prompt 1, picture 2", "advantage +0.00", "a not scored", "b* 2", "prompt 0"]
    assert len(lines[0]) == len(lines[1])
