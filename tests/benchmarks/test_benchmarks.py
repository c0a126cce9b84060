"""The benchmarks compare like with like, and write what they say they do."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks import convergence, growth, metrics, step
from benchmarks.__main__ import BENCHMARKS
from benchmarks.bench import Options, Report, interleaved, peak_memory, ratio
from benchmarks.models import chains, classifier_constraint, gpt2_small, random_tokens, roberta_base
from benchmarks.published import PublishedLoop
from mucola import langevin
from mucola.lagrangian import Ascent
from mucola.langevin import Dynamics
from mucola.schedules import Noise, StepSize

SMALL = {"vocab_size": 300, "n_embd": 32, "n_layer": 2, "n_head": 2, "bos_token_id": 0, "eos_token_id": 0}
ENCODER = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}


def test_the_published_way_and_ours_walk_the_same_path() -> None:
    """Without noise both are the same mathematics, so the tokens agree step by step."""
    language_model = gpt2_small(**SMALL)
    constraint = classifier_constraint(roberta_base(32, **ENCODER))
    batch = chains(language_model, 1, 5, [constraint])
    dynamics = Dynamics(StepSize(0.1, 0.1), Noise(0.0, 0.0, 1), Ascent())
    tokens = random_tokens(language_model, 1, 8)
    loop = PublishedLoop(
        language_model, constraint.model, 1, constraint.threshold, batch.chains[0].prompt.tokens, dynamics
    )
    loop.start(tokens[0], seed=0)
    state = langevin.init(batch, tokens, dynamics)
    visited = set()
    for _ in range(6):
        loop.run(1)
        state, _info = langevin.step(batch, state, dynamics)
        assert torch.equal(loop.tokens, state.tokens)
        visited.add(tuple(state.tokens[0].tolist()))
    assert len(visited) > 3


def test_all_ways_to_step_are_timed_in_turns(tmp_path: Path) -> None:
    cases, chain_steps = step.make_cases(gpt2_small(**SMALL), 3, **ENCODER)
    found = interleaved(cases, 2)
    assert set(found) == set(chain_steps) == {*cases}
    assert all(len(timing.seconds) == 2 and min(timing.seconds) > 0 for timing in found.values())
    one = ratio(found["published"], found["published"])
    assert (one.median, one.low, one.high) == (1.0, 1.0, 1.0)
    report = Report("step", Options(output=tmp_path))
    report.table("Step", ["", "ratio"], [["published", one]])
    kept = json.loads(report.write().read_text())
    assert kept["tables"]["Step"]["rows"] == [{"": "published", "ratio": {"median": 1.0, "low": 1.0, "high": 1.0}}]
    assert kept["machine"]["threads"] == 1
    assert kept["machine"]["torch"] == torch.__version__


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="peaks can be forgotten on Linux alone")
def test_a_peak_is_that_of_its_block_alone() -> None:
    with peak_memory() as large:
        torch.ones(50, 2**18).sum()  # 50 MiB
    with peak_memory() as small:
        torch.ones(5, 2**18).sum()
    assert 45 < large[0] / 2**20 < 70
    assert small[0] / 2**20 < 20


def test_memory_is_fitted_and_turned_into_lengths() -> None:
    fixed, token, pair = 100e6, 2e6, 3e3
    sizes = [
        (n, length, int(fixed + n * (token * length + pair * length**2)))
        for n, length in ((1, 10), (4, 50), (4, 400), (16, 20))
    ]
    fitted = growth.fit(sizes)
    assert fitted == pytest.approx((fixed, token, pair), rel=1e-3)
    fits = growth.longest(8e9, 4, fitted)
    assert (
        fixed + 4 * (token * fits + pair * fits**2) <= 8e9 < fixed + 4 * (token * (fits + 2) + pair * (fits + 2) ** 2)
    )
    assert growth.longest(50e6, 1, fitted) == 0


def test_every_metric_that_needs_no_model_is_measured(tmp_path: Path) -> None:
    metrics.main(Options(output=tmp_path), generations=500)
    rows = json.loads((tmp_path / "metrics.json").read_text())["tables"]["Metrics without models"]["rows"]
    assert [row["generations"] for row in rows] == [50, 500]
    assert {row["metrics"] for row in rows} == {15}


def test_the_convergence_study_reads_off_when_chains_first_found_something() -> None:
    first = convergence.Course("a", " b c", True, 2.0, 100, 40, [(20, 15, 3.0), (60, 30, 2.0)])
    late = convergence.Course("a", " b d", True, 4.0, 250, 60, [(150, 50, 4.0)])
    nothing = convergence.Course("e", "", False, None, 100, 100, [])
    in_time, found, verified, best, at_first, at_step, evaluations, evaluated, *_variety = convergence.summary(
        [first, late, nothing]
    )
    assert (in_time, found, verified, evaluated) == ("33%", "67%", "67%", "44%")
    assert (best, at_first, at_step, evaluations) == (3.0, 3.5, 85, 32.5)


def test_variants_of_the_step_change_what_their_names_say() -> None:
    usual = {"step_size": StepSize(0.1, 0.1), "noise": Noise(1.0, 1.0, 1), "ascent": Ascent()}
    eta, beta = torch.tensor([0.1]), torch.tensor([0.0])
    gradient, gaussian = torch.randn(2, 1, 4, 3, generator=torch.Generator().manual_seed(0))
    plain = Dynamics(**usual).displacement(eta, beta, gradient, gaussian)
    even = convergence.Normalised(**usual).displacement(eta, beta, gradient, gaussian)
    torch.testing.assert_close(even.norm(dim=-1), plain.norm(dim=-1).mean().expand(1, 4))
    torch.testing.assert_close(torch.cosine_similarity(even, plain, dim=-1), torch.ones(1, 4))
    table = torch.randn(1000, 3, generator=torch.Generator().manual_seed(1)) * torch.tensor([3.0, 1.0, 0.1])
    stretched = convergence.Preconditioned(**usual, table=table).displacement(eta, beta, gradient, gaussian)
    covariance = torch.cov(table.T)
    torch.testing.assert_close(stretched, plain @ (covariance * 3 / covariance.trace()), atol=1e-4, rtol=1e-3)


def test_benchmarks_are_listed_and_mistakes_explained() -> None:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([sys.executable, "-m", "benchmarks", *arguments], capture_output=True, text=True)

    listed = run()
    assert listed.returncode == 0
    assert all(name in listed.stdout for name in BENCHMARKS)
    wrong = run("stpe")
    assert wrong.returncode == 2
    assert "There is no benchmark 'stpe'" in wrong.stderr
