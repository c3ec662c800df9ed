//! The tokens of a trajectory as flat arrays, in the safetensors format: what a trainer reads
//! into NumPy or PyTorch without parsing numbers.
//!
//! A row is a trace or, in a tree, a node. Each file says its own length, so that files may lie
//! behind one another in a stream. Rewards are not in it: they can be given anew, and tokens not.
//!
//! | array | type | length | what |
//! |---|---|---|---|
//! | `ids` | int32 | tokens | all rows, one behind the other; of a trace prompt and response |
//! | `loss_mask` | uint8 | tokens | 1 where the token is to be trained on |
//! | `logprobs` | float32 | tokens | as the engine gave it, NaN where there is none |
//! | `versions` | int32 | tokens | index into `weight_versions`, -1 where none is known |
//! | `offsets` | int64 | rows + 1 | where each row begins, and where the last one ends |
//! | `prompt_tokens` | int64 | lineages | tokens before the first sampled one |
//! | `parents` | int64 | rows | of a tree: the node before, -1 where sequences begin |
//! | `last_nodes` | int64 | lineages | of a tree: the node that each sequence ends with |
//!
//! The metadata has one entry, `polar`, with JSON: `layout` (`traces` or `tree`), `session_id`,
//! `task_id`, `group_id`, `weight_versions`, and for each lineage `role`, `parent`, `cause`,
//! `finish_reason` and `calls`.

use polar_types::{CallId, CallRole, ForkCause, LineageInfo, Trajectory, WeightSpan};
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensorError};
use serde::Serialize;
use std::collections::HashMap;

/// The array file of a trajectory.
pub fn arrays(trajectory: &Trajectory) -> Result<Vec<u8>, SafeTensorError> {
    let versions = trajectory.weight_versions();
    let mut rows = Rows { versions: &versions, ..Rows::default() };
    let mut prompt_tokens = Vec::new();
    let mut tree = None;
    if let Some(found) = &trajectory.tree {
        for node in &found.nodes {
            let spans = &node.weight_versions;
            rows.push(0, &node.ids, &node.loss_mask, &node.logprobs, spans);
        }
        prompt_tokens.extend(found.lineages.iter().map(|lineage| signed(lineage.prompt_tokens)));
        let parent = |parent: Option<u32>| parent.map_or(-1, i64::from);
        let parents = found.nodes.iter().map(|node| parent(node.parent)).collect();
        let last = found.lineages.iter().map(|lineage| i64::from(lineage.last_node)).collect();
        tree = Some((bytes_of_longs(parents), bytes_of_longs(last)));
    }
    for trace in &trajectory.traces {
        let prompt = trace.prompt_ids.len();
        rows.push_context(&trace.prompt_ids);
        let (ids, mask) = (&trace.response_ids, &trace.loss_mask);
        rows.push(prompt, ids, mask, &trace.response_logprobs, &trace.weight_versions);
        prompt_tokens.push(signed(prompt as u64));
    }
    let tokens = rows.mask.len();
    let mut files = vec![
        ("ids", Dtype::I32, tokens, rows.ids),
        ("loss_mask", Dtype::U8, tokens, rows.mask),
        ("logprobs", Dtype::F32, tokens, rows.logprobs),
        ("versions", Dtype::I32, tokens, rows.version_of),
    ];
    let offsets = std::iter::once(0).chain(rows.ends).collect::<Vec<_>>();
    files.push(longs("offsets", bytes_of_longs(offsets)));
    files.push(longs("prompt_tokens", bytes_of_longs(prompt_tokens)));
    if let Some((parents, last_nodes)) = tree {
        files.push(longs("parents", parents));
        files.push(longs("last_nodes", last_nodes));
    }
    let views = files.iter().map(|(name, kind, length, bytes)| {
        Ok((*name, TensorView::new(*kind, vec![*length], bytes)?))
    });
    let views = views.collect::<Result<Vec<_>, SafeTensorError>>()?;
    let about = serde_json::to_string(&About::of(trajectory, &versions)).unwrap_or_default();
    safetensors::serialize(views, Some(HashMap::from([("polar".to_owned(), about)])))
}

