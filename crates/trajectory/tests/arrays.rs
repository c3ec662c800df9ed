//! The array file of a trajectory holds what its traces hold, in either layout.
#![allow(clippy::unwrap_used)] // Tests: a panic is the report.

mod histories;
mod sessions;

use histories::history;
use polar_trajectory::{arrays, build, unroll};
use polar_types::{Trajectory, TrajectoryStrategy};
use proptest::prelude::*;
use safetensors::SafeTensors;
use serde_json::Value;
use sessions::recorded;

/// A file read back.
struct File<'a> {
    arrays: SafeTensors<'a>,
    about: Value,
}

impl<'a> File<'a> {
    fn read(bytes: &'a [u8]) -> Self {
        let (_, header) = SafeTensors::read_metadata(bytes).unwrap();
        let about = header.metadata().as_ref().unwrap()["polar"].clone();
        let about = serde_json::from_str(&about).unwrap();
        Self { arrays: SafeTensors::deserialize(bytes).unwrap(), about }
    }

    fn numbers<const N: usize, T>(&self, name: &str, read: fn([u8; N]) -> T) -> Vec<T> {
        let bytes = self.arrays.tensor(name).unwrap().data().to_vec();
        bytes.chunks_exact(N).map(|chunk| read(chunk.try_into().unwrap())).collect()
    }

    fn longs(&self, name: &str) -> Vec<i64> {
        self.numbers(name, i64::from_le_bytes)
    }

    /// The tokens of one sequence: id, mask, logprob, version.
    fn sequence(&self, index: usize) -> Vec<(i32, u8, Option<f32>, Option<String>)> {
        let offsets = self.longs("offsets");
        let mut rows = vec![index];
        if self.about["layout"] == "tree" {
            let parents = self.longs("parents");
            rows = vec![usize::try_from(self.longs("last_nodes")[index]).unwrap()];
            while let Ok(parent) = usize::try_from(parents[rows[0]]) {
                rows.insert(0, parent);
            }
        }
        let ids = self.numbers("ids", i32::from_le_bytes);
        let mask = self.numbers("loss_mask", |[byte]: [u8; 1]| byte);
        let logprobs = self.numbers("logprobs", f32::from_le_bytes);
        let versions = self.numbers("versions", i32::from_le_bytes);
        let tokens =
            rows.into_iter().flat_map(|row| offsets[row] as usize..offsets[row + 1] as usize);
        tokens
            .map(|at| {
                let version = usize::try_from(versions[at]).ok();
                let version = version.map(|i| self.about["weight_versions"][i].as_str().unwrap());
                let logprob = Some(logprobs[at]).filter(|logprob| !logprob.is_nan());
                (ids[at], mask[at], logprob, version.map(str::to_owned))
            })
            .collect()
    }
}

fn check(trajectory: &Trajectory) {
    let bytes = arrays(trajectory).unwrap();
    let file = File::read(&bytes);
    let traces = unroll(trajectory).unwrap();
    assert_eq!(file.longs("prompt_tokens").len(), traces.len());
    assert_eq!(file.about["session_id"], trajectory.session_id.as_str());
    for (index, trace) in traces.iter().enumerate() {
        let found = file.sequence(index);
        let prompt = trace.prompt_ids.len();
        assert_eq!(file.longs("prompt_tokens")[index] as usize, prompt);
        assert_eq!(
            file.about["lineages"][index]["calls"].as_array().unwrap().len(),
            trace.calls.len()
        );
        let ids: Vec<i32> =
            trace.prompt_ids.iter().chain(&trace.response_ids).map(|id| *id as i32).collect();
        assert_eq!(found.iter().map(|token| token.0).collect::<Vec<_>>(), ids);
        for (at, token) in found[prompt..].iter().enumerate() {
            let span =
                trace.weight_versions.iter().find(|s| (s.start..s.end).contains(&(at as u64)));
            assert_eq!(token.1, trace.loss_mask[at]);
            assert_eq!(token.2.map(f32::to_bits), trace.response_logprobs[at].map(f32::to_bits));
            assert_eq!(token.3, span.and_then(|span| span.version.clone()));
        }
    }
    let trained: usize =
        file.numbers("loss_mask", |[byte]: [u8; 1]| byte).iter().map(|m| *m as usize).sum();
    assert_eq!(trained as u64, trajectory.tokens.trained);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..Default::default() })]

    #[test]
    fn promise_1_arrays_hold_every_trained_token_of_the_traces_once(history in history()) {
        let session = recorded(&history);
        for strategy in [
            TrajectoryStrategy::PrefixMerging,
            TrajectoryStrategy::PerRequest,
            TrajectoryStrategy::PrefixTree,
        ] {
            check(&build(&session, strategy, Some(0.5)).trajectory);
        }
    }
}
