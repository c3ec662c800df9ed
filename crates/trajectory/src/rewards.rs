//! Puts rewards where trainers look for them. Tokens, masks and logprobs stay as they are, so
//! that a session which is graded again is the same session with other numbers.

use polar_types::{CallId, PartRewards, Trajectory};

/// Gives a trajectory these rewards in the place of those it has: the rollout's, and of its parts
/// those named. Parts that it does not have are left out.
pub fn set_rewards(trajectory: &mut Trajectory, reward: Option<f64>, parts: &PartRewards) {
    let of_trace = |number: u32| parts.traces.get(&number).copied();
    trajectory.reward = reward;
    for (trace, number) in trajectory.traces.iter_mut().zip(0..) {
        trace.reward = of_trace(number).or(reward);
        trace.turn_scores = turn_scores(&trace.calls, parts);
    }
    let lineages = trajectory.tree.iter_mut().flat_map(|tree| &mut tree.lineages);
    for (lineage, number) in lineages.zip(0..) {
        lineage.reward = of_trace(number);
        lineage.turn_scores = turn_scores(&lineage.calls, parts);
    }
}

fn turn_scores(calls: &[CallId], parts: &PartRewards) -> Vec<Option<f64>> {
    let scores: Vec<_> = calls.iter().map(|call| parts.calls.get(call).copied()).collect();
    if scores.iter().all(Option::is_none) { Vec::new() } else { scores }
}