/// What the metadata says.
#[derive(Serialize)]
struct About<'a> {
    layout: &'static str,
    session_id: &'a str,
    task_id: &'a str,
    group_id: &'a str,
    weight_versions: &'a [String],
    lineages: Vec<AboutLineage<'a>>,
}

#[derive(Serialize)]
struct AboutLineage<'a> {
    role: CallRole,
    parent: Option<u32>,
    cause: ForkCause,
    finish_reason: Option<&'a str>,
    calls: &'a [CallId],
}

impl<'a> About<'a> {
    fn of(trajectory: &'a Trajectory, weight_versions: &'a [String]) -> Self {
        let traces = trajectory.traces.iter();
        let traces = traces.map(|t| lineage(&t.lineage, t.finish_reason.as_deref(), &t.calls));
        let tree = trajectory.tree.iter().flat_map(|tree| &tree.lineages);
        let tree = tree.map(|l| lineage(&l.lineage, l.finish_reason.as_deref(), &l.calls));
        Self {
            layout: if trajectory.tree.is_some() { "tree" } else { "traces" },
            session_id: trajectory.session_id.as_str(),
            task_id: trajectory.task_id.as_str(),
            group_id: trajectory.group_id.as_str(),
            weight_versions,
            lineages: traces.chain(tree).collect(),
        }
    }
}

fn lineage<'a>(
    info: &LineageInfo,
    finish_reason: Option<&'a str>,
    calls: &'a [CallId],
) -> AboutLineage<'a> {
    let LineageInfo { role, parent, fork } = info;
    AboutLineage { role: *role, parent: *parent, cause: fork.cause, finish_reason, calls }
}

/// Rows one behind the other, as little-endian bytes.
#[derive(Default)]
struct Rows<'a> {
    versions: &'a [String],
    ids: Vec<u8>,
    mask: Vec<u8>,
    logprobs: Vec<u8>,
    version_of: Vec<u8>,
    ends: Vec<i64>,
}

impl Rows<'_> {
    /// Tokens of a row before its first sampled one.
    fn push_context(&mut self, ids: &[u32]) {
        self.push_tokens(ids);
        self.mask.resize(self.mask.len() + ids.len(), 0);
        for _ in ids {
            self.logprobs.extend_from_slice(&f32::NAN.to_le_bytes());
            self.version_of.extend_from_slice(&(-1_i32).to_le_bytes());
        }
    }

    /// The rest of a row that begins with `before` tokens of context.
    fn push(
        &mut self,
        before: usize,
        ids: &[u32],
        mask: &[u8],
        logprobs: &[Option<f32>],
        spans: &[WeightSpan],
    ) {
        self.push_tokens(ids);
        self.mask.extend_from_slice(mask);
        for logprob in logprobs {
            self.logprobs.extend_from_slice(&logprob.unwrap_or(f32::NAN).to_le_bytes());
        }
        let mut version_of = vec![-1_i32; ids.len()];
        for span in spans {
            let known = self.versions.iter().position(|known| Some(known) == span.version.as_ref());
            let index = known.and_then(|index| i32::try_from(index).ok()).unwrap_or(-1);
            let (start, end) = (span.start as usize, (span.end as usize).min(ids.len()));
            if let Some(sampled) = version_of.get_mut(start..end) {
                sampled.fill(index);
            }
        }
        for index in version_of {
            self.version_of.extend_from_slice(&index.to_le_bytes());
        }
        let row = signed((before + ids.len()) as u64);
        self.ends.push(self.ends.last().copied().unwrap_or(0) + row);
    }

    fn push_tokens(&mut self, ids: &[u32]) {
        for id in ids {
            self.ids.extend_from_slice(&id.to_le_bytes());
        }
    }
}

fn longs(name: &'static str, bytes: Vec<u8>) -> (&'static str, Dtype, usize, Vec<u8>) {
    (name, Dtype::I64, bytes.len() / size_of::<i64>(), bytes)
}

fn bytes_of_longs(numbers: Vec<i64>) -> Vec<u8> {
    numbers.into_iter().flat_map(i64::to_le_bytes).collect()
}

fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
